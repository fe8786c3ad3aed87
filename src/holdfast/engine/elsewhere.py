"""A step that begins something outside of this process: it is begun once, and found again by what is known of it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.codec import decode_any, encode
from holdfast.core.derive import idempotency_key
from holdfast.core.errors import InvalidInput
from holdfast.core.status import NOT_DONE, Effect
from holdfast.engine.drive import Drive
from holdfast.engine.function import StepCode
from holdfast.engine.payload import is_failure
from holdfast.engine.speech import MessageCall
from holdfast.engine.step import Step
from holdfast.journal import replay as r

_CALL_OFF_SECONDS: Final = 10.0
"""How long whoever is told that a run was cancelled has to answer."""
_NOTHING: Final = Raw(b"null")

Find = Callable[[Step[Any]], Awaitable[Any]]
"""Looks for what an attempt began: its mark, `hf.NOT_DONE`, or None where nobody knows."""
CallOff = Callable[[Any], Awaitable[None]]
"""Ends what has this mark."""


class Resting(Exception):
    """What was begun goes on, and there is nothing to hear of it for a while."""

    def __init__(self, why: str, wait_seconds: float) -> None:
        super().__init__(why)
        self.why, self.wait_seconds = why, wait_seconds


class _LookAgain(Exception):
    """What was begun is to be looked at again."""


class Elsewhere(MessageCall):
    """One such step. Its mark is written as soon as it is known, while the step is open.

    A process that died before that has left a doubt, unless the attempt can be sent again under its key. With a mark
    nothing is begun again: neither after a death, nor after a cut, nor by whoever retries the run.
    """

    __slots__ = (
        "anew", "begun", "called_off", "cuts", "ended", "find", "harness", "mark", "moved", "off",
        "ready", "told", "tries",
    )  # fmt: skip

    def __init__(self, drive: Drive, code: StepCode, key: str, harness: str) -> None:
        super().__init__(drive, code, {}, key, "")
        self.harness = harness
        known = drive.replay.mark_of(key)
        self.mark: Any = decode_any(known.raw) if known is not None else None
        """How to find what was begun; None where nothing is known. Of a step that has ended, where it left off."""
        self.anew = known is not None and self.mark is None
        """True once what was begun is known to be over: whoever tries again begins something else, by another key."""
        self.moved: tuple[Any, bytes] | None = None
        """Where the harness stands once the result is recorded, and how its conversation keeps that."""
        self.cuts: tuple[type[BaseException], ...] = ()
        """What ends a look at it, and not the thing itself."""
        self.ended: tuple[type[BaseException], ...] = ()
        """What says that the thing itself is over: it is not found again, and not in doubt."""
        self.ready: Callable[[], Awaitable[object]] | None = None
        """Called before anything is begun or looked for; what it raises is raised here, and nothing was done."""
        self.find: Find | None = None
        self.off: CallOff | None = None
        self.begun = False
        """True once it was begun by this call, and not found again."""
        self.called_off = False
        self.tries = 0
        """How often in a row it could not be looked at."""
        self.told: Step[Any] | None = None

    async def answer(self, answer: r.Answer) -> Any:
        if self.drive.cancel_asked and not self.drive.cancelling.told:
            await self._leave_open(answer)
        if self.ready is not None and not isinstance(answer, r.CLOSED):
            await self.ready()
        match answer:
            case r.Interrupted(attempt=attempt) if self.mark is not None or answer.effect is Effect.KEYED:
                return await self.perform(attempt, answer.started_at)
            case r.InQuestion(attempt=attempt) if self.mark is not None or await self._look(attempt):
                return await self.perform(attempt, answer.started_at)
            case r.InQuestion() if self.find is not None:
                self.verify = self._verify
            case r.Reopened(attempt=attempt) if self.mark is not None or (attempt and await self._look(attempt)):
                return await self.perform(max(1, attempt), self.drive.store.now())
        return await super().answer(answer)

    async def perform(self, attempt: int, started_at: int) -> Any:
        while True:
            try:
                return await super().perform(attempt, started_at)
            except _LookAgain:
                continue

    async def known(self, mark: Any) -> None:
        """Write how to find what was begun; returns when that is on disk.

        Raises:
            InvalidInput: it is too large to be a mark.
        """
        body = encode(mark, f"what is known of {self.key}")
        if len(body) > limits.INLINE_BYTES:
            raise InvalidInput(f"a harness's handle is {len(body):,} bytes; the limit is {limits.INLINE_BYTES:,}")
        if mark == self.mark:
            return
        await self.drive.write(e.CursorMoved(harness=self.harness, step=self.key, raw=Raw(body)))
        self.mark, self.tries = mark, 0

    def step(self, attempt: int) -> Step[Any]:
        # One stream of previews for all looks at an attempt: what was shown is not shown again.
        if self.told is None or self.told.attempt != attempt or self.stream is None or not self.stream.is_open:
            self.told = super().step(attempt)
            if self.anew:
                self.told.idempotency_key = idempotency_key(self.drive.origin.seed(None), self.key)
        return self.told

    def witness(self, attempt: int) -> None:
        if self.begun:
            super().witness(attempt)

    def beside(self) -> tuple[Sequence[e.Entry], dict[str, Any]]:
        if self.moved is None:
            return (), {}
        mark, stored = self.moved
        moved = e.CursorMoved(harness=self.harness, step=self.key, raw=Raw(encode(mark, "a harness's cursor")))
        self.mark, self.drive.replay.cursor = mark, moved
        return (moved,), {"cursor": (self.harness, stored)}

    # Doubting

    async def doubt(self, why: str, sent: r.Interrupted, error: BaseException | None) -> Any:
        """Look for what was begun before anything else is done; what is found is gone on with, and not in doubt."""
        if await self._look(sent.attempt):
            return await self.perform(sent.attempt, sent.started_at)
        if self.find is not None:
            self.verify = self._verify
        return await super().doubt(why, sent, error)

    async def _look(self, attempt: int) -> bool:
        """Look for what an attempt began; say whether it was found."""
        if self.find is None:
            return False
        try:
            found = await self.find(self.step(attempt))
        except BaseException as error:
            if not is_failure(error):
                raise
            self.drive.log.warning("what was begun could not be looked for", step=self.key, error=repr(error))
            return False
        if found is None or found is NOT_DONE:
            return False
        await self.known(found)
        return True

    async def _verify(self) -> Any:
        """Say that it did not happen, where whoever would know says so."""
        assert self.find is not None
        assert self.told is not None
        if await self.find(self.told) is NOT_DONE:
            return NOT_DONE
        raise LookupError("nobody knows of it")

    async def attempt(self, attempt: int) -> Any:
        # A request of the attempt before may have come through after somebody looked for it.
        if attempt > 1 and self.verify is not None and await self._look(attempt - 1):
            return await self.perform(attempt - 1, self.drive.store.now())
        self.mark, self.tries = None, 0
        return await super().attempt(attempt)

    # Failing

    async def failed(self, error: BaseException, attempt: int, started_at: int) -> Any:
        """Look again where only the look failed; what is over is recorded so; doubt only what left no mark."""
        if isinstance(error, Resting):
            await self._rest(attempt, error.why, self.drive.store.now() + int(error.wait_seconds * 1e6))
            raise _LookAgain
        if isinstance(error, self.ended):
            return await self._over(error, attempt)
        if self.mark is not None or (self.effect is Effect.KEYED and isinstance(error, self.cuts)):
            self.tries += 1
            again_at = self.retry_at(error, self.tries)
            if again_at is not None:
                await self._rest(attempt, f"{type(error).__name__}: {error}", again_at)
                raise _LookAgain
            self.retry = None  # another attempt would begin it again, and it may be there
        if self.mark is not None:
            return await self.known_to_fail(error, attempt)
        return await super().failed(error, attempt, started_at)

    async def _over(self, error: BaseException, attempt: int) -> Any:
        """Record that what was begun is over, so that nobody looks for it again."""
        if self.mark is None:
            return await self.known_to_fail(error, attempt)
        self.drive.journal.note(e.CursorMoved(harness=self.harness, step=self.key, raw=_NOTHING))
        self.mark, self.anew = None, True
        return await self.known_to_fail(error, attempt)

    async def _rest(self, attempt: int, why: str, at: int) -> None:
        """Wait until there may be something to hear; a run that would wait for long rests meanwhile."""
        drive = self.drive
        wait_seconds = (at - drive.store.now()) / 1e6
        try:
            if drive.late and drive.is_late():
                raise asyncio.CancelledError
            if wait_seconds > drive.around.patience_seconds:
                await drive.waits.until("harness", self.key, due_at=at, detail=why)
            elif wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
        except asyncio.CancelledError as error:
            await self.call_off(error)
            self.cancelled(error, attempt)
            raise

    async def call_off(self, error: BaseException) -> None:
        """Let the end that somebody asked for go down; a shutdown or a lost lease ends nothing elsewhere."""
        if self.drive.unwinding or not isinstance(error, asyncio.CancelledError):
            return
        if self.mark is None or self.off is None:
            return
        try:
            async with asyncio.timeout(_CALL_OFF_SECONDS):
                await self.off(self.mark)
        except Exception as failure:
            self.drive.log.warning("what was begun could not be ended", step=self.key, error=repr(failure))
        else:
            self.called_off = True

    def _tell_doubt(self) -> None:
        if self.mark is None:
            super()._tell_doubt()

    def cancelled(self, error: BaseException, attempt: int) -> None:
        if self.drive.unwinding or not (self.begun or self.mark is not None):
            super().cancelled(error, attempt)
        elif self.called_off:
            self._record_cancel(attempt)
        else:
            # It goes on elsewhere, or may.
            self.drive.write_soon(e.StepDoubted(step=self.key, why="cancelled", attempt=attempt), **self.over())
