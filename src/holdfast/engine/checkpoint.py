"""A checkpoint that is open: what a user's own loop saves, under a lease and behind a fence."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar, TypeVarTuple, overload

import msgspec

from holdfast.core import entry as e
from holdfast.core.checkpoint import CODE, INTERRUPTED, Window, check_place, effect_key, effect_step
from holdfast.core.codec import Codec, digest, encode
from holdfast.core.errors import Conflict, InDoubt, InvalidValue, Lost, RunError, StoreError, ToolError
from holdfast.core.post import RESOLVE, Resolution
from holdfast.core.splice import copied
from holdfast.core.status import Effect, NotDone, Status
from holdfast.engine.keeper import Keeper
from holdfast.engine.ledger import Draft, Ledger
from holdfast.engine.payload import Secrets, error_info, load_value, message_of, store_value
from holdfast.engine.verdict import Verdict, verdict
from holdfast.store.value import Lease, NewBlob, RowChange

M = TypeVar("M")
R = TypeVar("R")
Args = TypeVarTuple("Args")
ANYTHING: Final = Codec(Any)
_NONE: Final = Secrets()
_SAID: Final = 500
_PLAIN: Final = (
    "Save what the provider is sent: plain dicts. Of an SDK's object that is `.model_dump(exclude_unset=True)`; or "
    "name the type of your messages with `of=`."
)


class Intent(NamedTuple):
    """An effect that may be performed now: its intent is on disk."""

    step: str
    digest: str


class Known(NamedTuple):
    """An effect that was performed before, and what came of it."""

    value: Any


class AsyncCheckpoint(Generic[M]):
    """A user's own loop, made durable: what it has saved is there after any crash, and one process has it at a time."""

    def __init__(
        self, keeper: Keeper, lease: Lease, checkpoint: str, *, every_seconds: float = 0.0, codec: Codec = ANYTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.id = checkpoint
        """By which it is opened."""
        self.run: str | None = lease.row.run
        """The run that holds it, for `holdfast show`."""
        self.attempt = lease.row.attempt
        """How often it was opened, this time included."""
        self._keeper, self._lease, self._codec = keeper, lease, codec
        self._ledger = Ledger(keeper, lease, checkpoint, codec)
        self._clock, self._window = clock, Window(every_seconds)
        self._timer: asyncio.TimerHandle | None = None
        self._late: asyncio.Task[None] | None = None

    @property
    def iteration(self) -> int | None:
        """Of the last save that is on disk."""
        last = self._ledger.record.last
        return last.iteration if last is not None else None

    @property
    def phase(self) -> str | None:
        """Of the last save that is on disk."""
        last = self._ledger.record.last
        return last.phase if last is not None else None

    @property
    def doubts(self) -> Mapping[str, str]:
        """Effects that may or may not have happened, with why nobody knows: what was under way at a kill is here."""
        return self._ledger.record.doubts

    # Opening

    async def begin(self, version: str) -> None:
        """Read what was saved, and write that this process has taken it up.

        Raises:
            Damaged: the journal does not add up; the checkpoint is set aside, and its journal not touched.
            UnknownEntry: a newer version wrote it.
        """
        try:
            await self._ledger.read()
            words = await self._words()
            await self._ledger.write(*self._opening(version), *words.values(), progress=False, consumed=tuple(words))
        except BaseException as error:
            self._keeper.open.discard(self._lease.row.run)
            await self._ledger.give_back(error)
            raise

    def _opening(self, version: str) -> Iterable[e.Entry]:
        lease, keeper = self._lease, self._keeper
        if lease.why != "started":
            yield e.RunResumed(worker=lease.worker, fence=lease.fence, attempt=self.attempt, why=lease.why, code=CODE)
        yield e.CheckpointOpened(
            worker=lease.worker, host=keeper.host, pid=keeper.pid, attempt=self.attempt, code=version
        )
        for step, known in self._ledger.record.state.open.items():
            if not known.doubted:
                yield e.StepDoubted(step=step, why="crash", attempt=known.attempt)

    async def _words(self) -> dict[int, e.StepResolved]:
        """Return what people said of effects in doubt, by the number of their posts."""
        words: dict[int, e.StepResolved] = {}
        doubted = self._ledger.record.state.open
        for post in await self._ledger.store.inbox(self._lease.row.run) if doubted else ():
            said = msgspec.json.decode(post.body, type=Resolution) if post.kind == RESOLVE else None
            if said is not None and said.step in doubted:
                words[post.seq] = e.StepResolved(
                    step=said.step, how="person", outcome="done" if said.done else "not_done", raw=said.value,
                    by=said.by, note=said.note,
                )  # fmt: skip
        return words

    # Saving

    async def load(self) -> list[M] | None:
        """Return the messages as they were saved last; None when nothing was ever saved. They are the caller's own."""
        if self._ledger.draft is None and self._ledger.record.last is None:
            return None
        return [self._own(message) for message in self._ledger.latest]

    def _own(self, message: Any) -> Any:
        return copied(message) if self._codec is ANYTHING else self._codec.decode(encode(message))

    async def save(self, messages: Sequence[M], iteration: int | None = None, phase: str | None = None) -> bool:
        """Save the loop's state: True when it is on disk, False when the throttle put it off.

        What was put off is written when the window is over, at the next `flush` or effect, and at a shutdown; a newer
        save takes its place. A save that fails raises, uses up no window, and is tried again with the next one.

        Raises:
            InvalidValue: a message is not plain data, or not of the type that was named.
            StoreUnavailable: the store does not answer.
            Lost: another process has the checkpoint now.
            RunError: somebody asked for its end.
        """
        self._ledger.check_open()
        check_place(iteration, phase)
        self._ledger.draft = Draft(self._taken(messages), iteration, phase)
        left = self._window.left(self._clock())
        if left > 0:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(left, self._wake)
            return False
        await self.flush()
        return True

    async def flush(self) -> None:
        """Write what was put off; when this returns, all that was saved is on disk."""
        self._ledger.check_open()
        await self._write()

    async def _write(self, *entries: e.Entry, change: RowChange | None = None, blobs: Sequence[NewBlob] = ()) -> None:
        async with self._ledger.writing:
            await self._write_held(*entries, change=change, blobs=blobs)

    async def _write_held(self, *entries: e.Entry, **rest: Any) -> None:
        saved = self._ledger.draft is not None
        if await self._ledger.write(*entries, **rest) and saved:
            self._window.saved(self._clock())

    def _taken(self, messages: Sequence[M]) -> list[Any]:
        """Return a copy of the messages; those that did not change are the ones that are known already."""
        known, given = self._ledger.latest, list(messages)
        if given[: len(known)] == known:
            return known + [self._copy(place, given[place]) for place in range(len(known), len(given))]
        return [
            known[place] if place < len(known) and message == known[place] else self._copy(place, message)
            for place, message in enumerate(given)
        ]

    def _copy(self, place: int, message: Any) -> Any:
        try:
            back = self._codec.round_trip(message, f"messages[{place}]")[1]
        except InvalidValue as error:
            error.hint = _PLAIN
            raise
        return copied(message) if self._codec is ANYTHING else back

    def _wake(self) -> None:
        self._timer = None
        self._late = asyncio.get_running_loop().create_task(self._write_late())

    async def _write_late(self) -> None:
        """Write what was put off, now that the window is over; what fails is tried again with the next save."""
        try:
            if self._ledger.over is None:
                await self._write()
        except (StoreError, RunError, Lost) as error:
            self._keeper.log.warning("a save that was put off failed", checkpoint=self.id, error=str(error))

    # Effects

    @overload
    async def effect(self, key: str, function: Callable[[*Args], Awaitable[R]], /, *args: *Args) -> R: ...
    @overload
    async def effect(self, key: str, function: Callable[[*Args], R], /, *args: *Args) -> R: ...
    async def effect(self, key: str, function: Callable[[*Args], Any], /, *args: *Args) -> Any:
        """Call `function(*args)` once for this key, whatever is killed, and return what came of it.

        All that was saved is on disk before it begins, and its result when this returns. The same key again gives the
        same result and calls nothing. A plain function gets a thread.

        Raises:
            InDoubt: it was begun before, and nobody knows whether it happened; `resolve` ends that.
            Conflict: the key was used with other arguments.
        """
        begun = await self.begin_effect(key, args)
        if isinstance(begun, Known):
            return begun.value
        try:
            result = function(*args) if _is_async(function) else await asyncio.to_thread(function, *args)
            value = await result if inspect.isawaitable(result) else result
        except Exception as error:
            await self.end_in_doubt(begun, error)
            raise
        return await self.end_effect(begun, value)

    async def begin_effect(self, key: str, args: Sequence[Any]) -> Intent | Known:
        """Write that an effect is about to be performed; or return what came of it before."""
        self._ledger.check_open()
        intent = Intent(effect_step(key), digest(list(args), f"the arguments of {key!r}"))
        async with self._ledger.writing:
            await self._ledger.settle()
            record = self._ledger.record
            known = record.done.get(intent.step)
            if known is not None:
                if known.digest != intent.digest:
                    raise Conflict(
                        f"effect {key!r} was performed with other arguments", run=self.run, differs=("arguments",),
                        hint="Give each effect a key of its own, such as the id of the tool call.",
                    )  # fmt: skip
                tenant = self._lease.row.tenant
                return Known(await load_value(self._ledger.store, tenant, ANYTHING, known.raw, known.blob, key))
            if intent.step in record.state.open:
                error = InDoubt(step=key, message=record.doubts[key])
                error.hint = f"Look at the outside world, then `resolve({key!r}, what_came_of_it)`, or hf.NOT_DONE."
                raise error
            await self._write_held(e.StepStarted(step=intent.step, digest=intent.digest, effect=Effect.ONCE))
        return intent

    async def end_effect(self, intent: Intent, value: Any) -> Any:
        """Write what came of an effect, and return it as it will be read."""
        try:
            what = f"what effect {effect_key(intent.step)!r} returned"
            raw, blob, blobs, back = store_value(ANYTHING, value, what, _NONE)
        except InvalidValue as error:
            # It has happened, and what came of it cannot be kept: that must not look as if it had not.
            await self.end_in_doubt(intent, error)
            raise
        await self._write(e.StepCompleted(step=intent.step, digest=intent.digest, raw=raw, blob=blob), blobs=blobs)
        return back

    async def end_in_doubt(self, intent: Intent, error: Exception) -> None:
        """Write that an effect raised: it did not happen if it says so by a ToolError, and is in doubt otherwise."""
        info = error_info(error, _NONE)
        if isinstance(error, ToolError):
            await self._write(e.StepFailed(step=intent.step, digest=intent.digest, error=info))
        else:
            await self._write(e.StepDoubted(step=intent.step, why="error", error=info))

    async def resolve(self, key: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None) -> None:
        """End an effect's doubt: it happened and this came of it, or it did not (`hf.NOT_DONE`) and may be tried again.

        Raises:
            Conflict: it is not in doubt.
        """
        self._ledger.check_open()
        step, done = effect_step(key), not isinstance(value, NotDone)
        raw, blob, blobs, _ = store_value(ANYTHING, value if done else None, f"the value of {key!r}", _NONE)
        if step not in self._ledger.record.state.open:
            raise Conflict(f"effect {key!r} is not in doubt", run=self.run, hint="`doubts` has those that are.")
        outcome = "done" if done else "not_done"
        entry = e.StepResolved(step=step, how="person", outcome=outcome, raw=raw, blob=blob, by=by, note=note)
        await self._write(entry, blobs=blobs)

    # Leaving

    async def complete(self, result: Any = None) -> None:
        """End it: the loop is done. Whoever opens its id again starts afresh."""
        raw, blob, blobs, _ = store_value(ANYTHING, result, "the result", _NONE)
        await self._end(e.RunFinished(status=Status.COMPLETED, raw=raw, blob=blob), blobs)

    async def fail(self, error: BaseException | str) -> None:
        """End it as failed. Whoever opens its id again starts afresh; `holdfast retry` brings this one back."""
        if isinstance(error, str):
            info, reason = e.ErrorInfo(type="Failed", message=error), error
        else:
            info = error_info(error, _NONE)
            reason = f"{info.type}: {info.message}"
        await self._end(e.RunFinished(status=Status.FAILED, reason=reason[:_SAID], error=info))

    async def _end(self, entry: e.RunFinished, blobs: Sequence[NewBlob] = ()) -> None:
        self._ledger.check_open()
        change = RowChange(status=entry.status, reason=entry.reason, refused=self._lease.row.refused)
        await self._write(entry, change=change, blobs=blobs)
        self._ledger.shut()

    async def keep(self, why: str) -> None:
        """Leave it as it is, for whoever opens it next: what was put off is written, and the lease given up."""
        self._ledger.check_open()
        now, seen = self._ledger.store.now(), self._ledger.journal.inbox_seq
        entry = e.RunParked(status=Status.WAITING, reason=INTERRUPTED, detail=why, due_at=now)
        refused, reason = self._lease.row.refused, f"{INTERRUPTED}: {why}"
        change = RowChange(status=Status.WAITING, reason=reason, due_at=now, refused=refused, seen_seq=seen)
        await self._write(entry, change=change)
        self._ledger.shut()

    async def close(self, error: BaseException | None) -> None:
        """Leave it by the outcome of its loop: success completes it, a shutdown keeps it, anything else fails it.

        What goes wrong here is told with the error that it was left by, and never instead of it.
        """
        try:
            if self._ledger.over is None:
                await self._leave(error)
        except (StoreError, RunError, Lost) as wrong:
            if error is None:
                raise
            self._keeper.log.error("a checkpoint was not left as it should", checkpoint=self.id, error=str(wrong))
            error.add_note(f"checkpoint {self.id!r} was not left as it should: {wrong}")
        finally:
            self._keeper.open.discard(self._lease.row.run)
            self._ledger.shut()
            if self._timer is not None:
                self._timer.cancel()
            if self._late is not None:
                await asyncio.wait([self._late])

    async def _leave(self, error: BaseException | None) -> None:
        match verdict(error):
            case Verdict.COMPLETE:
                await self.complete()
            case Verdict.KEEP:
                await self.keep(_said(error))
            case Verdict.FAIL:
                assert error is not None
                await self.fail(error)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _said(error: BaseException | None) -> str:
    """Return a shutdown in words."""
    said = message_of(error) if error is not None else ""
    return f"{type(error).__name__}: {said}"[:_SAID] if said else type(error).__name__
