"""Group commit: commits of different runs share one transaction and one fsync, each acknowledged only after it."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, Protocol

import apsw

from holdfast.core.errors import HoldfastError, StoreClosed, StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.store import point
from holdfast.store.answer import Answer, Failure
from holdfast.store.bell import Bells, Word
from holdfast.store.clock import Clock
from holdfast.store.sqlite.connection import BUSY_MS, is_busy, translate
from holdfast.store.sqlite.database import Db

_MOST_IN_BATCH: Final = 512
_IN_PLACE: Final = 4


class Op(Protocol):
    """Something to do inside a write transaction, perhaps for one run."""

    @property
    def run(self) -> RunId | None:
        """The run it is for."""
        ...

    @property
    def quiet(self) -> bool:
        """True when only readers of its run's entries care."""
        ...

    def apply(self, db: Db) -> Any:
        """Do it and return its outcome."""
        ...

    def settled(self, db: Db) -> Any:
        """After a COMMIT of unknown outcome: return the outcome if it took, None if it did not."""
        ...

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake whoever listens for what this op did."""
        ...


class Do:
    """An op from a function; `alone` keeps it out of everybody's batch."""

    __slots__ = ("_rings", "_settled", "_words", "_work", "alone", "run")
    quiet: Final = False

    def __init__(
        self,
        work: Callable[[Db], Any],
        *,
        rings: Sequence[RunId | None] = (),
        words: Sequence[Word] = (),
        settled: Callable[[Db], Any] | None = None,
        run: RunId | None = None,
        alone: bool = False,
    ) -> None:
        self._work, self._rings, self._words = work, rings, words
        self._settled, self.run, self.alone = settled, run, alone

    def apply(self, db: Db) -> Any:
        """Call the function."""
        return self._work(db)

    def settled(self, db: Db) -> Any:
        """Where nothing tells whether it took, its caller hears of the failure and asks again."""
        return self._settled(db) if self._settled is not None else None

    def ring(self, bells: Bells, outcome: Any) -> None:
        """Wake those it was made with."""
        for run in self._rings:
            bells.ring(run)
        for word in self._words:
            bells.tell(word)


Item = tuple[Op, Answer]


