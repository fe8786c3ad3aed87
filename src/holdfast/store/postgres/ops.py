"""What goes through the writer, kind by kind: a batch of one kind is one call of a function in the database."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Protocol

from msgspec.structs import replace

from holdfast.core.ids import RunId, WorkerId, id_bytes, id_text
from holdfast.store.bell import Bells
from holdfast.store.page import ending
from holdfast.store.postgres.arrays import Bytes, Ids, Integers, Texts
from holdfast.store.rows import Seal, first_row, fixed_of, guard, moving_of, seal
from holdfast.store.value import (
    Commit,
    Committed,
    Created,
    HeadMoved,
    InboxMoved,
    Lease,
    LeaseLost,
    NewChunk,
    NewRun,
    Outcome,
)

Row = tuple[Any, ...]
_COMMIT: Final = f"SELECT * FROM hf_commit({', '.join(f'${n}' for n in range(1, 33))})"
_COMMIT_TURNS: Final = f"SELECT * FROM hf_commit_turns({', '.join(f'${n}' for n in range(1, 36))})"


def _and_free(commit: str, first: int) -> str:
    """Return a commit that gives slots back too; the commit first, since only with what was accepted."""
    return f"""
    WITH refused AS MATERIALIZED ({commit}), freed AS (
        DELETE FROM hf_tickets t
         USING unnest(${first}::bigint[], ${first + 1}::bigint[], ${first + 2}::bigint[], ${first + 3}::text[])
            AS f(place, run, fence, step)
         WHERE t.run = f.run AND t.fence = f.fence AND t.step = f.step
           AND NOT EXISTS (SELECT 1 FROM refused WHERE refused.place = f.place)
    )
    SELECT * FROM refused
"""


_COMMIT_AND_FREE: Final = _and_free(_COMMIT, 33)
_COMMIT_TURNS_AND_FREE: Final = _and_free(_COMMIT_TURNS, 36)
_CREATE: Final = f"SELECT * FROM hf_create({', '.join(f'${n}' for n in range(1, 32))})"
_CHUNK: Final = """
    WITH held AS (
        SELECT r.number, r.last_seq, r.fence, c.*
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::bigint[], $7::bigint[],
                      $8::bigint[], $9::bytea[])
            AS c(run, owner, held, nth, step, attempt, place, at, body)
          JOIN hf_runs r ON r.number = c.run AND r.owner + 0 = c.owner AND r.fence = c.held FOR SHARE OF r
    ), added AS (
        INSERT INTO hf_chunks (run, seq, fence, number, step, attempt, "offset", at, enc, body)
        SELECT number, last_seq, fence, nth, step, attempt, place, at, 0, body FROM held ON CONFLICT DO NOTHING
    )
    SELECT DISTINCT number FROM held
"""
LOCK: Final = "SELECT 1 FROM hf_runs WHERE number = ANY($1) ORDER BY number FOR NO KEY UPDATE"
# A statement of its own: what is joined to a row that was waited for is as old as the wait.
TAKEN: Final = """
    SELECT r.number, r.guard, e.checksum FROM unnest($1::bigint[], $2::bigint[]) AS c(number, seq)
      JOIN hf_runs r ON r.number = c.number LEFT JOIN hf_entries e ON e.run = c.number AND e.seq = c.seq
"""


class Op(Protocol):
    """A write for one run."""

    @property
    def run(self) -> RunId:
        """The run; its ops stay in order."""
        ...

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake whoever listens in this process for what this op did."""
        ...


