"""What stays the same while one worker drives one run: its journal, its replay, its code's surroundings."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from holdfast.core import entry as e
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, Diverged, Lost, StoreError, StoreRefused, StoreUnavailable
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId
from holdfast.engine.budget import Purse
from holdfast.engine.cancelling import Cancelling
from holdfast.engine.catchup import CatchUp
from holdfast.engine.chunks import Chunks
from holdfast.engine.forgotten import Calls
from holdfast.engine.function import Durable, StepCode
from holdfast.engine.inbox import answers
from holdfast.engine.origin import BEGINNINGS, Origin
from holdfast.engine.outbox import Outbox
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.versions import Versions
from holdfast.engine.waits import Waits
from holdfast.journal.journal import Journal, load
from holdfast.journal.replay import Replay
from holdfast.store.protocol import Pending, Store
from holdfast.store.value import Committed, InboxMoved, Lease, Outcome, Post

_REPLAYED_AT_ONCE: Final = 200
Refusal = TypeVar("Refusal", bound=Diverged | Damaged)
T = TypeVar("T")


class Drive:
    """One run under one lease."""

    loaded = False
    """True once the journal was read and can be written."""
    rehearsing = False
    """True where nothing is performed: where the run rests says nothing of its code."""
    adopting = False
    """True once this code is to take the run over from another version."""
    place = 0
    """The place of this code among the versions of the run's name; 0 where it has none."""
    versions: Versions | None = None
    """The versions that the worker serves; None where nobody's code takes a run over."""
    function: Durable[Any, ...] | None = None
    pausing: Post | None = None
    """Who asked that it be left for a pause."""
    refused: Diverged | Damaged | None = None
    """Why the run may not go on, once something it recorded does not fit."""
    chunks: Chunks | None = None
    over = False
    """True once the code has written the run's ending itself."""
    _missed: BaseException | None = None
    """Why an entry that nobody waited for was not written; what follows it is refused for that reason."""

    def __init__(self, store: Store, lease: Lease, around: Surroundings, code: str, token: str) -> None:
        self.store, self.lease, self.around, self.code, self.token = store, lease, around, code, token
        self.deps, self.secrets, self.threads = around.deps, around.secrets, around.threads
        self.loop = asyncio.get_running_loop()
        self.chance: Callable[[], float] = random.random
        self.replay, self.state, self.origin = Replay(), RunState(), Origin()
        self.catching, self.waits, self.cancelling = CatchUp(self), Waits(self), Cancelling(self)
        self.halted: BaseException | None = None
        """What every verb raises once the code may not act any more: a refusal, a rest, a lost lease, a shutdown."""
        self.calls = Calls()
        self.handing = False
        """True once the run is to be left: at its next entry that leaves no effect under way."""
        self.cancel_asked = False
        """True once somebody asked for the run's end and the journal has it."""
        self.stopping = False
        self.resting = False
        """True once the commit is asked for that ends or parks the run, and gives up the lease."""
        self.suspect = lease.row.stalls > 1
        """True while a run that its last owner left without progress has made none."""
        self.late: set[asyncio.Task[Any]] = set()
        """Tasks whose cancellation came while an entry was being written, and was passed over."""
        self.purse: Purse | None = None
        """What is left of the run's budget; None for a run that has none."""
        self.heeded: set[int] = set()
        """Posts that asked for a pause or for its end; the next pause takes them out of the inbox."""
        self.children: dict[str, RunId] = {}
        """Children that have not settled, by the step that spawned them; they end with this run."""
        self.settled: dict[str, e.ChildSettled] = {}
        """Those that have, since the run was loaded."""
        self.closed: dict[str, e.QuestionAnswered | e.SignalReceived | e.StepCompleted] = {}
        """How callbacks ended since then, by the step that opened them."""
        self.lines: dict[tuple[str, int], Any] = {}
        """Where its steps wait for slots, by limit and priority."""
        self._replayed = 0
        self.task: asyncio.Task[Any] | None = None
        """The code's outermost task."""
        self.on_progress: Callable[[], None] = _nothing
        self.on_spawn: Callable[[Durable[Any, ...], RunId], None] = _nobody
        """Told of every child that has not settled, and of its code."""
        self.crowded: Callable[[], bool] = _never
        """Says whether other runs wait for this one's place."""
        self.draining: Callable[[], bool] = _never

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
            if isinstance(entry, BEGINNINGS):
                self.origin.take(entry)

        lease = self.lease
        if lease.first is not None:
            take(read_entry(lease.row.run, lease.first))
            row = lease.row
        else:
            row = await load(self.store, lease.row.run, take)
        if row.fence != self.lease.fence or row.owner != self.lease.worker:
            raise Lost("the run was claimed by another worker")
        self.origin.check(lease.row)
        self.journal = Journal(self.store, self.lease, row)
        self.outbox = Outbox(self.journal)
        state = self.state
        self.cancel_asked, self.cancelling.reason = bool(state.cancel_seq), state.cancel_reason
        self.children = {step: RunId(child) for step, child in state.children.items()}
        self.purse = Purse(state) if state.accounts else None
        self.loaded = True

    @property
    def unwinding(self) -> bool:
        """True once it is our doing that the code is cancelled: nothing of that is recorded as its own."""
        return self.stopping or self.halted is not None

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

    def raise_lost(self) -> NoReturn:
        """Refuse to go on without the lease."""
        raise self.halt(Lost(f"the lease of run {self.lease.row.run} is gone")) from self._missed

    def unanswered(self, error: StoreError) -> BaseException:
        """Halt the code, since nothing is known of what the store holds now; return the reason to raise."""
        return self.halt(Lost(f"the store does not answer: {error}"))

    async def leave(self) -> None:
        """Leave the code here, where all that it did is recorded, so that another worker may go on with it.

        Returns when the pause that it was to be left for is over before it began. A cancellation that comes meanwhile
        is told by the next verb: of this one a replay will only know that it was done.

        Raises:
            CancelledError: as at a shutdown.
            Parked: the run is paused.
        """
        while self.handing:
            try:
                await self.waits.until("leave", "", due_at=None)
            except asyncio.CancelledError:
                if self.unwinding:
                    raise
                self.mark_late()

    async def replayed(self) -> None:
        """Count a replayed step, and now and then let the runs beside this one take their turn."""
        self._replayed += 1
        if self._replayed % _REPLAYED_AT_ONCE == 0:
            await asyncio.sleep(0)

    # Writing

    async def write(self, *entries: e.Entry, guarded: bool = False, **rest: Any) -> None:
        """Append and return when it is on disk.

        A cancellation that comes meanwhile comes too late: the fact is written, and the code must see what a replay
        will see. Only a shutdown still ends the wait.

        Raises:
            Lost: the lease is gone.
            CancelledError: it was to be an intent, and the run shall end.
        """
        intent = bool(entries) and guarded
        while True:
            if self.handing and intent:
                await self.leave()
            pending = self.outbox.append(*entries, guarded=guarded, **rest)
            if await self.written(pending, progress=rest.get("progress", True)):
                break
            await self.waits.look()
            if intent:
                await self.cancelling.withhold()
        self.waits.inbox.forget(rest.get("consumed", ()))
        if self.handing and not intent:
            await self.leave()

    async def write_if_heard(self, entry: e.QuestionAnswered) -> bool:
        """Append that a question expired unless an answer to it came; say whether it is on disk."""
        # That a post came is known from refusals too, and other branches look: what counts is what was read here.
        inbox, known = self.waits.inbox, -1
        while self.journal.inbox_seq > max(known, inbox.read):
            known = self.journal.inbox_seq
            await inbox.look()
        if any(answers(post, entry.step, entry.shown) for post in inbox.waiting):
            return False
        written = await self.written(self.outbox.append(entry, heard=self.journal.inbox_seq))
        if self.handing and written:
            await self.leave()
        return written

    async def written(self, waiting: Pending[Outcome], *, progress: bool = True) -> bool:
        """Return True when a commit is on disk, False when a post came between and it must be queued again.

        One that is no `progress` leaves the run as suspicious as it was.

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
            raise self.unanswered(error) from error
        if outcome.__class__ is Committed:
            if self.suspect and progress:
                self.acquit()
            return True
        if isinstance(outcome, InboxMoved):
            return False
        self.raise_lost()

    def acquit(self) -> None:
        """Note that a run which its last owner left without progress has made some."""
        self.suspect = False
        self.on_progress()

    def _late(self, waiting: Pending[Outcome]) -> Outcome:
        """Return the outcome of a write that a cancellation interrupted: it was queued, so it was written."""
        if self.unwinding or not waiting.done():
            raise asyncio.CancelledError
        self.mark_late()
        return waiting.result()

    def mark_late(self) -> None:
        """Remember that a cancellation of this task was passed over, since it came too late."""
        task = asyncio.current_task(self.loop)
        if task is not None:
            self.late.add(task)

    def is_late(self) -> bool:
        """Say whether a cancellation of this task was passed over and still stands; it is told once.

        Whoever left its `asyncio.timeout` block meanwhile has taken it back.
        """
        task = asyncio.current_task(self.loop)
        if task is None or task not in self.late:
            return False
        self.late.discard(task)
        return bool(task.cancelling())

    def counts(self, channel: str) -> bool:
        """Say whether the run's budget limits this."""
        return self.purse is not None and channel in self.purse.accounts

    def paid(self, entry: e.Entry) -> dict[str, Any]:
        """Return what an entry moves of the run's budget, to be written with it."""
        return {"budget": self.purse.pay(entry)} if self.purse is not None else {}

    def write_soon(self, *entries: e.Entry, **rest: Any) -> None:
        """Append without waiting; the next entry's fate is this one's too."""
        waiting = self.outbox.append(*entries, **rest)
        if isinstance(waiting, asyncio.Future):
            waiting.add_done_callback(self._heard)

    def _heard(self, waiting: "asyncio.Future[Any]") -> None:
        if not waiting.cancelled():
            self._missed = self._missed or waiting.exception()

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
            raise self.unanswered(error) from error

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


def _nobody(code: Any, child: RunId) -> None:
    return None


def _never() -> bool:
    return False
