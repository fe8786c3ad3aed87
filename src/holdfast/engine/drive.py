"""What stays the same while one worker drives one run: its journal, its replay, its code's surroundings."""

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, TypeVar

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core import entry as e
from holdfast.core.budget import closing
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, Diverged, Lost, StoreRefused, StoreUnavailable, Unwind
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.core.version import adopted, refusing
from holdfast.engine.budget import Purse
from holdfast.engine.catchup import CatchUp
from holdfast.engine.chunks import Chunks
from holdfast.engine.family import farewells
from holdfast.engine.forgotten import Calls
from holdfast.engine.function import Durable, StepCode
from holdfast.engine.inbox import answers
from holdfast.engine.outbox import Outbox
from holdfast.engine.payload import Secrets
from holdfast.engine.threads import Threads
from holdfast.engine.versions import Versions
from holdfast.engine.waits import Waits
from holdfast.journal.journal import Journal, load
from holdfast.journal.replay import Cancelled, Replay
from holdfast.store.protocol import Pending, Store, Transaction
from holdfast.store.value import Committed, InboxMoved, Lease, NewBlob, Outcome, Post, RowChange

_REPLAYED_AT_ONCE: Final = 200
Refusal = TypeVar("Refusal", bound=Diverged | Damaged)
T = TypeVar("T")


class Continued(Unwind):
    """The code goes on from the top with another input."""

    def __init__(self, body: bytes, raw: Raw, blob: e.BlobRef | None, blobs: Sequence[NewBlob]) -> None:
        super().__init__()
        self.body, self.raw, self.blob, self.blobs = body, raw, blob, blobs