class CommitOp:
    """A commit of entries and a row's new state; whatever else becomes true with it makes it one for itself."""

    __slots__ = ("again", "change", "lease", "owner", "run", "values")

    def __init__(self, lease: Lease, change: Commit, owner: int | None, sealed: Seal) -> None:
        self.lease, self.change, self.owner, self.run = lease, change, owner, lease.row.run
        last = change.entries[-1] if change.entries else None
        seq, at = (last.seq, last.at) if last else (change.after, lease.row.updated_at)
        if change.progress:
            sealed.stalls = 0
        crc = sealed.after(at, seq, change.head, sealed.stalls, change.change)
        to = change.change
        row = (None,) * 5 if to is None else (str(to.status), to.reason, to.due_at, to.refused, to.seen_seq)
        self.values = (
            lease.row.number, owner, lease.fence, change.after, seq, change.head, at, sealed.stalls, crc,
            change.control, change.inbox, *row,
        )  # fmt: skip

    @property
    def alone(self) -> bool:
        """True when it makes more true than entries and a row."""
        change = self.change
        return bool(change.posts or change.children or change.blobs or change.budget or change.cursor)

    def committed(self) -> Committed:
        """Return what its caller is told once it is on disk."""
        return Committed(self.values[4])

    def refusal(self, found: Row) -> Outcome:
        """Return why it was refused, from what stands in the row instead."""
        _, owner, fence, last_seq, inbox_seq, control_seq = found
        if owner is None or (owner, fence) != (self.owner, self.lease.fence):
            return LeaseLost()
        if last_seq != self.change.after:
            return HeadMoved(last_seq)
        return InboxMoved(inbox_seq, control_seq)

    def took(self, found: Row) -> bool:
        """Say whether a commit of unknown outcome took: its last entry is there, or the row as it leaves it."""
        _, crc, checksum = found
        return bool(checksum == self.change.head if self.change.entries else crc == self.values[8])

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake the run's readers, and whoever it posted to or made claimable."""
        change = self.change
        if outcome.__class__ is not Committed:
            return
        to = change.change
        ended = to is not None and to.status.terminal
        bells.ring(self.run, moved=to is not None, ending=partial(ending, self.lease, change) if ended else None)
        for post in change.posts:
            bells.ring(post.run)
        if change.posts or change.children or self.makes_claimable:
            bells.ring(None)

    @property
    def makes_claimable(self) -> bool:
        """True when somebody may claim the run after it, or the turn behind it."""
        to = self.change.change
        return to is not None and (not to.status.terminal or self.lease.row.conversation is not None)


class CreateOp:
    """A new run with its first entry."""

    __slots__ = ("_asked", "again", "new", "owner", "row", "run", "worker")

    def __init__(self, new: NewRun, number: int, worker: WorkerId | None, owner: int | None) -> None:
        self.new, self.owner, self.run = new, owner, new.row.run
        self.worker = worker if owner is not None else None
        self._asked = (self.worker, owner)
        self.row = first_row(new, number, claimed=owner is not None)
        self.again = False
        """True once nobody knows what became of a first try."""

    @property
    def alone(self) -> bool:
        """True when blobs or a budget come with it, or when it is the turn of a conversation."""
        return bool(self.new.blobs or self.new.budget or self.new.row.conversation is not None)

    def take_turn(self, turn: int, *, behind: bool) -> None:
        """Be that turn of the conversation; one that has to wait is nobody's."""
        self.worker, self.owner = (None, None) if behind else self._asked
        row = replace(self.new.row, turn=turn, behind=behind)
        self.row = first_row(replace(self.new, row=row), self.row.number, claimed=self.owner is not None)

    def created(self) -> Created:
        """Return what its caller is told once it is on disk."""
        row = replace(self.row, owner=self.worker)
        lease = Lease(row, self.worker, row.fence, "started", self.new.first) if self.worker is not None else None
        return Created(row, lease)

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake whoever may claim it."""
        if isinstance(outcome, Created) and outcome.lease is None:
            bells.ring(None)


class ChunkOp:
    """Previews behind a run's last entry."""

    __slots__ = ("again", "at", "chunks", "lease", "owner", "run")
    alone: Final = False

    def __init__(self, lease: Lease, owner: int, chunks: Sequence[NewChunk], at: int) -> None:
        self.lease, self.owner, self.chunks, self.at, self.run = lease, owner, chunks, at, lease.row.run

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake the run's readers."""
        if outcome is True:
            bells.ring(self.run, moved=False)


def commit_call(ops: Sequence[CommitOp]) -> tuple[str, list[Any]]:
    """Return the statement that makes these commits."""
    columns = list(zip(*(op.values for op in ops), strict=True))
    number = {op.run: place for place, op in enumerate(ops, start=1)}
    entries = [(number[op.run], op.lease.row.number, *entry) for op in ops for entry in op.change.entries]
    place, run, seq, kind, version, at, enc, body, checksum = zip(*entries, strict=True) if entries else ((),) * 9
    freed = [
        (place, op.lease.row.number, op.lease.fence, step)
        for place, op in enumerate(ops, start=1)
        if op.change.freed
        for step in op.change.freed
    ]
    values = [
        *(Integers(column) for column in columns[:5]), Bytes(columns[5]),
        *(Integers(column) for column in columns[6:11]), Texts(columns[11]), Texts(columns[12]), Integers(columns[13]),
        Texts(columns[14]), Integers(columns[15]), Integers(place), Integers(run), Integers(seq), Texts(kind),
        Integers(version), Integers(at), Integers(enc), Bytes(body), Bytes(checksum), *_beside(ops),
    ]  # fmt: skip
    plain, and_free = _COMMIT, _COMMIT_AND_FREE
    if any(op.lease.row.conversation is not None for op in ops):
        # All of them together: rows lock by number, whether they are turns or not.
        plain, and_free = _COMMIT_TURNS, _COMMIT_TURNS_AND_FREE
        rows = [op.lease.row for op in ops]
        values += [
            Texts([row.tenant for row in rows]), Texts([row.conversation for row in rows]),
            Integers([row.turn for row in rows]),
        ]  # fmt: skip
    if not freed:
        return plain, values
    at_place, of_run, fence, step = zip(*freed, strict=True)
    return and_free, [*values, Integers(at_place), Integers(of_run), Integers(fence), Texts(step)]


