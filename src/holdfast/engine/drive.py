"""What stays the same while one worker drives one run: its journal, its replay, its code's surroundings."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from holdfast.core import entry as e
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, Diverged, Lost, Parked, StoreRefused, StoreUnavailable
from holdfast.core.fold import RunState, fold
from holdfast.core.status import Status
from holdfast.engine.chunks import Chunks
from holdfast.engine.function import StepCode
from holdfast.engine.payload import Secrets
from holdfast.engine.threads import Threads
from holdfast.journal.journal import Journal, load
from holdfast.journal.replay import Replay
from holdfast.store.protocol import Pending, Store, Transaction
from holdfast.store.value import Committed, InboxMoved, Lease, Outcome, RowChange

_REPLAYED_AT_ONCE: Final = 200
_MOST_REFUSALS: Final = 16
Refusal = TypeVar("Refusal", bound=Diverged | Damaged)
T = TypeVar("T")


def refusals(refused: str, token: str) -> str:
    """Return the tokens that a run refuses, with one more; the oldest are forgotten."""
    tokens = [known for known in refused.split("|") if known] + [token]
    return "|" + "|".join(tokens[-_MOST_REFUSALS:]) + "|"


class Surroundings:
    """What a worker gives to every run it drives."""

    def __init__(self, *, deps: Any = None, secrets: Secrets | None = None, log: Any = None) -> None:
        self.deps = deps
        self.secrets = secrets if secrets is not None else Secrets()
        self.threads = Threads()
        self.log = log


class Drive:
    """One run under one lease."""

    def __init__(self, store: Store, lease: Lease, around: Surroundings, code: str, token: str) -> None:
        self.store, self.lease, self.around, self.code, self.token = store, lease, around, code, token
        self.deps, self.secrets, self.threads = around.deps, around.secrets, around.threads
        self.loop = asyncio.get_running_loop()
        self.replay = Replay()
        self.state = RunState()
        self.started: e.RunStarted | None = None
        self.chunks: Chunks | None = None
        self.stopping = False
        self.handing = False
        """True once the run is to be handed over: at its next entry that leaves no effect under way."""
        self.resting = False
        """True once the commit is asked for that ends or parks the run, and gives up the lease."""
        self.suspect = lease.row.stalls > 1
        """True while a run that its last owner left without progress has made none."""
        self.on_progress: Callable[[], None] = _nothing
        self._replayed = 0
        self.refused: Diverged | Damaged | None = None
        """Why the run may not go on, once something it recorded does not fit."""
        self.halted: BaseException | None = None
        """What every verb raises once the code may not act any more: a refusal, a rest, a lost lease, a shutdown."""
        self._missed: BaseException | None = None
        """Why an entry that nobody waited for was not written; what follows it is refused for that reason."""
        self.cancelled_late = False
        """Set when a cancellation came while an entry was being written, and was passed over."""
        self.chance: Callable[[], float] = random.random

    @property
    def log(self) -> Any:
        """A logger bound to the run."""
        return self.around.log.bind(run=self.lease.row.run)

    async def load(self) -> None:
        """Read the journal and make ready to append.

        Raises:
            Damaged: the journal does not add up.
            UnknownEntry: it holds what this version cannot read.
        """

        def take(entry: e.Entry) -> None:
            self.state = fold(self.state, entry)
            self.replay.take(entry)
            if isinstance(entry, e.RunStarted):
                self.started = entry

        lease = self.lease
        if lease.first is not None:
            take(read_entry(lease.row.run, lease.first))
            row = lease.row
        else:
            row = await load(self.store, lease.row.run, take)
        if row.fence != self.lease.fence or row.owner != self.lease.worker:
            raise Lost("the run was claimed by another worker")
        self._check_row()
        self.journal = Journal(self.store, self.lease, row)

    def _check_row(self) -> None:
        row, started = self.lease.row, self.started
        if started is None or (row.name, row.key, row.tenant, row.digest) != (
            started.name, started.key, started.tenant, started.digest,
        ):  # fmt: skip
            raise Damaged(run=row.run, seq=1, what="the row and the first entry do not name the same thing")

    def refuse(self, error: Refusal) -> Refusal:
        """Remember why the run may not go on, so that code which swallows the error cannot act; return it to raise."""
        if self.refused is None:
            self.refused = self.halted = error
        return error

    def halt(self, reason: BaseException) -> BaseException:
        """Keep the code from acting while it unwinds, `finally` blocks included; return the reason to raise."""
        if self.halted is None:
            self.halted = reason
        return reason

    def stop(self) -> None:
        """Let a shutdown end the code without recording anything."""
        self.stopping = True
        self.halt(asyncio.CancelledError())

    def lose(self, why: str) -> None:
        """Let the loss of the lease end the code: nothing more is recorded, whatever the code makes of it."""
        self.stopping = True
        self.halt(Lost(why))

    def hand_over(self) -> NoReturn:
        """Leave the code here, where all that it did is recorded, so that another worker may go on with it.

        Raises:
            CancelledError: always, as at a shutdown.
        """
        self.stop()
        raise asyncio.CancelledError

    async def replayed(self) -> None:
        """Count a replayed step, and now and then let the runs beside this one take their turn."""
        self._replayed += 1
        if self._replayed % _REPLAYED_AT_ONCE == 0:
            await asyncio.sleep(0)

    def resumed(self) -> None:
        """Write that this worker took the run up; what follows is behind it."""
        lease = self.lease
        entry = e.RunResumed(
            worker=lease.worker, fence=lease.fence, attempt=lease.row.attempt, why=lease.why, code=self.code
        )
        self.write_soon(entry, progress=False, drop=("*",))

    # Writing

    async def write(self, *entries: e.Entry, guarded: bool = False, **rest: Any) -> None:
        """Append and return when it is on disk.

        A cancellation that comes meanwhile comes too late: the fact is written, and the code must see what a replay
        will see. Only a shutdown still ends the wait.

        Raises:
            Lost: the lease is gone.
        """
        intent = entries[-1].__class__ is e.StepStarted
        if self.handing and intent:
            self.hand_over()
        while not await self.written(self.journal.append(*entries, guarded=guarded, **rest)):
            pass
        if self.handing and not intent:
            self.hand_over()

    async def written(self, waiting: Pending[Outcome]) -> bool:
        """Return True when a commit is on disk, False when a post came between and it must be queued again.

        Raises:
            Lost: the lease is gone, or the store does not answer.
        """
        try:
            try:
                outcome = await waiting
            except asyncio.CancelledError:
                outcome = self._late(waiting)
        except (StoreUnavailable, StoreRefused) as error:
            # Nothing is known of what the store holds now: the code must not go on, and its run has not failed.
            raise self.halt(Lost(f"the store does not answer: {error}")) from error
        if outcome.__class__ is Committed:
            if self.suspect:
                self.acquit()
            return True
        if isinstance(outcome, InboxMoved):
            self._saw(outcome)
            return False
        raise self.halt(Lost(f"the lease of run {self.lease.row.run} is gone")) from self._missed

    def acquit(self) -> None:
        """Note that a run which its last owner left without progress has made some."""
        self.suspect = False
        self.on_progress()

    def _late(self, waiting: Pending[Outcome]) -> Outcome:
        """Return the outcome of a write that a cancellation interrupted: it was queued, so it was written."""
        if self.stopping or not waiting.done():
            raise asyncio.CancelledError
        self.cancelled_late = True
        return waiting.result()

    async def transact(
        self, work: Callable[[Transaction], e.Entry], *, deadline_seconds: float, freed: Sequence[str] = ()
    ) -> None:
        """Call `work` in a transaction of the store and append the entry that it returns there."""
        while True:
            # Its own task, so that a cancellation of the code cannot part the transaction from its outcome.
            waiting = asyncio.ensure_future(self.journal.transact(work, deadline_seconds=deadline_seconds, freed=freed))
            while not waiting.done():
                try:
                    await asyncio.shield(waiting)
                except asyncio.CancelledError:
                    if self.stopping:
                        raise
                    self.cancelled_late = True
                except Exception:
                    break
            try:
                outcome = waiting.result()
            except (StoreUnavailable, StoreRefused) as error:
                raise self.halt(Lost(f"the store does not answer: {error}")) from error
            if isinstance(outcome, Committed):
                if self.suspect:
                    self.acquit()
                if self.handing:
                    self.hand_over()
                return
            if not isinstance(outcome, InboxMoved):
                raise self.halt(Lost(f"the lease of run {self.lease.row.run} is gone")) from self._missed
            self._saw(outcome)

    def _saw(self, moved: InboxMoved) -> None:
        self.journal.control_seq, self.journal.inbox_seq = moved.control_seq, moved.inbox_seq
        self.journal.take_back()

    def write_soon(self, *entries: e.Entry, **rest: Any) -> None:
        """Append without waiting; the next entry's fate is this one's too."""
        waiting = self.journal.append(*entries, **rest)
        if isinstance(waiting, asyncio.Future):
            waiting.add_done_callback(self._heard)

    def _heard(self, waiting: "asyncio.Future[Any]") -> None:
        if not waiting.cancelled():
            self._missed = self._missed or waiting.exception()

    async def park(self, reason: str, *, due_at: int | None, step: str | None = None, detail: str = "") -> NoReturn:
        """Put the run to rest and leave its code.

        Raises:
            Parked: always.
        """
        await self.rest(Status.WAITING, reason, due_at=due_at, step=step, detail=detail)
        raise self.halt(Parked(reason))

    async def rest(
        self, status: Status, reason: str, *, due_at: int | None = None, step: str | None = None, detail: str = "",
        code: str | None = None,
    ) -> None:  # fmt: skip
        """Write where the run rests, and give up the lease."""
        refused = self.lease.row.refused
        if code is not None:
            refused = refusals(refused, self.token)
        entry = e.RunParked(status=status, reason=reason, detail=detail, step=step, due_at=due_at, code=code)
        change = RowChange(
            status=status,
            reason=f"{reason}: {detail}" if detail else reason,
            due_at=due_at,
            refused=refused,
            seen_seq=self.journal.inbox_seq,
        )
        self.resting = True
        # A post that came since the last look refuses this once; being beyond `seen_seq`, it wakes the run at once.
        await self.write(entry, change=change)

    async def finish(self, entry: e.RunFinished, blobs: Sequence[Any] = ()) -> None:
        """Write the ending, and give up the lease."""
        change = RowChange(
            status=entry.status,
            reason=entry.reason,
            refused=self.lease.row.refused,
        )
        self.resting = True
        await self.write(entry, change=change, guarded=True, blobs=blobs, drop=("*",) if self.chunks else ())

    def open_chunks(self) -> Chunks:
        """Return the previews of this lease."""
        if self.chunks is None:
            self.chunks = Chunks(self.store, self.lease, self.secrets, self.loop)
        return self.chunks

    async def answer(self, question: Awaitable[T]) -> T:
        """Return what the store answers to a read.

        Raises:
            Lost: it does not answer; that is no failure of the code that asked.
        """
        try:
            return await question
        except (StoreUnavailable, StoreRefused) as error:
            raise self.halt(Lost(f"the store does not answer: {error}")) from error

    # Performing

    async def perform(self, code: StepCode, args: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call a step function without blocking the event loop, whichever kind it is."""
        if code.is_async:
            return await code.function(*args, **keywords)
        return await self.perform_plain(code.function, args, keywords)

    async def perform_plain(
        self, function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Call a function of either kind, awaiting what it returns if that is awaitable."""
        if inspect.iscoroutinefunction(function):
            return await function(*args, **keywords)
        value = await self.threads.call(lambda: function(*args, **keywords))
        return await value if inspect.isawaitable(value) else value


def _nothing() -> None:
    return None