class Surroundings:
    """What a worker gives to every run it drives."""

    patience_seconds: float = 1.0
    """A retry due within it is waited for in the process; a later one parks the run."""

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
        self.versions: Versions | None = None
        """The versions that the worker serves; None where nobody's code takes a run over."""
        self.place = 0
        """The place of this code among the versions of the run's name; 0 where it has none."""
        self.replay = Replay()
        self.catching = CatchUp(self)
        self.state = RunState()
        self.started: e.RunStarted | None = None
        self.forked: e.RunForked | None = None
        """Where the run's own entries begin, if it is a fork."""
        self._seeds: list[tuple[int, str]] = []
        """The first entry of each run that wrote the journal, with that run's seed; the last is its own."""
        self.continued: e.RunContinued | None = None
        """What the last generation was begun with, after the first."""
        self.chunks: Chunks | None = None
        self.calls = Calls()
        self.stopping = False
        self.handing = False
        """True once the run is to be left: at its next entry that leaves no effect under way."""
        self.pausing: Post | None = None
        """Who asked that it be left for a pause."""
        self.heeded: set[int] = set()
        """Posts that asked for a pause or for its end; the next pause takes them out of the inbox."""
        self.rehearsing = False
        """True where nothing is performed: where the run rests says nothing of its code."""
        self.loaded = False
        """True once the journal was read and can be written."""
        self.resting = False
        """True once the commit is asked for that ends or parks the run, and gives up the lease."""
        self.suspect = lease.row.stalls > 1
        """True while a run that its last owner left without progress has made none."""
        self.on_progress: Callable[[], None] = _nothing
        self.on_spawn: Callable[[Durable[Any, *tuple[Any, ...]], RunId], None] = _nobody
        """Told of every child that has not settled, and of its code."""
        self._replayed = 0
        self.refused: Diverged | Damaged | None = None
        """Why the run may not go on, once something it recorded does not fit."""
        self.halted: BaseException | None = None
        """What every verb raises once the code may not act any more: a refusal, a rest, a lost lease, a shutdown."""
        self._missed: BaseException | None = None
        """Why an entry that nobody waited for was not written; what follows it is refused for that reason."""
        self.late: set[asyncio.Task[Any]] = set()
        """Tasks whose cancellation came while an entry was being written, and was passed over."""
        self.cancel_asked = False
        """True once somebody asked for the run's end and the journal has it."""
        self.cancel_reason = ""
        self.cancel_told = False
        """True once the code was told that the run shall end."""
        self.cleaned = False
        """True once the code has taken the one step that is left to it then."""
        self.unheeded = 0
        """How often it asked for more than that."""
        self.children: dict[str, RunId] = {}
        """Children that have not settled, by the step that spawned them; they end with this run."""
        self.settled: dict[str, e.ChildSettled] = {}
        """Those that have, since the run was loaded."""
        self.closed: dict[str, e.QuestionAnswered | e.SignalReceived | e.StepCompleted] = {}
        """How callbacks ended since then, by the step that opened them."""
        self._charging: tuple[Sequence[e.Entry], dict[str, Any]] | None = None
        self.purse: Purse | None = None
        """What is left of the run's budget; None for a run that has none."""
        self.waits = Waits(self)
        self.adopting = False
        """True once this code is to take the run over from another version."""
        self.lines: dict[tuple[str, int], Any] = {}
        """Where its steps wait for slots, by limit and priority."""
        self.crowded: Callable[[], bool] = _never
        """Says whether other runs wait for this one's place."""
        self.draining: Callable[[], bool] = _never
        self.task: asyncio.Task[Any] | None = None
        """The code's outermost task."""
        self.function: Durable[Any, *tuple[Any, ...]] | None = None
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
            if isinstance(entry, e.RunStarted | e.RunForked):
                self._seeds.append((entry.seq, entry.seed))
            if isinstance(entry, e.RunStarted):
                self.started = entry
            elif isinstance(entry, e.RunForked):
                self.forked = entry
            elif isinstance(entry, e.RunContinued):
                self.continued = entry

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
        self.outbox = Outbox(self.journal)
        state = self.state
        self.cancel_asked, self.cancel_reason = bool(state.cancel_seq), state.cancel_reason
        self.children = {step: RunId(child) for step, child in state.children.items()}
        self.purse = Purse(state) if state.accounts else None
        self.loaded = True

    def begin_generation(self, generation: int) -> None:
        """Forget what the code recorded: it begins anew."""
        self.replay, self.closed = self.replay.anew(), {}
        self.state = replace(self.state, generation=generation)

    def _check_row(self) -> None:
        row, started = self.lease.row, self.started
        same = started is not None and (row.name, row.tenant, row.digest) == (
            started.name, started.tenant, started.digest,
        )  # fmt: skip
        # A fork has a key only if it took its base's over, and that may have been one itself.
        if started is None or not same or (self.forked is None and row.key != started.key):
            raise Damaged(run=row.run, seq=1, what="the row and the first entry do not name the same thing")

    def seed(self, begun_at: int | None) -> str:
        """Return the seed that belongs to a record: that of the run which wrote its first entry; None: a new one."""
        if len(self._seeds) < 2 or begun_at is None:
            return self.state.seed
        return next(seed for first, seed in reversed(self._seeds) if first <= begun_at)

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

    def tell_cancel(self) -> None:
        """Let the code know that the run shall end: it is cancelled wherever it waits."""
        if not self.cancel_told and self.task is not None and not self.resting:
            self.cancel_told = True
            self.task.cancel()

    async def be_told(self) -> NoReturn:
        """Wait where the code is told that the run shall end.

        Raises:
            CancelledError: always; the branches beside this one have come to their places.
        """
        self.loop.call_soon(self.tell_cancel)
        await self.loop.create_future()
        raise AssertionError("nobody sets it")

    async def left_again(self, left: Cancelled) -> NoReturn:
        """Wait to be cancelled where the code was before."""
        if self.cancel_asked and left.seq > self.replay.cancel_seq:
            self.loop.call_soon(self.tell_cancel)
        await self.loop.create_future()
        raise AssertionError("nobody sets it")

    def tell_soon(self) -> None:
        """Let code that does not ask for anything more be told too, once it has asked for all that was recorded."""
        if not self.cancel_told and not self.replay.replaying:
            self.loop.call_soon(self.tell_cancel)

    def lose(self, why: str) -> None:
        """Let the loss of the lease end the code: nothing more is recorded, whatever the code makes of it."""
        self.stopping = True
        self.halt(Lost(why))

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
                if self.stopping:
                    raise
                self.mark_late()

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

    def version_of(self, what: Durable[Any, *tuple[Any, ...]]) -> tuple[str, int]:
        """Return the version that a function is served with here, and its place; nothing for one that is not."""
        served = self.versions.of(what.name) if self.versions is not None else None
        return (served.code, served.place or 0) if served is not None else ("", 0)

    def adopt(self, entry: e.SpecAdopted) -> None:
        """Let this be written before the code acts; it is withdrawn if the code does not follow what is recorded."""
        self.adopting = True
        self.journal.note(entry)

    @property
    def word(self) -> str:
        """What the row says of the code that the run wants, now that this version drives it."""
        word = self.lease.row.refused
        return adopted(word, self.place) if self.place else word

    def _word_refused(self) -> str:
        """Return the row's word once this code was refused: what it did not take over stays with whoever has it."""
        if any(isinstance(entry, e.SpecAdopted) for entry in self.journal.withdraw()):
            self.adopting, self.place = False, 0
        return refusing(self.word, self.token)

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
            if intent and self.cancel_asked and not self.cleaned:
                await self.loop.create_future()  # until the cancellation reaches this task
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
        written = await self.written(self.outbox.append(entry, heard=True))
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
            raise self.halt(Lost(f"the store does not answer: {error}")) from error
        if outcome.__class__ is Committed:
            if self.suspect and progress:
                self.acquit()
            return True
        if isinstance(outcome, InboxMoved):
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

    def paid(self, entry: e.Entry) -> dict[str, Any]:
        """Return what an entry moves of the run's budget, to be written with it."""
        return {"budget": self.purse.pay(entry)} if self.purse is not None else {}

    async def transact(self, work: Callable[[Transaction], e.Entry], *, deadline_seconds: float, **rest: Any) -> None:
        """Call `work` in a transaction of the store and append the entry that it returns there."""
        while True:
            if self.handing:
                await self.leave()
            # Its own task, so that a cancellation of the code cannot part the transaction from its outcome.
            waiting = asyncio.ensure_future(self._transact(work, deadline_seconds, rest))
            while not waiting.done():
                try:
                    await asyncio.shield(waiting)
                except asyncio.CancelledError:
                    if self.stopping:
                        raise
                    self.mark_late()
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
                    await self.leave()
                return
            if not isinstance(outcome, InboxMoved):
                raise self.halt(Lost(f"the lease of run {self.lease.row.run} is gone")) from self._missed
            await self.waits.look()
            if self.cancel_asked and not self.cleaned:
                await self.loop.create_future()  # until the cancellation reaches this task

    async def _transact(
        self, work: Callable[[Transaction], e.Entry], deadline_seconds: float, rest: dict[str, Any]
    ) -> Outcome:
        await self.outbox.alone()
        try:
            outcome = await self.journal.transact(work, deadline_seconds=deadline_seconds, **rest)
            self.outbox.refused(outcome)
            return outcome
        finally:
            self.outbox.done()

    def write_soon(self, *entries: e.Entry, **rest: Any) -> None:
        """Append without waiting; the next entry's fate is this one's too."""
        waiting = self.outbox.append(*entries, **rest)
        if isinstance(waiting, asyncio.Future):
            waiting.add_done_callback(self._heard)

    def _heard(self, waiting: "asyncio.Future[Any]") -> None:
        if not waiting.cancelled():
            self._missed = self._missed or waiting.exception()

    async def rest(
        self, status: Status, reason: str, *, due_at: int | None = None, detail: str = "", code: str | None = None,
        word: str | None = None,
    ) -> None:  # fmt: skip
        """Write where the run rests, whatever was posted meanwhile, and give up the lease.

        With `code` the row names this version as one that refused the run; `word` is what it says of that instead.
        """
        seen = self.journal.inbox_seq
        # A post that came since the last look refuses this once; being beyond what was seen, it wakes the run at once.
        while not await self.park(status, reason, due_at=due_at, detail=detail, code=code, word=word, seen=seen):
            pass

    async def rest_again(self, status: Status, reason: str, *, progress: bool) -> bool:
        """Give up the lease of a run that was woken for nothing; False when a post came that nobody has looked at."""
        row = self.lease.row
        change = RowChange(status=status, reason=reason, refused=row.refused, seen_seq=self.journal.inbox_seq)
        return await self.written(self.outbox.append(change=change, progress=progress))

    async def park(
        self, status: Status, reason: str, *, due_at: int | None = None, step: str | None = None, detail: str = "",
        code: str | None = None, word: str | None = None, waits: Sequence[e.Wait] = (), consumed: Sequence[int] = (),
        seen: int | None = None,
    ) -> bool:  # fmt: skip
        """Write where the run rests, and give up the lease; False when a post came that nobody has looked at."""
        refused = self._word_refused() if code is not None else self.word if word is None else word
        entry = e.RunParked(
            status=status, reason=reason, detail=detail, step=step, due_at=due_at, code=code, waits=list(waits)
        )
        change = RowChange(
            status=status,
            reason=f"{reason}: {detail}" if detail else reason,
            due_at=due_at,
            refused=refused,
            seen_seq=self.journal.inbox_seq if seen is None else seen,
        )
        self.resting = True
        written = await self.written(self.outbox.append(entry, change=change, consumed=consumed))
        self.resting = written
        return written

    async def finish(self, entry: e.RunFinished, blobs: Sequence[Any] = ()) -> None:
        """Write the ending, tell the parent and the children of it, and give up the lease."""
        while True:
            self.resting = True
            change = RowChange(status=entry.status, reason=entry.reason, refused=self.word)
            charged, rest = self._charged()
            spent = self.purse.spent() if self.purse is not None else None
            posts = farewells(self.lease.row, self.children.values(), entry, spent)
            drop = ("*",) if self.chunks else ()
            waiting = self.outbox.append(
                *charged, entry, change=change, guarded=True, blobs=blobs, posts=posts, drop=drop, **rest
            )
            if await self.written(waiting):
                return
            self.resting = False
            await self.waits.look()
            if self.cancel_asked and entry.status is not Status.CANCELLED:
                # It was asked for before the ending was written: who asked was told that it counts.
                entry, blobs = self.cancelled_ending(entry.error), ()

    def _charged(self) -> tuple[Sequence[e.Entry], dict[str, Any]]:
        """Return the entry that charges what children were given and have not settled, if any, and what it moves."""
        if self.purse is not None and self._charging is None:
            moves = closing(self.purse.accounts)
            if moves:
                entry = e.BudgetChanged(moves=moves, why="ended")
                # Once, however often the ending is refused for a post.
                self._charging = ([entry], self.paid(entry))
        return self._charging or ((), {})

    def cancelled_ending(self, error: e.ErrorInfo | None = None) -> e.RunFinished:
        """Return the ending of a run whose end was asked for."""
        return e.RunFinished(status=Status.CANCELLED, reason=self.cancel_reason or "cancelled", error=error)

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


def _nobody(code: Any, child: RunId) -> None:
    return None


def _never() -> bool:
    return False
