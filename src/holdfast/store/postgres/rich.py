"""Commits that make more true than entries and a row, each in a transaction of its own."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.checksum import StoredEntry
from holdfast.core.ids import id_bytes
from holdfast.store.postgres.arrays import Bytes, Id, Ids, Integers, Texts
from holdfast.store.postgres.connection import Async, Names, Plain
from holdfast.store.postgres.ops import (
    CommitOp,
    CreateOp,
    commit_call,
    commit_outcomes,
    create_call,
    create_outcomes,
)
from holdfast.store.postgres.writer import Refused
from holdfast.store.rows import SELECT, post_guard, read_row
from holdfast.store.start import keyless
from holdfast.store.value import Busy, Committed, Created, NewBlob, NewPost, NewRun, RunRow

Statement = tuple[str, Sequence[Any]]
_LOCK_ALL: Final = """
    SELECT 1 FROM hf_runs WHERE number = $1 OR run = ANY($2) ORDER BY number FOR NO KEY UPDATE
"""
POST: Final = "SELECT place, outcome, seq FROM hf_post($1, $2, $3, $4, $5, $6, $7)"
_BLOBS: Final = """
    WITH b AS (
        INSERT INTO hf_blobs (tenant, digest, enc, touched_at, body)
        SELECT $1::text, b.digest, 0, $2::bigint, b.body FROM unnest($3::bytea[], $4::bytea[]) AS b(digest, body)
         ORDER BY b.digest
        -- With its body: whoever stores it again must not rely on bytes that damage has changed since.
        ON CONFLICT (tenant, digest) DO UPDATE SET touched_at = excluded.touched_at, body = excluded.body RETURNING id
    )
    INSERT INTO hf_blob_refs (run, seq, blob) SELECT $5::bigint, $6::bigint, id FROM b ON CONFLICT DO NOTHING
"""
_BUDGET: Final = """
    INSERT INTO hf_budgets AS b (run, channel, total, reserved, spent, unknown)
    VALUES ($1::bigint, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::boolean)
    ON CONFLICT (run, channel) DO UPDATE SET total = b.total + excluded.total,
       reserved = b.reserved + excluded.reserved, spent = b.spent + excluded.spent,
       unknown = b.unknown OR excluded.unknown
"""
# Asked for twice, since the first answer was lost, it is opened once.
OPEN_ACCOUNT: Final = """
    INSERT INTO hf_budgets (run, channel, total, reserved, spent, unknown)
    VALUES ($1::bigint, $2::text, $3::bigint, 0, 0, false) ON CONFLICT DO NOTHING
"""
BUDGET: Final = """
    SELECT b.channel, b.total, b.reserved, b.spent, b.unknown FROM hf_budgets b JOIN hf_runs r ON r.number = b.run
     WHERE r.run = ANY($1)
"""
# A conversation is bound to its first harness, whatever another one's commit says.
_CURSOR: Final = """
    INSERT INTO hf_conversations AS c (tenant, conversation, last_turn, harness, cursor)
    VALUES ($1::text, $2::text, 0, $3::text, $4::bytea)
    ON CONFLICT (tenant, conversation) DO UPDATE SET harness = excluded.harness, cursor = excluded.cursor
     WHERE c.harness IS NULL OR c.harness = excluded.harness
