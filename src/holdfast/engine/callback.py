"""Callbacks: a wait that is opened before it is waited for, so that its token can be given to somebody outside."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core import entry as e
from holdfast.core.errors import InvalidValue
from holdfast.core.post import CALLBACK, CallbackBody
from holdfast.core.signal import Signal
from holdfast.core.status import Effect
from holdfast.core.token import make_token
from holdfast.engine.drive import Drive
from holdfast.engine.forgotten import noted
from holdfast.engine.verb import Verb, decision_of
from holdfast.journal import replay as r
from holdfast.store.value import Post

T_co = TypeVar("T_co", covariant=True)


class Callback(Generic[T_co]):
    """A wait that one token answers, once: `token` may be given away, `result` waits for what it brings.

    A resumed run makes the same token again; nowhere is it kept.
    """

    __slots__ = ("_digest", "_drive", "_due_at", "_step", "_subject", "_verb", "token")

    def __init__(
        self, verb: Callable[..., Verb], drive: Drive, opened: Verb, subject: Signal[Any] | str, due_at: int | None,
        secret: bytes,
    ) -> None:  # fmt: skip
        self._verb, self._drive, self._subject, self._due_at = verb, drive, subject, due_at
        self._step, self._digest = opened.key, opened.digest
        self.token = make_token(secret, drive.lease.row.run, opened.key)

    def __repr__(self) -> str:
        # Without the token: what is printed ends in logs.
        return f"<callback {self._step}>"

    @noted
    async def result(self) -> T_co:
        """Return what the token brought: a decision, or the signal's value; None when the wait expired before."""
        verb = self._verb("a wait", "result", self._step, kept=False)
        closing: Any = self._drive.closed.get(self._step) or self._drive.replay.closing(self._step)
        if closing is None or verb.is_recorded:
            async with verb:
                closing = await self._wait(verb)
        result: T_co = await self._read(verb, closing)
        return result

    async def _wait(self, verb: Verb) -> e.Entry:
        if isinstance(self._subject, Signal):
            return await self._received(verb, self._subject)
        return await verb.decided(self._step, self._digest, self._due_at, self._subject)

    async def _read(self, verb: Verb, closing: Any) -> Any:
        match closing:
            case r.Decided(entry=entry):
                return decision_of(entry)
            case e.QuestionAnswered():
                return decision_of(closing)
            case r.Received() | e.SignalReceived():
                assert isinstance(self._subject, Signal)
                return await verb.received(self._subject, closing)
            case _:
                return None

    async def _received(self, verb: Verb, signal: Signal[Any]) -> e.Entry:
        """Wait for what the token brings, and record it."""
        drive, step = self._drive, self._step
        while True:
            post = await verb.wait(CALLBACK, self._due_at, self._takes, step=step, name=signal.name, detail=signal.name)
            if post is None:
                known: e.Entry | None = await verb.closed_beside(step)
                if known is None:
                    known = drive.closed[step] = e.StepCompleted(step=step, digest=self._digest)
                    await drive.write(known)
                return known
            body = msgspec.json.decode(post.body, type=CallbackBody)
            try:
                signal.codec.decode(body.value, f"what a token brought for {signal.name}")
            except InvalidValue as error:
                # A slip of the sender's must not use the token up: the wait is open again.
                drive.log.warning("a callback was not what it should be", signal=signal.name, error=str(error))
                await drive.write(self._again(post, signal), consumed=(post.seq,))
                continue
            entry = drive.closed[step] = e.SignalReceived(
                step=step, name=signal.name, post=post.seq, raw=body.value, by=body.by
            )
            await drive.write(entry, consumed=(post.seq,))
            drive.waits.settle(step)
            return entry

    def _takes(self, post: Post) -> bool:
        in_time = self._due_at is None or post.at < self._due_at
        return (
            post.kind == CALLBACK and in_time and msgspec.json.decode(post.body, type=CallbackBody).step == self._step
        )

    def _again(self, post: Post, signal: Signal[Any]) -> e.StepStarted:
        attempt = int(post.key.rpartition("/")[2]) + 1
        return e.StepStarted(
            step=self._step, digest=self._digest, effect=Effect.REPEAT, attempt=attempt, due_at=self._due_at,
            waits=waits_of(signal),
        )  # fmt: skip


def waits_of(signal: Signal[Any]) -> list[str]:
    """Return what the journal says a callback for a signal waits for."""
    return [f"{CALLBACK} {signal.name}"]
