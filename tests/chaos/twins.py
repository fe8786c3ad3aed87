"""Deliberately broken twins of Holdfast: each breaks one promise, and the same checks must catch each of them."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from holdfast.core.errors import Misuse
from holdfast.core.ids import id_bytes
from holdfast.engine.doubt import Doubt
from holdfast.engine.effects import StepCall
from holdfast.engine.step import Step
from holdfast.journal.replay import FRESH, Answer, Replay
from holdfast.store import point
from holdfast.store.postgres.ops import CommitOp
from holdfast.store.postgres.writer import Lane
from holdfast.store.rows import post_guard
from holdfast.store.sqlite import SqliteStore, beside, commit, guard, leasing
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.writer import Do, Writer
from holdfast.store.value import Lease, NewChunk, NewPost, Posted
from tests.chaos.talk_twins import TALK_TWINS
from tests.chaos.verb_twins import VERB_TWINS
from tests.chaos.world import World


def apply(twin: str, place: str) -> None:
    """Break this process in the way that `twin` names; an empty name breaks nothing."""
    if twin:
        _TWINS[twin](place)


def options(twin: str) -> dict[str, Any]:
    """Return what a twin's store is opened with."""
    return {"synchronous": "NORMAL"} if twin == "sync_normal" else {}


def _nothing(place: str) -> None:
    """What is broken is how the store is opened."""


def _no_intent(place: str) -> None:
    """A `once` step acts before anything is written."""

    async def intend(self: StepCall, attempt: int) -> int:
        return self.drive.store.now()

    StepCall._intend = intend  # type: ignore[method-assign]


def _no_patience(place: str) -> None:
    """What `verify` did not find is done again at once, though a request may still be under way."""

    async def wait_out(self: Doubt, doubt: Any) -> None:
        return None

    Doubt._wait_out = wait_out  # type: ignore[method-assign]


def _reply_first(place: str) -> None:
    """Commits are acknowledged a moment before they are made."""
    begin, close = Writer._begin, Writer.close

    def finish(db: Db) -> None:
        if db.connection.in_transaction:
            db.cursor.execute("COMMIT")
            point.reached("after")

    def commit(self: Writer, db: Db, batch: Any, outcomes: Sequence[Any]) -> Sequence[Any]:
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.05, finish, db)
        return outcomes

    def begin_when_done(self: Writer, *, patient: bool) -> Db:
        if self._db is not None:
            finish(self._db)
        return begin(self, patient=patient)

    async def close_when_done(self: Writer) -> None:
        await self._idle.wait()
        if self._db is not None:
            finish(self._db)
        await close(self)

    Writer._commit, Writer._begin = commit, begin_when_done  # type: ignore[method-assign]
    Writer.close = close_when_done  # type: ignore[method-assign]
    Writer.idle = property(lambda self: None)  # type: ignore[assignment,method-assign]


def _key_per_attempt(place: str) -> None:
    """Another attempt sends another idempotency key."""
    make = StepCall.step

    def step(self: StepCall, attempt: int) -> Step[Any]:
        made = make(self, attempt)
        if attempt > 1:
            made.idempotency_key += f"-{attempt}"
        return made

    StepCall.step = step  # type: ignore[method-assign]


def _order_alone(place: str) -> None:
    """A replay gives the next record to whatever is asked."""

    def ask(self: Replay, branch: str, key: str, digest: str | None, what: str | None = None) -> Answer:
        records, at = self._branches.get(branch, []), self._asked.get(branch, 0)
        if at == len(records):
            return FRESH
        self._asked[branch] = at + 1
        self._left -= 1
        return records[at].answer

    Replay.ask = ask  # type: ignore[method-assign]


def _no_fence(place: str) -> None:
    """A commit is taken from whoever knows the run's last number, whether or not the run is his."""
    for statements in (commit._PLAIN, commit._OF_TURN):
        for values, sql in statements.items():
            assert "AND owner = ?7 AND fence = ?8" in sql
            statements[values] = sql.replace("AND owner = ?7 AND fence = ?8", "AND ?7 AND ?8")


