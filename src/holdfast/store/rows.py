"""A run's row in SQLite, its CRC, and its form in the domain."""

import struct
from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

import msgspec

from holdfast.core.budget import Account
from holdfast.core.errors import Damaged, StoreRefused
from holdfast.core.ids import Fence, RunId, WorkerId, id_bytes, id_text
from holdfast.core.status import Status
from holdfast.store.value import ConversationRow, Lease, NewRun, Post, RowChange, RunRow

FIXED: Final = "number, run, tenant, key, name, digest, code, pin, labels, parent, root, conversation, turn, created_at"
MOVING: Final = "updated_at, status, reason, due_at, last_seq, head, fence, attempt, stalls, refused"
SELECT: Final = (
    "SELECT r." + (FIXED + ", " + MOVING).replace(", ", ", r.") + ", r.inbox_seq, r.control_seq, r.seen_seq, "
    "r.behind, r.inbox_sum, r.guard, "
    # A subquery: the same as a left join is ten times as slow.
    "r.owner, (SELECT worker FROM hf_workers w WHERE w.number = r.owner) FROM hf_runs r "
)
DUE_AT: Final = (FIXED + ", " + MOVING).split(", ").index("due_at")
"""Where it stands in a row of `SELECT`."""
_FIXED_COUNT: Final = FIXED.count(",") + 1
_MOVING_COUNT: Final = MOVING.count(",") + 1
ROW_COLUMNS: Final = _FIXED_COUNT + _MOVING_COUNT + 8
"""How many columns a row of `SELECT` has: what is fixed, what moves, the inbox's counters, a turn's place, the CRC and
the owner."""
OPEN: Final = "r.status NOT IN ('completed', 'failed', 'cancelled')"
"""Of all runs: those that have not ended."""
UNHEARD: Final = (
    "r.owner IS NULL AND r.inbox_seq > r.seen_seq AND r.control_seq > r.seen_seq "
    "AND r.status NOT IN ('completed', 'failed', 'cancelled')"
)
"""Of runs that nobody drives: those that were asked for something and have not seen it."""
POSTS: Final = "SELECT seq, kind, key, control, at, consumed, enc, guard, body FROM hf_posts "
SECRET_BYTES: Final = 32
INBOX_FACTOR: Final = 1_000_003
CONTROL_FACTOR: Final = 1009
"""The inbox's counters, each times its factor, add up to `inbox_sum`."""
_NUMBERS: Final = struct.Struct(">5q").pack
_decode_labels: Final = msgspec.json.Decoder(dict[str, str]).decode
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def seal(fixed: tuple[Any, ...]) -> int:
    """Return the CRC of the columns that never change."""
    # ascii() and not repr(): what repr() escapes depends on the Unicode version, so on the Python that reads the row.
    return crc32(ascii(fixed).encode())


def guard(sealed: int, moving: tuple[Any, ...]) -> int:
    """Return the CRC of the whole row, from the CRC of its fixed part."""
    updated_at, status, reason, due_at, last_seq, head, fence, attempt, stalls, refused = moving
    words = crc32(ascii((status, reason, due_at, refused)).encode(), sealed)
    return crc32(_NUMBERS(updated_at, last_seq, fence, attempt, stalls) + head, words)


def fixed_of(row: RunRow) -> tuple[Any, ...]:
    """Return the columns that never change."""
    return (
        row.number,
        id_bytes(row.run),
        row.tenant,
        row.key,
        row.name,
        row.digest,
        row.code,
        int(row.pin),
        _encode(dict(row.labels)).decode(),
        id_bytes(row.parent) if row.parent else None,
        id_bytes(row.root or row.run),
        row.conversation,
        row.turn,
        row.created_at,
    )


def moving_of(row: RunRow) -> tuple[Any, ...]:
    """Return the columns that a commit or a claim may change."""
    return (
        row.updated_at,
        str(row.status),
        row.reason,
        row.due_at,
        row.last_seq,
        row.head,
        row.fence,
        row.attempt,
        row.stalls,
        row.refused,
    )


def first_row(new: NewRun, number: int, *, claimed: bool) -> RunRow:
    """Return the row that a new run gets."""
    return msgspec.structs.replace(
        new.row,
        number=number,
        last_seq=new.first.seq,
        head=new.first.checksum,
        root=new.row.root or new.row.run,
        fence=Fence(1 if claimed else 0),
        attempt=1 if claimed else 0,
        stalls=1 if claimed else 0,
    )


