"""What each verb does inside a write transaction; refusals are zero rows, never SQL errors."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.errors import NotFound
from holdfast.core.ids import Fence, RunId, WorkerId, id_bytes, id_text
from holdfast.core.status import Status
from holdfast.store.bell import Bells
from holdfast.store.protocol import (
    Commit,
    Committed,
    Created,
    Existing,
    HeadMoved,
    InboxMoved,
    KeyTaken,
    Lease,
    LeaseLost,
    NewBlob,
    NewChunk,
    NewPost,
    NewRun,
    Outcome,
    Page,
    Posted,
    RunRow,
)
from holdfast.store.sqlite.rows import (
    FIXED,
    MOVING,
    SELECT,
    Seal,
    first_row,
    fixed_of,
    guard,
    moving_of,
    read_row,
    seal,
)

# The check and the write are one statement: a worker that lost its lease matches no row.
_ADVANCE: Final = """
    UPDATE hf_runs SET last_seq = ?1, head = ?2, updated_at = ?3, stalls = ?4, guard = ?5
     WHERE number = ?6 AND owner = ?7 AND fence = ?8 AND last_seq = ?9
"""
_MATCHED: Final = " AND control_seq = coalesce(?10, control_seq) AND inbox_seq = coalesce(?11, inbox_seq)"
_ADVANCE_MATCHED: Final = _ADVANCE + _MATCHED
_CHANGE: Final = f"""
    UPDATE hf_runs SET last_seq = ?1, head = ?2, updated_at = ?3, stalls = ?4, guard = ?5, status = ?12, reason = ?13,
           due_at = ?14, refused = ?15, seen_seq = min(inbox_seq, coalesce(?16, inbox_seq)), owner = NULL
     WHERE number = ?6 AND owner = ?7 AND fence = ?8 AND last_seq = ?9 {_MATCHED}