class Writer:
    """The queue in front of a store's only writing connection.

    Ops queued in one turn of the event loop form a batch. Its statements run on the loop's thread, where they find the
    interpreter's lock free; only the COMMIT, which waits for the disk, goes to the writer's thread, so that the loop
    gathers the next batch meanwhile. A batch of one is committed in place: the hop would cost more than it frees.
    """

    def __init__(
        self, path: str, reopen: Callable[[], apsw.Connection], bells: Bells, foreign: Callable[[], None], clock: Clock
    ) -> None:
        self._path, self._reopen, self._bells, self._foreign, self._clock = path, reopen, bells, foreign, clock
        self._db: Db | None = Db(reopen(), clock)
        self._loop = asyncio.get_running_loop()
        self._queue: list[Item] = []
        self._scheduled = False
        self._busy = False
        self._closed = False
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._version = 0
        self._alone = 0
        """How many more ops are committed in place before the next is made to wait for company."""

    def submit(self, op: Op, *, wait_a_turn: bool = False) -> Answer:
        """Queue `op` and return its outcome to be; `wait_a_turn` lets what its caller starts next join the batch."""
        if self._closed:
            raise StoreClosed(self._path)
        future = Answer(loop=self._loop)
        self._queue.append((op, future))
        if not self._scheduled and not self._busy:
            if wait_a_turn:
                self._scheduled = True
                self._idle.clear()
                self._loop.call_soon(self._loop.call_soon, self._flush)
            elif self._alone > 0:
                # Nobody else has written for a while: commit in place, and look for company every few times.
                self._alone -= 1
                self._begin_batch(self._next_batch())
            else:
                self._schedule()
        return future

    def expect_company(self) -> None:
        """Let what comes next wait for others: several runs are about to write."""
        self._alone = 0

    def _schedule(self) -> None:
        self._scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Commit what was queued in this turn of the loop."""
        self._scheduled = False
        if self._queue and not self._busy:
            batch = self._next_batch()
            self._alone = _IN_PLACE if not self._queue and _of_one_run(batch) else 0
            self._begin_batch(batch)

    def _begin_batch(self, batch: list[Item]) -> None:
        """Execute a batch's statements here, and see that it is committed."""
        if getattr(batch[0][0], "alone", False):
            self._hand_over(batch, lambda: self._run(batch))
            return
        try:
            db = self._begin(patient=False)
        except apsw.Error as error:
            if is_busy(error):
                # Somebody else's transaction must not hold up the event loop: wait for it on the thread.
                self._hand_over(batch, lambda: self._run(batch))
            else:
                self._settle(batch, self._failures(batch, error))
            return
        except (HoldfastError, OSError) as error:
            self._settle(batch, self._failures(batch, error))
            return
        try:
            outcomes = self._apply(db, batch)
        except BaseException as interrupt:
            # Those who wait for an answer cannot be cancelled, so they get one even from a program that is ending.
            self._settle(batch, self._failures(batch, StoreUnavailable(f"interrupted by {type(interrupt).__name__}")))
            raise
        if outcomes is None:
            self._hand_over(batch, lambda: self._one_by_one(batch))
        elif self._alone or len(batch) == 1:
            self._settle(batch, self._commit(db, batch, outcomes))
        else:
            self._hand_over(batch, lambda: self._commit(db, batch, outcomes))

    def _next_batch(self) -> list[Item]:
        queue = self._queue
        size = min(len(queue), _MOST_IN_BATCH)
        for place in range(size):
            if getattr(queue[place][0], "alone", False):
                size = max(place, 1)
                break
        batch, self._queue = queue[:size], queue[size:]
        return batch

    def _hand_over(self, batch: list[Item], call: Callable[[], Sequence[Any]]) -> None:
        """Make the batch's outcomes on the writer's thread."""
        self._busy = True
        self._idle.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="holdfast writer", daemon=True)
            self._thread.start()

        def work() -> None:
            try:
                outcomes = call()
            except BaseException as error:
                # Nothing may end this thread: every run of the process would wait for it.
                outcomes = self._failures(batch, error)
            with contextlib.suppress(RuntimeError):  # the loop is gone; what is committed is committed
                self._loop.call_soon_threadsafe(self._deliver, batch, outcomes)

        self._calls.put(work)

    def _serve(self) -> None:
        while (work := self._calls.get()) is not None:
            work()

    def _deliver(self, batch: list[Item], outcomes: Sequence[Any]) -> None:
        self._busy = False
        self._settle(batch, outcomes)

    def _settle(self, batch: list[Item], outcomes: Sequence[Any]) -> None:
        if self._bells:
            heard = self._bells.heard
            for (op, _), outcome in zip(batch, outcomes, strict=True):
                if not op.quiet or op.run in heard:
                    op.ring(self._bells, outcome)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            future.settle(outcome)
        if not self._queue:
            self._idle.set()
        elif not self._scheduled:
            self._schedule()

    def _begin(self, *, patient: bool) -> Db:
        db = self._open()
        if patient:
            db.cursor.execute("BEGIN IMMEDIATE")
            self._look(db)
            return db
        db.connection.set_busy_timeout(0)
        try:
            db.cursor.execute("BEGIN IMMEDIATE")
        finally:
            db.connection.set_busy_timeout(BUSY_MS)
        return db

    def _run(self, batch: list[Item]) -> Sequence[Any]:
        """Do all of a batch where waiting is allowed: on the writer's thread."""
        if len(batch) == 1:
            return self._one_by_one(batch)
        try:
            db = self._begin(patient=True)
        except (apsw.Error, HoldfastError, OSError) as error:
            return self._failures(batch, error)
        outcomes = self._apply(db, batch)
        if outcomes is None:
            return self._one_by_one(batch)
        return self._commit(db, batch, outcomes)

    def _one_by_one(self, batch: list[Item]) -> Sequence[Any]:
        """One member spoilt the batch: each is tried by itself, so that its neighbours lose nothing."""
        outcomes: list[Any] = []
        for op, _ in batch:
            try:
                db = self._begin(patient=True)
                try:
                    outcome = self._apply_all(db, [op])
                except BaseException:
                    self._roll_back(db)
                    raise
            except BaseException as error:
                outcomes.append(Failure(self._blame(error)))
                continue
            outcomes += self._commit(db, [(op, _)], outcome)
        return outcomes

    def _apply(self, db: Db, batch: list[Item]) -> list[Any] | None:
        """Execute a batch's statements; None when one of them failed and all were rolled back."""
        try:
            return self._apply_all(db, [op for op, _ in batch])
        except BaseException as error:
            self._roll_back(db)
            if not isinstance(error, Exception):
                raise
            return None

    def _apply_all(self, db: Db, ops: Sequence[Op]) -> list[Any]:
        point.reached("before")
        outcomes = [op.apply(db) for op in ops]
        db.flush()
        return outcomes

    def _commit(self, db: Db, batch: list[Item], outcomes: Sequence[Any]) -> Sequence[Any]:
        try:
            db.cursor.execute("COMMIT")
        except apsw.Error as error:
            return self._resolve(batch, error)
        point.reached("after")
        return outcomes

    def _failures(self, batch: list[Item], error: BaseException) -> Sequence[Any]:
        return [Failure(self._blame(error))] * len(batch)

    @property
    def idle(self) -> apsw.Connection | None:
        """The writing connection while nothing is being written: its pages are warm, so a look costs no reading."""
        return self._db.connection if self._db is not None and not self._busy else None

    def look(self) -> None:
        """Tell if another process wrote since the last look."""
        if not self._busy and self._db is not None:
            try:
                self._look(self._db)
            except apsw.Error:
                self._version = 0

    def _look(self, db: Db) -> None:
        version = db.rows("PRAGMA data_version")[0][0]
        if version != self._version:
            self._version = version
            self._loop.call_soon_threadsafe(self._foreign)

    def _roll_back(self, db: Db) -> None:
        db.forget()
        try:
            if db.connection.in_transaction:
                db.cursor.execute("ROLLBACK")
        except apsw.Error:
            self._distrust()

    def _blame(self, error: BaseException) -> BaseException:
        """Return what the caller is told, and stop trusting a connection that failed to read or write."""
        if isinstance(error, apsw.IOError | apsw.CorruptError | apsw.NotADBError):
            self._distrust()
        return translate(self._path, error) if isinstance(error, apsw.Error) else error

    def _distrust(self) -> None:
        """Close a connection that failed to read, write or sync; the next batch opens another."""
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(apsw.Error):
                db.connection.close(True)

    def _open(self) -> Db:
        if self._db is None:
            connection = self._reopen()
            try:
                self._make_certain(connection)
            except BaseException:
                connection.close(True)
                raise
            self._db = Db(connection, self._clock)
        return self._db

    @staticmethod
    def _make_certain(connection: apsw.Connection) -> None:
        """After a failed sync: bring what can be read onto the disk, and void what cannot.

        A COMMIT that failed may have left whole frames in the log, which a later recovery would take for committed;
        and pages whose sync failed may be lost although they read back. So write over such frames, then move the
        whole log into the database file, whose pages are thereby written and synced anew.
        """
        # Something that changes: SQLite does not write a page whose bytes stay the same.
        connection.execute("UPDATE hf_store SET next_run = next_run + 1")
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()[0]
        if busy:
            raise StoreUnavailable("a write failed, and other processes keep the log from being made certain")

    def _resolve(self, batch: list[Item], error: apsw.Error) -> Sequence[Any]:
        """A failed COMMIT is an unknown outcome for every member: look again under the lock, never retry blindly."""
        self._distrust()
        outcomes: list[Any] = []
        for op, _ in batch:
            try:
                db = self._open()
                db.cursor.execute("BEGIN IMMEDIATE")
                outcome = op.settled(db)
                db.cursor.execute("COMMIT")
            except (apsw.Error, HoldfastError, OSError) as again:
                self._distrust()
                failed = translate(self._path, error)
                failed.add_note(f"and opening it again failed: {again}")
                outcomes.append(Failure(failed))
                continue
            outcomes.append(Failure(translate(self._path, error)) if outcome is None else outcome)
        return outcomes

    async def close(self) -> None:
        """Finish what is queued, then close the connection."""
        self._closed = True
        await self._idle.wait()
        if self._thread is not None:
            self._calls.put(None)
            await self._loop.run_in_executor(None, self._thread.join)
        self._distrust()


def _of_one_run(batch: list[Item]) -> bool:
    """Say whether a batch is of one op, or of a few of the same run."""
    if len(batch) == 1:
        return True
    run = batch[0][0].run
    return len(batch) <= _IN_PLACE and run is not None and all(op.run == run for op, _ in batch)