def read_row(values: tuple[Any, ...]) -> RunRow:
    """Return the row; one whose CRC does not match, or that cannot be read at all, says so in `damage`."""
    fixed, moving = values[:_FIXED_COUNT], values[_FIXED_COUNT : _FIXED_COUNT + _MOVING_COUNT]
    inbox_seq, control_seq, seen_seq, behind, inbox_sum, stored, _, worker = values[_FIXED_COUNT + _MOVING_COUNT :]
    try:
        damage = "" if guard(seal(fixed), moving) == stored else "its row's checksum does not match"
        if inbox_sum != inbox_seq * INBOX_FACTOR + control_seq * CONTROL_FACTOR + seen_seq:
            damage = damage or "its inbox counters do not add up"
        if behind and (behind != 1 or fixed[12] is None):
            damage = damage or "it is no turn that could wait for others"
        return RunRow(
            number=fixed[0],
            run=id_text(fixed[1]),
            tenant=fixed[2],
            key=fixed[3],
            name=fixed[4],
            digest=fixed[5],
            code=fixed[6],
            pin=bool(fixed[7]),
            labels=_decode_labels(fixed[8]),
            parent=id_text(fixed[9]) if fixed[9] else None,
            root=id_text(fixed[10]),
            conversation=fixed[11],
            turn=fixed[12],
            created_at=fixed[13],
            updated_at=moving[0],
            status=Status(moving[1]),
            reason=moving[2],
            due_at=moving[3],
            last_seq=moving[4],
            head=moving[5],
            fence=Fence(moving[6]),
            attempt=moving[7],
            stalls=moving[8],
            refused=moving[9],
            owner=WorkerId(worker) if worker is not None else None,
            inbox_seq=inbox_seq,
            control_seq=control_seq,
            seen_seq=seen_seq,
            behind=bool(behind),
            damage=damage,
        )
    except (ValueError, TypeError, AttributeError, struct.error, msgspec.MsgspecError) as error:
        return _unreadable(fixed, error)


def _unreadable(fixed: tuple[Any, ...], error: Exception) -> RunRow:
    """Return what can be said of a row that does not even have the right types."""
    raw = fixed[1] if isinstance(fixed[1], bytes) and len(fixed[1]) == 16 else bytes(16)
    return RunRow(
        run=id_text(raw),
        number=fixed[0],
        tenant=str(fixed[2]),
        name=str(fixed[4]),
        digest="",
        created_at=0,
        updated_at=0,
        status=Status.QUARANTINED,
        damage=f"its row cannot be read: {error}",
    )


class Seal:
    """What stays the same of a row while one lease lasts; makes the row's CRC cheap at every commit."""

    __slots__ = ("_attempt", "_fence", "_sealed", "_words", "stalls")

    def __init__(self, lease: Lease) -> None:
        row = lease.row
        self._sealed = seal(fixed_of(row))
        self._fence, self._attempt, self.stalls = lease.fence, row.attempt, row.stalls
        self._words = self._crc_of_words(str(row.status), row.reason, row.due_at, row.refused)

    def _crc_of_words(self, *words: str | int | None) -> int:
        return crc32(ascii(words).encode(), self._sealed)

    def after(self, at: int, seq: int, head: bytes, stalls: int, change: RowChange | None) -> int:
        """Return the CRC after a commit, one that parks or ends the run included."""
        words = self._words
        if change is not None:
            words = self._crc_of_words(str(change.status), change.reason, change.due_at, change.refused)
        return crc32(_NUMBERS(at, seq, self._fence, self._attempt, stalls) + head, words)


def read_post(run: RunId, values: tuple[Any, ...], *, numbered: bool = True) -> Post:
    """Return a post of `run`, from the columns of `POSTS`; its CRC covers its seq where it is `numbered` by the driver.

    Raises:
        Damaged: it is not as it was posted, or not of this run.
    """
    seq, kind, key, control, at, consumed, enc, stored, body = values
    try:
        crc = post_guard(id_bytes(run), seq if numbered else 0, kind, key, control, at, enc, body)
        sound = stored == crc + ((consumed or 0) << 32)
    except (TypeError, ValueError):
        sound = False
    if not sound:
        raise Damaged(run=run, seq=None, what=f"post {seq} of its inbox does not match its checksum")
    return Post(seq=seq, kind=kind, key=key, body=body, at=at)


def read_conversation(tenant: str, name: str, values: tuple[Any, ...]) -> ConversationRow:
    """Return a conversation from its columns, checked.

    Raises:
        Damaged: its metadata is not as it was stored.
    """
    active, last_turn, over, reached, metadata, crc, harness, cursor = values
    stored = b"{}" if metadata is None and crc is None else metadata
    if not isinstance(stored, bytes) or (metadata is not None and crc32(stored) != crc):
        raise Damaged(run="", seq=None, what=f"the metadata of conversation {name!r} does not match its checksum")
    return ConversationRow(
        tenant=tenant, conversation=name, active=id_text(active) if active is not None else None,
        last_turn=last_turn, over=over, reached=reached, metadata=stored, harness=harness, cursor=cursor,
    )  # fmt: skip


def accounts_of(rows: Sequence[tuple[Any, ...]]) -> dict[str, Account]:
    """Return a run's accounts, from their rows."""
    return {
        channel: Account(total, reserved, spent, bool(unknown)) for channel, total, reserved, spent, unknown in rows
    }


def checked_secret(rows: Sequence[tuple[Any, ...]]) -> bytes:
    """Return the store's secret, from the only row of its table.

    Raises:
        StoreRefused: there is none that could be used.
    """
    if len(rows) != 1 or not isinstance(rows[0][0], bytes) or len(rows[0][0]) != SECRET_BYTES:
        raise StoreRefused("the store has lost the secret that its callback tokens are made with")
    return rows[0][0]


def post_guard(run: bytes, seq: int, kind: str, key: str, control: int, at: int, enc: int, body: bytes) -> int:
    """Return the CRC of a post that nobody has consumed."""
    return crc32(body, crc32(ascii((run, seq, kind, key, control, at, enc)).encode()))