"""


TAKE_TURN: Final = "SELECT turn, behind FROM hf_take_turn($1, $2, $3)"
BEHIND: Final = "UPDATE hf_runs SET behind = 1 WHERE number = $1"
_ALIVE: Final = "SELECT 1 FROM hf_workers WHERE number = $1 FOR KEY SHARE"
_MADE: Final = f"{SELECT} WHERE r.run = $1"


def post_values(posts: Sequence[NewPost], at: int) -> list[Any]:
    """Return what `hf_post` is called with."""
    raw = [(id_bytes(post.run), int(post.control), post) for post in posts]
    return [
        Ids([run for run, _, _ in raw]),
        Texts([post.kind for post in posts]),
        Texts([post.key for post in posts]),
        Integers([control for _, control, _ in raw]),
        Integers([at] * len(posts)),
        # The seq is given by the database and so not in the CRC; a gap in the inbox shows by itself.
        Integers([post_guard(run, 0, p.kind, p.key, control, at, 0, p.body) for run, control, p in raw]),
        Bytes([post.body for post in posts]),
    ]


def blob_call(row: RunRow, entries: Sequence[StoredEntry], blobs: Sequence[NewBlob]) -> Statement:
    """Return the statement that writes blobs and their references with these entries."""
    kept = {blob.digest: blob.body for blob in blobs}
    digests = Bytes([bytes.fromhex(digest) for digest in kept])
    # Whichever of the entries names them: a fork that has the last of a few must not lose what the first one stored.
    at, seq = entries[-1].at, entries[0].seq
    return _BLOBS, [row.tenant, at, digests, Bytes(list(kept.values())), row.number, seq]


def _with_creation(op: CreateOp) -> list[Statement]:
    """Return what is written with a new run beside its row and its first entry."""
    blobs = [blob_call(op.row, [op.new.first], op.new.blobs)] if op.new.blobs else []
    behind = [(BEHIND, [op.row.number])] if op.row.behind else []
    return [*behind, *blobs, *((OPEN_ACCOUNT, [op.row.number, move.channel, move.total]) for move in op.new.budget)]


class Rich:
    """Does such ops inside a transaction that is open on the connection."""

    def __init__(self, names: Names, take_number: Callable[[], int]) -> None:
        self._names, self._take_number = names, take_number

    async def __call__(self, connection: Async, op: Any) -> Any:
        """Do it and return its outcome.

        Raises:
            Refused: nothing of it may become true.
        """
        if isinstance(op, CreateOp):
            return await self._create(connection, op)
        assert isinstance(op, CommitOp)
        if op.change.posts:
            targets = Ids([id_bytes(post.run) for post in op.change.posts])
            await connection.execute(self._names(_LOCK_ALL), [op.lease.row.number, targets])
        statement, values = commit_call([op])
        rows = await (await connection.execute(self._names(statement), values, binary=True)).fetchall()
        (outcome,) = commit_outcomes([op], rows)
        if not isinstance(outcome, Committed):
            raise Refused(outcome)
        children = [child for child in self._children(op) if child.new.row.conversation is None]
        for turn in op.change.children:
            if turn.row.conversation is not None:
                await self._add_turn(connection, turn)
        async with connection.pipeline():
            for statement, given in self.statements(op, children):
                await connection.execute(self._names(statement), given)
        return outcome

    async def _create(self, connection: Async, op: CreateOp) -> Any:
        if op.new.row.conversation is not None:
            if op.again and (found := await self._ask(connection, _MADE, [Id(id_bytes(op.run))])):
                row = read_row(found[0])
                op.take_turn(row.turn or 0, behind=row.owner is None)
                return replace(op.created(), row=row)
            await self._take_turn(connection, op)
        (outcome,) = create_outcomes([op], await self._ask(connection, *create_call([op])))
        if not isinstance(outcome, Created):
            raise Refused(outcome)  # with it goes the number of a turn
        if op.new.if_idle and op.row.behind:
            raise Refused(Busy())
        for statement, given in _with_creation(op):
            await connection.execute(self._names(statement), given)
        return outcome

    async def _add_turn(self, connection: Async, new: NewRun) -> None:
        """Create the turn that comes of another's ending; without its key where that stands for something else."""
        op = CreateOp(new, self._take_number(), None, None)
        await connection.execute("SAVEPOINT turn")
        await self._take_turn(connection, op)
        (outcome,) = create_outcomes([op], await self._ask(connection, *create_call([op])))
        if isinstance(outcome, Created):
            for statement, given in _with_creation(op):
                await connection.execute(self._names(statement), given)
            await connection.execute("RELEASE SAVEPOINT turn")
            return
        # Whoever took the key, it may have been after a look: with the savepoint goes the number of the turn.
        await connection.execute("ROLLBACK TO SAVEPOINT turn")
        row = new.row
        if (outcome.name, outcome.digest, outcome.conversation) != (row.name, row.digest, row.conversation):
            await self._add_turn(connection, keyless(new))

    async def _take_turn(self, connection: Async, op: CreateOp) -> None:
        """Number the run under its conversation's lock; the worker is locked before, as by whoever declares it dead."""
        if op.owner is not None:
            await self._ask(connection, _ALIVE, [op.owner])
        row = op.new.row
        values = [row.tenant, row.conversation, op.row.number]
        [(turn, behind)] = await self._ask(connection, TAKE_TURN, values)
        op.take_turn(turn, behind=bool(behind))

    async def _ask(self, connection: Async, statement: str, values: Sequence[Any]) -> Sequence[Any]:
        return await (await connection.execute(self._names(statement), values, binary=True)).fetchall()

    def write(self, connection: Plain, op: CommitOp) -> Any:
        """Do a commit inside a plain connection's transaction.

        Raises:
            Refused: nothing of it may become true.
        """
        statement, values = commit_call([op])
        (outcome,) = commit_outcomes([op], connection.execute(self._names(statement), values, binary=True).fetchall())
        if not isinstance(outcome, Committed):
            raise Refused(outcome)
        for statement, given in self.statements(op, self._children(op)):
            connection.execute(self._names(statement), given)
        return outcome

    def _children(self, op: CommitOp) -> list[CreateOp]:
        return [CreateOp(child, self._take_number(), None, None) for child in op.change.children]

    def statements(self, op: CommitOp, children: Sequence[CreateOp]) -> list[Statement]:
        """Return what a commit does beside its entries and its row, in order."""
        change, row = op.change, op.lease.row
        at = op.values[6]
        made: list[Statement] = []
        if change.blobs:
            made.append(blob_call(row, change.entries, change.blobs))
        for creation in children:
            made += [create_call([creation]), *_with_creation(creation)]
        if change.posts:
            made.append((POST, post_values(change.posts, at)))
        for move in change.budget:
            made.append(
                (_BUDGET, [row.number, move.channel, move.total, move.reserved, move.spent, bool(move.unknown)])
            )
        if change.cursor is not None and row.conversation is not None:
            made.append((_CURSOR, [row.tenant, row.conversation, *change.cursor]))
        return made
