"""How a step is performed, interrupted and tried again, by its declared effect."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any, Final, Protocol

from holdfast.core import entry as e
from holdfast.core.budget import NOTHING, STEPS, usage_of
from holdfast.core.codec import Codec
from holdfast.core.derive import idempotency_key
from holdfast.core.errors import Damaged, Diverged, InDoubt, InvalidValue, NotFound, StepError
from holdfast.core.limit import Limit
from holdfast.core.retry import Retry, asked_seconds, seconds
from holdfast.core.status import Effect
from holdfast.engine import witness
from holdfast.engine.budget import Purse
from holdfast.engine.chunks import Stream
from holdfast.engine.doubt import Doubt, check_verify
from holdfast.engine.drive import Drive
from holdfast.engine.function import StepCode
from holdfast.engine.limits import take_slot
from holdfast.engine.payload import is_failure, load_value, store_value
from holdfast.engine.policy import Policy
from holdfast.engine.step import Step
from holdfast.engine.trace import traced
from holdfast.engine.transacting import transact
from holdfast.journal import replay as r
from holdfast.store.value import NewBlob

_GRACE_SECONDS: Final = 0.05
"""By how much a look at a step's last sign of life comes before the step is given up."""


class Gate(Protocol):
    """Whoever says when an attempt may begin; waiting for it is no attempt."""

    def before(self, who: str, late_seconds: float = 0.0) -> int | None:
        """Return None when it may begin now; else the store's time at which to ask again.

        `late_seconds` is by how much whoever slept until then was woken late: the process has much to do.
        """

    def leave(self, who: str) -> None:
        """Hear that it will not begin."""