"""
INSERT_ENTRY: Final = """
    INSERT INTO hf_entries (run, seq, kind, version, at, enc, body, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_INSERT_RUN: Final = (
    f"INSERT INTO hf_runs ({FIXED}, {MOVING}, owner, inbox_seq, control_seq, seen_seq, guard) "
    f"VALUES ({', '.join('?' * (FIXED.count(',') + MOVING.count(',') + 2))}, ?, 0, 0, 0, ?)"
)
_DUE: Final = (
    SELECT
    + """
    JOIN json_each(?1) s ON s.key = r.name
    WHERE r.owner IS NULL AND r.due_at IS NOT NULL AND r.due_at <= ?2 AND r.status IN ('queued', 'waiting')
      AND instr(r.refused, '|' || s.value || '|') = 0 ORDER BY r.due_at LIMIT ?3
"""
)
_POSTED: Final = (
    SELECT
    + """
    JOIN json_each(?1) s ON s.key = r.name
    WHERE r.owner IS NULL AND r.inbox_seq > r.seen_seq AND r.status IN ('queued', 'waiting')
      AND instr(r.refused, '|' || s.value || '|') = 0 LIMIT ?2
"""
)
_ONE: Final = SELECT + "WHERE r.run = ?"
_CLAIM: Final = """
    UPDATE hf_runs SET owner = ?, fence = ?, attempt = ?, stalls = ?, guard = ? WHERE number = ? AND owner IS NULL
"""
_encode: Final = msgspec.json.encode
_BLOCK: Final = 64
"""How many run numbers a process takes at once."""


class Db:
    """The writing connection, its cursor, and the entries that wait for the end of the batch."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.cursor = connection.cursor()
        self.entries: list[tuple[Any, ...]] = []
        self.workers: dict[WorkerId, int] = {}
        self._spare: list[int] = []

    def rows(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return self.cursor.execute(sql, values).fetchall()

    def changed(self, sql: str, values: Any = ()) -> int:
        """Run one statement and return how many rows it changed."""
        self.cursor.execute(sql, values)
        return self.connection.changes()

    def flush(self) -> None:
        """Write the entries that wait."""
        if self.entries:
            rows, self.entries = self.entries, []
            self.cursor.executemany(INSERT_ENTRY, rows)

    def take_numbers(self, count: int) -> list[int]:
        """Return numbers for new runs that nobody else gets."""
        end: int = self.rows("UPDATE hf_store SET next_run = next_run + ? RETURNING next_run", (count,))[0][0]
        return list(range(end - 1, end - 1 - count, -1))

    def take_number(self) -> int:
        """Return a number for a new run; taken by the block, so that not every creation writes the counter's page."""
        if not self._spare:
            self._spare = self.take_numbers(_BLOCK)
        return self._spare.pop()

    def forget(self) -> None:
        """Drop what a transaction that was rolled back may have made up."""
        self.entries.clear()
        self.workers.clear()
        self._spare.clear()

    def worker_number(self, worker: WorkerId) -> int | None:
        """Return a registered worker's number."""
        number = self.workers.get(worker)
        if number is None:
            found = self.rows("SELECT number FROM hf_workers WHERE worker = ?", (worker,))
            if not found:
                return None
            number = self.workers[worker] = found[0][0]
        return number


class CommitOp:
    """One commit with its statements' values made ready, so that the writer only executes."""

    __slots__ = ("_change", "_entries", "_lease", "_values", "quiet", "run")

    def __init__(self, lease: Lease, change: Commit, owner: int | None, sealed: Seal) -> None:
        self._lease, self._change = lease, change
        self.run = lease.row.run
        self.quiet = change.change is None and not change.posts and not change.children
        number = lease.row.number
        entries = change.entries
        if entries:
            self._entries = [(number, *entry) for entry in entries]
            seq, _, _, at, _, _, head = entries[-1]
        else:
            self._entries, seq, at, head = [], change.after, lease.row.updated_at, change.previous
        if change.progress:
            sealed.stalls = 0
        stalls = sealed.stalls
        row = change.change
        crc = sealed.after(at, seq, head, stalls, row)
        if row is None:
            values: tuple[Any, ...] = (seq, head, at, stalls, crc, number, owner, lease.fence, change.after)
            free = change.control is None and change.inbox is None
            self._values = values if free else (*values, change.control, change.inbox)
        else:
            self._values = (
                seq, head, at, stalls, crc, number, owner, lease.fence, change.after, change.control, change.inbox,
                str(row.status), row.reason, row.due_at, row.refused, row.seen_seq,
            )  # fmt: skip

    def apply(self, db: Db) -> Outcome:
        """Write it, or say why not."""
        change = self._change
        values = self._values
        if values[6] is None:
            # The worker was registered through another opening of the store, or never.
            owner = db.worker_number(self._lease.worker)
            if owner is None:
                return LeaseLost()
            values = self._values = (*values[:6], owner, *values[7:])
        sql = _CHANGE if len(values) == 16 else _ADVANCE if len(values) == 9 else _ADVANCE_MATCHED
        db.cursor.execute(sql, values)
        if db.connection.changes() != 1:
            return self._refusal(db)
        db.entries += self._entries
        # These are rare; the empty checks are all that an ordinary step pays.
        if change.drop:
            _drop_chunks(db, self._lease.row.number, change.drop)
        if change.blobs:
            add_blobs(db, self._lease.row, change.entries, change.blobs)
        if change.posts or change.consumed or change.children or change.budget or change.cursor:
            self._apply_rest(db)
        return Committed(values[0])

    def _apply_rest(self, db: Db) -> None:
        change, row = self._change, self._lease.row
        at = change.entries[-1].at if change.entries else row.updated_at
        for child in change.children:
            create(db, child, None, at)
        for post in change.posts:
            add_post(db, post, at)
        for seq in change.consumed:
            taken = change.entries[-1].seq if change.entries else change.after
            db.rows("UPDATE hf_posts SET consumed = ? WHERE run = ? AND seq = ?", (taken, row.number, seq))
        for move in change.budget:
            db.rows(
                "INSERT INTO hf_budgets (run, channel, total, reserved, spent, unknown) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT (run, channel) DO UPDATE SET total = total + excluded.total, "
                "reserved = reserved + excluded.reserved, spent = spent + excluded.spent, "
                "unknown = max(unknown, excluded.unknown)",
                (row.number, move.channel, move.total, move.reserved, move.spent, int(move.unknown)),
            )
        if change.cursor is not None and row.conversation is not None:
            db.rows(
                "INSERT INTO hf_conversations (tenant, conversation, last_turn, harness, cursor) "
                "VALUES (?, ?, 0, ?, ?) ON CONFLICT (tenant, conversation) "
                "DO UPDATE SET harness = excluded.harness, cursor = excluded.cursor",
                (row.tenant, row.conversation, *change.cursor),
            )

    def _refusal(self, db: Db) -> Outcome:
        lease, change = self._lease, self._change
        found = db.rows(
            "SELECT owner, fence, last_seq, inbox_seq, control_seq FROM hf_runs WHERE number = ?", (lease.row.number,)
        )
        if not found or found[0][:2] != (self._values[6], lease.fence):
            return LeaseLost()
        _, _, last_seq, inbox_seq, control_seq = found[0]
        if last_seq != change.after:
            return HeadMoved(last_seq)
        return InboxMoved(inbox_seq, control_seq)

    def _ending(self) -> Page:
        """Return what a reader would now find of a run that this commit ended."""
        change, to = self._change, self._change.change
        assert to is not None
        last = change.entries[-1]
        row = replace(
            self._lease.row, status=to.status, reason=to.reason, due_at=None, owner=None, last_seq=last.seq,
            head=last.checksum, updated_at=last.at,
        )  # fmt: skip
        before = change.entries[-2].checksum if len(change.entries) > 1 else change.previous
        return Page(row, [last], (), before, False)

    def settled(self, db: Db) -> Outcome | None:
        """Say, under the write lock, whether a COMMIT of unknown outcome took: the head's checksum tells."""
        found = db.rows("SELECT head, last_seq FROM hf_runs WHERE number = ?", (self._lease.row.number,))
        if found and self._change.entries and found[0] == (self._change.head, self._values[0]):
            return Committed(self._values[0])
        return None

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake the run's readers, and whoever it posted to or made claimable."""
        change = self._change
        if outcome.__class__ is not Committed:
            return
        ended = change.change is not None and change.change.status.terminal
        bells.ring(self.run, moved=change.change is not None, ending=self._ending if ended else None)
        for post in change.posts:
            bells.ring(post.run)
        if change.posts or change.children or (change.change is not None and not change.change.status.terminal):
            bells.ring(None)


def create(db: Db, new: NewRun, worker: WorkerId | None, at: int) -> Created | Existing | KeyTaken:
    """Write a run and its first entry, unless its key is known."""
    wanted = new.row
    if wanted.key is not None:
        known = _known_key(db, wanted)
        if known is not None:
            return known
    number = wanted.number or db.take_number()
    owner = db.worker_number(worker) if worker is not None else None
    row = first_row(new, number, claimed=owner is not None)
    fixed, moving = fixed_of(row), moving_of(row)
    db.rows(_INSERT_RUN, (*fixed, *moving, owner, guard(seal(fixed), moving)))
    if wanted.key is not None:
        db.rows(
            "INSERT INTO hf_keys (tenant, key, run, name, digest, conversation) VALUES (?, ?, ?, ?, ?, ?)",
            (wanted.tenant, wanted.key, id_bytes(wanted.run), wanted.name, wanted.digest, wanted.conversation),
        )
    db.entries.append((number, *new.first))
    if new.blobs:
        add_blobs(db, row, [new.first], new.blobs)
    if owner is None or worker is None:
        return Created(row, None)
    row = replace(row, owner=worker)
    return Created(row, Lease(row, worker, row.fence, "started", new.first))


def created(db: Db, new: NewRun, worker: WorkerId | None) -> Created | None:
    """Say whether a create of unknown outcome took: nobody else can have made a run of this id."""
    rows = db.rows(_ONE, (id_bytes(new.row.run),))
    if not rows:
        return None
    row = read_row(rows[0])
    leased = worker is not None and row.owner == worker
    return Created(row, Lease(row, worker, row.fence, "started") if leased and worker else None)


def _known_key(db: Db, wanted: RunRow) -> Existing | KeyTaken | None:
    tombstone = db.rows(
        "SELECT run, name, digest, conversation FROM hf_keys WHERE tenant = ? AND key = ?", (wanted.tenant, wanted.key)
    )
    # Looked up twice, in two trees: damage to one must not start a second run for a key.
    rows = db.rows(SELECT + "WHERE r.tenant = ? AND r.key = ?", (wanted.tenant, wanted.key))
    row = read_row(rows[0]) if rows else None
    if not tombstone and row is None:
        return None
    run, name, digest, conversation = (
        (id_text(tombstone[0][0]), *tombstone[0][1:])
        if tombstone
        else (row.run, row.name, row.digest, row.conversation)  # type: ignore[union-attr]
    )
    pairs = (("name", name, wanted.name), ("input", digest, wanted.digest))
    differs = tuple(what for what, has, wants in pairs if has != wants)
    if conversation != wanted.conversation:
        differs = (*differs, "conversation")
    return KeyTaken(run, differs) if differs else Existing(run, row)


def claim(
    db: Db, worker: WorkerId, serves: Mapping[str, str], now: int, limit: int, runs: Sequence[RunId] | None
) -> list[Lease]:
    """Lease what is due; a damaged row is set aside instead, and a run that makes no progress is quarantined."""
    owner = db.worker_number(worker)
    if owner is None:
        return []
    served = _encode(dict(serves))
    if runs is None:
        found = db.rows(_DUE, (served.decode(), now, limit))
        if len(found) < limit:
            seen = {values[0] for values in found}
            more = db.rows(_POSTED, (served.decode(), limit - len(found)))
            found += [values for values in more if values[0] not in seen]
        rows = [read_row(values) for values in found]
    else:
        rows = [read_row(values) for run in runs for values in db.rows(_ONE, (id_bytes(run),))]
        rows = [row for row in rows if _may_claim(row, serves, now)][:limit]
    leases = []
    for row in rows:
        if row.damage:
            set_aside(db, row, f"damaged: {row.damage}")
        elif row.stalls >= limits.STALLS:
            set_aside(db, row, f"no_progress: {row.stalls} workers died or gave up without a new entry")
        else:
            leases.append(_lease(db, row, worker, owner))
    return leases


def anything_due(connection: apsw.Connection, serves: Mapping[str, str], now: int) -> bool:
    """Say whether a claim would find something."""
    served = _encode(dict(serves)).decode()
    return bool(
        connection.execute(_DUE, (served, now, 1)).fetchall() or connection.execute(_POSTED, (served, 1)).fetchall()
    )


def _may_claim(row: RunRow, serves: Mapping[str, str], now: int) -> bool:
    if row.owner is not None or row.status not in (Status.QUEUED, Status.WAITING):
        return False
    code = serves.get(row.name)
    due = row.due_at is not None and row.due_at <= now
    return code is not None and f"|{code}|" not in row.refused and (due or row.inbox_seq > row.seen_seq)


def _lease(db: Db, row: RunRow, worker: WorkerId, owner: int) -> Lease:
    row = replace(row, owner=worker, fence=Fence(row.fence + 1), attempt=row.attempt + 1, stalls=row.stalls + 1)
    crc = guard(seal(fixed_of(row)), moving_of(row))
    db.rows(_CLAIM, (owner, row.fence, row.attempt, row.stalls, crc, row.number))
    return Lease(row, worker, row.fence, "started" if row.fence == 1 else "claimed")


def set_aside(db: Db, row: RunRow, reason: str) -> None:
    """Take a run out of the way without touching its journal; the others go on."""
    aside = replace(row, status=Status.QUARANTINED, reason=reason, due_at=None)
    # A damaged row keeps its wrong CRC: what is damaged must stay visible.
    crc = None if row.damage else guard(seal(fixed_of(aside)), moving_of(aside))
    db.rows(
        "UPDATE hf_runs SET status = ?, reason = ?, due_at = NULL, owner = NULL, guard = coalesce(?, guard) "
        "WHERE number = ?",
        (str(aside.status), reason, crc, row.number),
    )


def release(db: Db, worker: WorkerId, keep: Sequence[RunId]) -> int:
    """Give up leases without a charge."""
    owner = db.worker_number(worker)
    if owner is None:
        return 0
    kept = {id_bytes(run) for run in keep}
    released = 0
    for values in db.rows(SELECT + "WHERE r.owner = ?", (owner,)):
        row = read_row(values)
        if values[1] in kept:
            continue
        row = replace(row, stalls=max(0, row.stalls - 1))
        crc = values[-3] if row.damage else guard(seal(fixed_of(row)), moving_of(row))
        db.rows(
            "UPDATE hf_runs SET owner = NULL, stalls = ?, guard = ? WHERE number = ?", (row.stalls, crc, row.number)
        )
        released += 1
    return released


def void(db: Db, worker: WorkerId) -> int:
    """Free a dead worker's runs; their due time is still the one they were claimed for."""
    owner = db.worker_number(worker)
    freed = 0
    if owner is not None:
        freed = db.changed("UPDATE hf_runs SET owner = NULL WHERE owner = ?", (owner,))
        db.rows("DELETE FROM hf_workers WHERE number = ?", (owner,))
        db.workers.pop(worker, None)
    # An owner without a row is dead too: rows go only when their leases are gone.
    freed += db.changed(
        "UPDATE hf_runs SET owner = NULL WHERE owner IS NOT NULL AND owner NOT IN (SELECT number FROM hf_workers)"
    )
    return freed


def add_post(db: Db, post: NewPost, at: int) -> Posted | None:
    """Put a post into an inbox; None when there is no such run."""
    rows = db.rows("SELECT number, status, inbox_seq FROM hf_runs WHERE run = ?", (id_bytes(post.run),))
    if not rows:
        return None
    number, status, inbox_seq = rows[0]
    known = db.rows("SELECT seq FROM hf_posts WHERE run = ? AND key = ?", (number, post.key))
    if known:
        return Posted("duplicate", known[0][0])
    if Status(status).terminal:
        return Posted("finished")
    seq = inbox_seq + 1
    db.rows(
        "UPDATE hf_runs SET inbox_seq = ?, control_seq = CASE WHEN ? THEN ? ELSE control_seq END WHERE number = ?",
        (seq, int(post.control), seq, number),
    )
    db.rows(
        "INSERT INTO hf_posts (run, seq, kind, key, control, at, enc, body) VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
        (number, seq, post.kind, post.key, int(post.control), at, post.body),
    )
    return Posted("accepted", seq)


def add_chunks(db: Db, lease: Lease, owner: int, chunks: Sequence[NewChunk], at: int) -> bool:
    """Add chunks, stamped with the run's last seq by the fenced insert itself."""
    for chunk in chunks:
        changed = db.changed(
            "INSERT INTO hf_chunks (run, seq, fence, number, step, attempt, offset, at, enc, body) "
            "SELECT number, last_seq, fence, ?, ?, ?, ?, ?, 0, ? FROM hf_runs "
            "WHERE number = ? AND owner = ? AND fence = ?",
            (
                chunk.number,
                chunk.step,
                chunk.attempt,
                chunk.offset,
                at,
                chunk.body,
                lease.row.number,
                owner,
                lease.fence,
            ),
        )
        if changed != 1:
            return False
    return True


def _drop_chunks(db: Db, number: int, steps: Sequence[str]) -> None:
    for step in steps:
        if step == "*":
            db.rows("DELETE FROM hf_chunks WHERE run = ?", (number,))
        else:
            db.rows("DELETE FROM hf_chunks WHERE run = ? AND step = ?", (number, step))


def add_blobs(db: Db, row: RunRow, entries: Sequence[StoredEntry], blobs: Sequence[NewBlob]) -> None:
    """Write blobs and their references in the entry's transaction."""
    at, seq = entries[-1].at, entries[-1].seq
    for blob in blobs:
        key = (row.tenant, bytes.fromhex(blob.digest))
        db.rows(
            "INSERT INTO hf_blobs (tenant, digest, enc, touched_at, body) VALUES (?, ?, 0, ?, ?) "
            "ON CONFLICT (tenant, digest) DO UPDATE SET touched_at = excluded.touched_at",
            (*key, at, blob.body),
        )
        db.rows(
            "INSERT OR IGNORE INTO hf_blob_refs (run, seq, blob) "
            "SELECT ?, ?, id FROM hf_blobs WHERE tenant = ? AND digest = ?",
            (row.number, seq, *key),
        )


def require_posted(posted: Posted | None, run: RunId) -> Posted:
    """Return what became of a post, or raise NotFound."""
    if posted is None:
        raise NotFound(f"run {run}")
    return posted