def _numbered_outside(place: str) -> None:
    """A post takes its number from a look before the transaction that writes it."""

    async def post(self: SqliteStore, post: NewPost) -> Posted:
        row = await self.get(post.run)
        assert row is not None
        seq, at = row.inbox_seq + 1, self.now()

        def write(db: Db) -> Posted:
            db.rows(beside._COUNT_POST, (seq, row.control_seq, row.number))
            crc = post_guard(id_bytes(post.run), seq, post.kind, post.key, 0, at, 0, post.body)
            db.rows(
                "INSERT OR REPLACE INTO hf_posts (run, seq, kind, key, control, at, enc, guard, body) "
                "VALUES (?, ?, ?, ?, 0, ?, 0, ?, ?)",
                (row.number, seq, post.kind, post.key, at, crc, post.body),
            )
            return Posted("accepted", seq)

        posted: Posted = await self._writer.submit(Do(write, rings=(post.run, None)))
        return posted

    SqliteStore.post = post  # type: ignore[method-assign]


def _stamped_early(place: str) -> None:
    """A chunk is stamped when it is made, and inserted when there is time."""

    def chunks(self: SqliteStore, lease: Lease, chunks: Sequence[NewChunk]) -> Awaitable[bool]:
        at = self.now()
        with self._reader.one() as connection:
            number = lease.row.number
            seq = connection.execute("SELECT last_seq FROM hf_runs WHERE number = ?", (number,)).fetchall()[0][0]

        def write(db: Db) -> bool:
            for chunk in chunks:
                db.rows(
                    "INSERT INTO hf_chunks (run, seq, fence, number, step, attempt, offset, at, enc, body) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, ?)",
                    (number, seq, lease.fence, chunk.number, chunk.step, chunk.attempt, chunk.offset, at, chunk.body),
                )
            return True

        async def later() -> bool:
            await asyncio.sleep(0.03)
            done: bool = await self._writer.submit(Do(write, rings=(lease.row.run,)))
            return done

        return asyncio.ensure_future(later())

    SqliteStore.chunks = chunks  # type: ignore[method-assign]


def _second_sqlite(place: str) -> None:
    """Somebody in the process opens the store by another copy of SQLite, and nothing stops him."""
    guard.protect = lambda path: None
    _visit_by_another_copy(place)


def _visit_by_another_copy(place: str) -> None:
    """Let the standard library's SQLite open and close the store while a run is under way."""
    note = World.note

    def visit(self: World, what: str, **facts: Any) -> None:
        note(self, what, **facts)
        if what == "did" and facts["step"] == "count":
            try:
                database = sqlite3.connect(f"{place}/store.db")
                database.execute("SELECT count(*) FROM sqlite_master").fetchall()
                database.close()
            except Misuse:
                note(self, "refused")

    World.note = visit  # type: ignore[method-assign]


def _charges_all(place: str) -> None:
    """After a death the runs that made no progress are driven all at once, so that each is charged for every death."""
    for statement in ("_SOUND", "_SOUND_WORDS"):
        sound = getattr(leasing, statement)
        assert "r.stalls <= 0" in sound
        setattr(leasing, statement, sound.replace("r.stalls <= 0", "r.stalls >= 0"))


def _lost_is_done(place: str) -> None:
    """A commit on PostgreSQL whose reply was lost is taken for done, without a look."""

    async def taken(self: Lane, connection: Any, ops: Sequence[Any]) -> dict[int, Any]:
        return {place: op.committed() for place, op in enumerate(ops) if isinstance(op, CommitOp)}

    Lane._taken = taken  # type: ignore[method-assign]


_TWINS: Final[dict[str, Callable[[str], None]]] = {
    "sync_normal": _nothing,
    "no_intent": _no_intent,
    "no_patience": _no_patience,
    "reply_first": _reply_first,
    "key_per_attempt": _key_per_attempt,
    "order_alone": _order_alone,
    "no_fence": _no_fence,
    "numbered_outside": _numbered_outside,
    "stamped_early": _stamped_early,
    "second_sqlite": _second_sqlite,
    "visited": _visit_by_another_copy,
    "lost_is_done": _lost_is_done,
    "charges_all": _charges_all,
    **VERB_TWINS,
    **TALK_TWINS,
}