class StepCall:
    """One step asked for by the run's code."""

    __slots__ = (
        "args", "code", "codec", "digest", "drawn", "draws", "drive", "effect", "gate", "heartbeat", "held",
        "in_doubt", "key", "keywords", "limit", "not_performed", "retry", "slot", "stream", "timeout", "usage",
        "verify",
    )  # fmt: skip

    def __init__(
        self, drive: Drive, code: StepCode, args: Sequence[Any], keywords: dict[str, Any], key: str, digest: str
    ) -> None:
        self.drive, self.code, self.args, self.keywords, self.key, self.digest = (
            drive,
            code,
            args,
            keywords,
            key,
            digest,
        )
        self.stream: Stream | None = None
        self.codec: Codec = code.own_codec
        policy = code.policy
        self.effect: Effect = policy.effect or Effect.REPEAT
        self.verify = policy.verify
        self.in_doubt = policy.in_doubt or "raise"
        self.retry: Retry | None = policy.retry
        self.timeout: float | None = seconds(policy.timeout) if policy.timeout is not None else None
        self.heartbeat: float | None = seconds(policy.heartbeat) if policy.heartbeat is not None else None
        self.not_performed = policy.not_performed or ()
        self.limit: Limit | None = policy.limit
        self.slot = False
        """True while an attempt has a slot of the limit, or waits for one."""
        self.usage: dict[str, int | None] | None = None
        """What the step's first entry is to pay."""
        self.draws: Callable[[], Mapping[str, int]] | None = None
        """Says what an attempt may take of the run's budget: set aside with its intent, which it has for that."""
        self.drawn: Mapping[str, int | None] | None = None
        """What the attempt took, told by whoever performs it; None is unknown, and charged as it was set aside."""
        self.gate: Gate | None = None
        """Whom each attempt asks before it begins."""
        self.held: Mapping[str, int] = {}

    def say(self, policy: Policy) -> None:
        """Let what the call says take precedence over what the function declared."""
        self.effect = policy.effect or self.effect
        self.verify = policy.verify or self.verify
        self.in_doubt = policy.in_doubt or self.in_doubt
        self.retry = policy.retry or self.retry
        if policy.timeout is not None:
            self.timeout = seconds(policy.timeout)
        if policy.heartbeat is not None:
            self.heartbeat = seconds(policy.heartbeat)
        if policy.returns is not None:
            self.codec = Codec(policy.returns)
        self.not_performed = policy.not_performed or self.not_performed
        self.limit = policy.limit or self.limit

    async def answer(self, answer: r.Answer) -> Any:
        """Act on what the journal recorded for this step."""
        if self.drive.cancel_asked and not self.drive.cancelling.told:
            await self._leave_open(answer)
        match answer:
            case r.Fresh():
                if self.verify is not None and self.effect is Effect.ONCE:
                    check_verify(self)
                if self.drive.purse is not None:
                    await self._afford(self.drive.purse)
                return await self.attempt(1)
            case r.Recorded():
                await self.drive.replayed()
                return await self._load(answer)
            case r.Failed(error=error, attempts=attempts):
                raise StepError(step=self.key, type=error.type, message=error.message, attempts=attempts)
            case r.Cancelled():
                await self.drive.cancelling.left_again(answer)
            case r.Retrying(attempt=attempt, retry_at=retry_at):
                await self._wait_until(retry_at, attempt)
                return await self.attempt(attempt + 1)
            case r.Reopened(attempt=attempt):
                return await self.attempt(attempt + 1)
            case r.GivenUp(message=message, attempts=attempts):
                raise InDoubt(step=self.key, message=message, attempts=attempts)
            case r.InQuestion():
                return await Doubt(self).resolve(answer)
            case r.Interrupted(effect=Effect.ONCE):
                return await self.doubt("crash", answer, None)
            case r.Interrupted():
                return await self.attempt(answer.attempt + 1)

    async def _leave_open(self, answer: r.Answer) -> None:
        """Let the code be told at a step without an outcome that the run shall end: no other attempt is made."""
        if not isinstance(answer, r.Interrupted | r.InQuestion | r.Retrying | r.Reopened):
            return
        try:
            await self.drive.cancelling.be_told()
        except asyncio.CancelledError as error:
            if isinstance(answer, r.Interrupted | r.InQuestion):
                await self.call_off(error)
                self.cancelled(error, answer.attempt)
            elif not self.drive.unwinding:
                self._record_cancel(answer.attempt)
            raise

    async def _load(self, recorded: r.Recorded) -> Any:
        drive = self.drive
        try:
            what = f"the result of {self.key}"
            tenant = drive.lease.row.tenant
            return await drive.answer(load_value(drive.store, tenant, self.codec, recorded.raw, recorded.blob, what))
        except (Damaged, NotFound) as error:
            raise drive.refuse(Damaged(run=drive.lease.row.run, seq=None, what=f"{self.key}: {error}")) from error
        except InvalidValue as error:
            asked = f"it as {self.codec.annotation!r}, which its recorded result is not"
            raise drive.refuse(Diverged(seq=0, recorded=f"{self.key!r}", asked=asked)) from error

    # Paying

    async def _afford(self, purse: Purse) -> None:
        """Take what the step costs of the run's budget; it is paid with the step's first entry.

        A clean-up costs nothing: a run that shall end must be able to.
        """
        if not purse.counts_steps or self.drive.cancel_asked:
            return
        try:
            await purse.hold(self.drive, self.key, {STEPS: 1})
        except asyncio.CancelledError:
            if not self.drive.unwinding:
                self._record_cancel(1)
            raise
        self.usage = {STEPS: 1}

    def _paid(self, entry: e.Entry) -> dict[str, Any]:
        """Return what is written with the entry that pays for the step; every later one finds it paid."""
        self.usage = None
        return self.drive.paid(entry)

    async def _set_aside(self, attempt: int) -> None:
        """Take what an attempt may draw of the run's budget; it is set aside in the attempt's intent."""
        purse = self.drive.purse
        if purse is None or self.draws is None or self.drive.cancel_asked:
            return
        wants = purse.counted(self.draws())
        try:
            await purse.hold(self.drive, self.key, wants)
        except asyncio.CancelledError:
            if not self.drive.unwinding:
                self._record_cancel(attempt)
            raise
        self.held = wants

    async def _await_gate(self, attempt: int, gate: Gate) -> None:
        """Wait until the gate lets the attempt begin; a run that would wait for long rests meanwhile."""
        drive = self.drive
        who = f"{drive.lease.row.run}/{self.key}"
        try:
            late_seconds = 0.0
            while (at := gate.before(who, late_seconds)) is not None:
                if drive.handing:
                    await drive.leave()
                wait_seconds = (at - drive.store.now()) / 1e6
                if wait_seconds > drive.around.patience_seconds:
                    await drive.waits.until("pace", self.key, due_at=at)
                    late_seconds = 0.0
                else:
                    wake_at = drive.loop.time() + max(0.0, wait_seconds)
                    await asyncio.sleep(max(0.0, wait_seconds))
                    late_seconds = drive.loop.time() - wake_at
        except asyncio.CancelledError:
            gate.leave(who)
            if not drive.unwinding:
                self._record_cancel(attempt)
            raise

    # Performing

    async def attempt(self, attempt: int) -> Any:
        """Perform the step by its effect and record what comes of it."""
        if self.draws is not None:
            await self._set_aside(attempt)
        if self.limit is not None:
            await self._take_slot(attempt, self.limit)
        if self.gate is not None:
            await self._await_gate(attempt, self.gate)
        if self.code.inject == "transaction":
            return await transact(self, attempt)
        started_at = 0
        if self.effect is not Effect.REPEAT or self.held:
            started_at = await self._intend(attempt)
        return await self.perform(attempt, started_at)

    async def perform(self, attempt: int, started_at: int) -> Any:
        """Perform an attempt whose intent, if it has one, is written, and record what comes of it."""
        try:
            value = await self._call(attempt)
            self.witness(attempt)
            entry, blobs, back = self.closed(value, attempt)
        except BaseException as error:
            if not is_failure(error):
                await self.call_off(error)
                self.cancelled(error, attempt)
                raise
            return await self.failed(error, attempt, started_at)
        also, rest = self.beside()
        await self.drive.write(entry, *also, blobs=blobs, **rest, **self.over(), **self._paid(entry))
        return back

    def witness(self, attempt: int) -> None:
        """Tell whoever counts effects that one was performed."""
        witness.performed(self.drive.lease, self.key, attempt)

    def beside(self) -> tuple[Sequence[e.Entry], dict[str, Any]]:
        """Return what is written with the entry that records a result, behind it and with its commit."""
        return (), {}

    async def call_off(self, error: BaseException) -> None:
        """Do what can be done, when the code is cancelled, about something that goes on outside of this process."""

    async def doubt(self, why: str, sent: r.Interrupted, error: BaseException | None) -> Any:
        """Begin to doubt an attempt of which nobody knows whether it happened, and end that."""
        return await Doubt(self).begin(why, sent, error)

    def closed(self, value: Any, attempt: int) -> tuple[e.Entry, Sequence[NewBlob], Any]:
        """Return the entry that records a result, the blobs that go with it, and what the code is given."""
        raw, blob, blobs, back = store_value(self.codec, value, f"the result of {self.key}", self.drive.secrets)
        usage = {**(self.drawn or {}), **(self.usage or {})} or None
        entry = e.StepCompleted(step=self.key, digest=self.digest, attempt=attempt, usage=usage, raw=raw, blob=blob)
        return entry, blobs, back

    def wasted(self, error: BaseException) -> dict[str, int | None] | None:
        """Return what a failed attempt took."""
        purse, drawn = self.drive.purse, None
        if purse is not None and self.key in purse.reservations:
            # One that says it took something, and not how much, was performed whatever its class is.
            drawn = usage_of(error)
            if drawn is None and isinstance(error, self.not_performed):
                drawn = NOTHING
        return {**(drawn or {}), **(self.usage or {})} or None

    async def _take_slot(self, attempt: int, limit: Limit) -> None:
        """Wait for the attempt's turn; it has not begun, so whoever cancels it meanwhile knows what happened."""
        self.slot = True
        try:
            await take_slot(self.drive, self.key, limit)
        except asyncio.CancelledError:
            if not self.drive.unwinding:
                self._record_cancel(attempt)
            raise

    async def _intend(self, attempt: int) -> int:
        timeout = int(self.timeout * 1e6) if self.timeout is not None else None
        entry = e.StepStarted(
            step=self.key, digest=self.digest, effect=self.effect, attempt=attempt, timeout=timeout, usage=self.usage,
            reserved=dict(self.held) or None,
        )  # fmt: skip
        self.held = {}
        drive = self.drive
        drive.is_late()
        paid = self._paid(entry)
        try:
            # A further intent of the same step is no progress: one that kills its worker each time must not hide
            # behind it.
            await drive.write(entry, guarded=True, progress=attempt == 1, **paid)
        except asyncio.CancelledError:
            if drive.purse is not None and not drive.unwinding:
                drive.purse.take_back(entry, paid["budget"])
            raise
        if drive.late and drive.is_late():
            # The code's timeout ran out before the effect began: it is known not to have happened.
            self._record_cancel(attempt)
            raise asyncio.CancelledError
        return drive.store.now()

    def drop(self) -> Sequence[str]:
        """Return the steps whose previews end with the entry that is written next."""
        return (self.key,) if self.stream is not None and self.stream.close() else ()

    def over(self) -> dict[str, Any]:
        """Return what ends in the commit that records how an attempt ended: its previews, and its slot."""
        if not self.slot:
            return {"drop": self.drop()}
        self.slot = False
        return {"drop": self.drop(), "freed": (self.key,)}

    async def _call(self, attempt: int) -> Any:
        step = self.step(attempt) if self.code.inject == "step" else None
        arguments = (step, *self.args) if step is not None else self.args
        if self.timeout is None and (self.heartbeat is None or step is None):
            return await self.drive.perform(self.code, arguments, self.keywords)
        limit = asyncio.timeout(self.timeout)
        silent = asyncio.timeout(None)
        try:
            async with limit, silent:
                if self.heartbeat is not None and step is not None:
                    self._listen(step, silent, self.heartbeat)
                return await self.drive.perform(self.code, arguments, self.keywords)
        except TimeoutError as error:
            if silent.expired() and not str(error):
                raise TimeoutError(f"no sign of life for {self.heartbeat:g} s") from error
            if limit.expired() and not str(error):
                raise TimeoutError(f"no result within {self.timeout:g} s") from error
            raise

    def _listen(self, step: Step[Any], silent: asyncio.Timeout, heartbeat: float) -> None:
        """Let an attempt time out when it has given no sign of life for so long; look again whenever it might."""
        silent.reschedule(self.drive.loop.time() + heartbeat + _GRACE_SECONDS)

        def look() -> None:
            left = step.beat_at + heartbeat - monotonic()
            if self.stream is None or not self.stream.is_open or silent.when() is None:
                return
            if left > 0:
                silent.reschedule(self.drive.loop.time() + left + _GRACE_SECONDS)
                self.drive.loop.call_later(left, look)

        self.drive.loop.call_later(heartbeat, look)

    def step(self, attempt: int) -> Step[Any]:
        """Return what an attempt, or the check of one, is told of itself."""
        drive = self.drive
        self.stream = Stream(drive.open_chunks, self.key, attempt)
        return Step(
            deps=drive.deps,
            idempotency_key=idempotency_key(drive.origin.seed(drive.replay.begun_at(self.key)), self.key),
            run_id=drive.lease.row.run,
            attempt=attempt,
            log=drive.log.bind(step=self.key, attempt=attempt),
            emit=self.stream.emit,
        )

    # Failing

    async def failed(self, error: BaseException, attempt: int, started_at: int) -> Any:
        """Record that an attempt raised, and raise, doubt or try again by what was declared."""
        declared = isinstance(error, self.not_performed)
        doubtful = self.effect is Effect.ONCE and self.code.inject != "transaction"
        if doubtful and not declared:
            why = "timeout" if isinstance(error, TimeoutError) and self.timeout is not None else "error"
            timeout = int(self.timeout * 1e6) if self.timeout is not None else None
            return await self.doubt(why, r.Interrupted(self.effect, attempt, started_at, timeout), error)
        return await self.known_to_fail(error, attempt)

    async def known_to_fail(self, error: BaseException, attempt: int) -> Any:
        """Record that an attempt failed, and raise, or try again by what was declared."""
        info = traced(error, self.drive.secrets)
        retry_at = self.retry_at(error, attempt)
        entry = e.StepFailed(
            step=self.key, digest=self.digest, attempt=attempt, error=info, retry_at=retry_at, usage=self.wasted(error)
        )
        await self.drive.write(entry, **self.over(), **self._paid(entry))
        if retry_at is None:
            raise StepError(step=self.key, type=info.type, message=info.message, attempts=attempt) from error
        await self._wait_until(retry_at, attempt)
        return await self.attempt(attempt + 1)

    def retry_at(self, error: BaseException, attempt: int) -> int | None:
        """Return when another attempt is to be made, by the declared policy; None for never."""
        if self.retry is None or not self.retry.wants(error, attempt):
            return None
        now = self.drive.store.now()
        delay = self.retry.delay_seconds(attempt, self.drive.chance())
        # Who says when to come back is not asked sooner.
        asked = asked_seconds(error, datetime.fromtimestamp(0, UTC) + timedelta(microseconds=now))
        return now + int(max(delay, asked or 0.0) * 1e6)

    def cancelled(self, error: BaseException, attempt: int) -> None:
        """Record that the run's own code cancelled the step; a shutdown or an interrupt records nothing.

        Queued but not awaited: whatever the code does next is written behind it.
        """
        if self.drive.unwinding or not isinstance(error, asyncio.CancelledError):
            if self.effect is Effect.ONCE:
                self._tell_doubt()
            return
        if self.effect is Effect.ONCE:
            self.drive.write_soon(e.StepDoubted(step=self.key, why="cancelled", attempt=attempt), **self.over())
        else:
            self._record_cancel(attempt)

    def _tell_doubt(self) -> None:
        """Say of a step that a shutdown cut off what is not known, and what ends the doubt."""
        resolve = f"holdfast resolve {self.drive.lease.row.run} {self.key}"
        then = f"it waits for a word: {resolve} --value JSON, or {resolve} --not-done"
        if self.verify is not None:
            then = "verify is asked"
        elif self.in_doubt == "raise":
            then = "the step raises hf.InDoubt"
        elif self.in_doubt == "again":
            then = "it is begun again, and both are charged"
        self.drive.log.warning(
            "a once step was interrupted: it may or may not have happened", step=self.key, when_the_run_goes_on=then
        )

    def cancel_late(self) -> None:
        """Let a cancellation that came while the entry before was written end this step, if it still stands."""
        if self.drive.is_late():
            self._record_cancel(1)
            raise asyncio.CancelledError

    def _record_cancel(self, attempt: int) -> None:
        info = e.ErrorInfo(type="CancelledError", message="cancelled by the run's own code")
        if self.held and self.drive.purse is not None:
            self.drive.purse.release(self.held)
            self.held = {}
        entry = e.StepFailed(
            step=self.key, digest=self.digest, attempt=attempt, error=info, cancelled=True, usage=self.usage
        )
        self.drive.write_soon(entry, **self.over(), **self._paid(entry))

    async def _wait_until(self, at: int, attempt: int) -> None:
        wait_seconds = (at - self.drive.store.now()) / 1e6
        try:
            if self.drive.late and self.drive.is_late():
                raise asyncio.CancelledError
            if wait_seconds > self.drive.around.patience_seconds:
                await self.drive.waits.until("retry", self.key, due_at=at)
            elif wait_seconds > 0:
                await asyncio.sleep(wait_seconds)
        except asyncio.CancelledError:
            if not self.drive.unwinding:
                self._record_cancel(attempt)
            raise