def _beside(ops: Sequence[CommitOp]) -> list[Any]:
    """Return the chunks that are dropped and the posts that are consumed; few commits have any."""
    drops: list[Any] = []
    consumed: list[Any] = []
    for place, op in enumerate(ops, start=1):
        number = op.values[0]
        drops += [(place, number, None if step == "*" else step) for step in op.change.drop]
        consumed += [(place, number, seq, op.values[4]) for seq in op.change.consumed]
    of_drops = list(zip(*drops, strict=True)) if drops else [(), (), ()]
    of_posts = zip(*consumed, strict=True) if consumed else [(), (), (), ()]
    return [
        Integers(of_drops[0]), Integers(of_drops[1]), Texts(of_drops[2]), *(Integers(column) for column in of_posts)
    ]  # fmt: skip


def commit_outcomes(ops: Sequence[CommitOp], refused: Sequence[Row]) -> list[Any]:
    """Return what became of these commits."""
    outcomes: list[Any] = [op.committed() for op in ops]
    for found in refused:
        outcomes[found[0] - 1] = ops[found[0] - 1].refusal(found)
    return outcomes


def create_call(ops: Sequence[CreateOp]) -> tuple[str, list[Any]]:
    """Return the statement that creates these runs."""
    rows = []
    for op in ops:
        fixed, moving, first = fixed_of(op.row), moving_of(op.row), op.new.first
        crc = guard(seal(fixed), moving)
        rows.append((*fixed, *moving, op.owner, crc, first.kind, first.version, first.at, first.enc, first.body))
    columns = list(zip(*rows, strict=True))
    kinds = (
        Integers, Ids, Texts, Texts, Texts, Texts, Texts, Integers, Texts, Ids, Ids, Texts, Integers, Integers,
        Integers, Texts, Texts, Integers, Integers, Bytes, Integers, Integers, Integers, Texts, Integers, Integers,
        Texts, Integers, Integers, Integers, Bytes,
    )  # fmt: skip
    return _CREATE, [kind(column) for kind, column in zip(kinds, columns, strict=True)]


class Taken:
    """What a key that was used before stands for."""

    __slots__ = ("conversation", "digest", "name", "run")

    def __init__(self, run: RunId, name: str, digest: str, conversation: str | None) -> None:
        self.run, self.name, self.digest, self.conversation = run, name, digest, conversation


def create_outcomes(ops: Sequence[CreateOp], others: Sequence[Row]) -> list[Any]:
    """Return what became of these creations: `Created`, or what the key was taken for."""
    outcomes: list[Any] = [op.created() for op in ops]
    for place, run, name, digest, conversation in others:
        # A retry of a creation whose answer was lost finds its own run.
        if not (ops[place - 1].again and id_text(run) == ops[place - 1].run):
            outcomes[place - 1] = Taken(id_text(run), name, digest, conversation)
    return outcomes


def chunk_call(ops: Sequence[ChunkOp]) -> tuple[str, list[Any]]:
    """Return the statement that adds these chunks, each stamped with its run's last seq by the insert itself."""
    rows = [
        (op.lease.row.number, op.owner, op.lease.fence, c.number, c.step, c.attempt, c.offset, op.at, c.body)
        for op in ops
        for c in op.chunks
    ]
    kinds = (Integers, Integers, Integers, Integers, Texts, Integers, Integers, Integers, Bytes)
    return _CHUNK, [kind(column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)]


def chunk_outcomes(ops: Sequence[ChunkOp], held: Sequence[Row]) -> list[Any]:
    """Return whether each run's lease was still held."""
    numbers = {number for (number,) in held}
    return [op.lease.row.number in numbers for op in ops]


KINDS: Final[tuple[tuple[type[Any], Any, Any], ...]] = (
    (CreateOp, create_call, create_outcomes),
    (ChunkOp, chunk_call, chunk_outcomes),
    (CommitOp, commit_call, commit_outcomes),
)
"""Each kind with how a batch of it is asked for and answered, in the order in which a batch of several does them."""

__all__ = ["KINDS", "LOCK", "TAKEN", "ChunkOp", "CommitOp", "CreateOp", "Op", "Taken", "id_bytes"]
