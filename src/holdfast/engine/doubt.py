"""A step that may or may not have happened, until a person's word, `verify` or the declared policy ends the doubt."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import structs

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.errors import Damaged, InDoubt, InvalidInput, InvalidValue
from holdfast.core.post import RESOLVE, Resolution
from holdfast.core.status import NOT_DONE
from holdfast.engine.function import look_at
from holdfast.engine.payload import error_info, is_failure, store_value
from holdfast.engine.trace import traced
from holdfast.journal import replay as r
from holdfast.store.value import Post

if TYPE_CHECKING:
    from holdfast.engine.effects import StepCall

_UNKNOWN: Final = object()
_SAID_OF_ERROR: Final = 200


def check_verify(call: "StepCall") -> None:
    """Refuse a `verify` that could not be called when it is needed.

    Raises:
        InvalidInput: it does not take the step's own arguments.
    """
    assert call.verify is not None
    code = look_at(call.verify)
    try:
        signature = inspect.signature(call.verify)
    except (TypeError, ValueError):
        return  # a builtin that does not tell
    try:
        signature.bind(*((None,) if code.inject == "step" else ()), *call.args, **call.keywords)
    except TypeError as error:
        name = code.name or "the lambda"
        raise InvalidInput(
            f"verify= of {call.code.name or 'the step'} is given the step's own arguments, and {name}{signature} does "
            f"not take them: {error}"
        ) from None


class Doubt:
    """The doubt of one step."""

    def __init__(self, call: "StepCall") -> None:
        self._call, self._drive, self._key, self._codec = call, call.drive, call.key, call.codec
        self._unsure: str | None = None
        """Why `verify` could not tell."""

    async def begin(self, why: str, sent: r.Interrupted, error: BaseException | None) -> Any:
        """Write that the step is in doubt, and end that."""
        info = traced(error, self._drive.secrets) if error is not None else None
        entry = e.StepDoubted(step=self._key, why=why, attempt=sent.attempt, error=info)
        await self._drive.write(entry, **self._call.over())
        return await self.resolve(r.InQuestion(sent.attempt, sent.started_at, sent.timeout, entry.sentence))

    async def resolve(self, doubt: r.InQuestion) -> Any:
        """End the doubt by a person's word, by `verify`, or by the declared policy."""
        call = self._call
        for post in await self._posts():
            if self._is_word(post):
                return await self._hear(post, doubt)
        if call.verify is not None:
            found = await self._ask_verify(doubt.attempt)
            if found is NOT_DONE:
                await self._wait_out(doubt)
                await self._write_resolved(how="verify", outcome="not_done")
                return await call.attempt(doubt.attempt + 1)
            if found is not _UNKNOWN:
                raw, blob, blobs, back = store_value(self._codec, found, f"verify of {self._key}", self._drive.secrets)
                await self._write_resolved(how="verify", outcome="done", raw=raw, blob=blob, blobs=blobs)
                return back
        if call.in_doubt == "wait" or doubt.asked_again:
            detail = f"step {self._key} is in doubt: {r.given_up(doubt.why, self._unsure)}"
            word = await self._wait(doubt, due_at=None, detail=detail, takes=self._is_word)
            assert word is not None
            return await self._hear(word, doubt)
        if call.in_doubt == "again" and (call.retry is None or doubt.attempt < call.retry.attempts):
            # What it took, if it happened, stays charged.
            await self._write_resolved(how="policy", outcome="again", note=self._unsure)
            return await call.attempt(doubt.attempt + 1)
        await self._write_resolved(how="policy", outcome="unknown", note=self._unsure)
        raise InDoubt(step=self._key, message=r.given_up(doubt.why, self._unsure), attempts=doubt.attempt)

    async def _wait(self, doubt: r.InQuestion, **rest: Any) -> Post | None:
        try:
            return await self._drive.waits.until("doubt", self._key, **rest)
        except asyncio.CancelledError:
            if not self._drive.unwinding:
                self._drive.write_soon(e.StepDoubted(step=self._key, why="cancelled", attempt=doubt.attempt))
            raise

    async def _wait_out(self, doubt: r.InQuestion) -> None:
        """Before another attempt: a request of the first may still act until its timeout has passed."""
        window = doubt.timeout if doubt.timeout is not None else int(limits.IN_FLIGHT_SECONDS * 1e6)
        due_at = doubt.started_at + window
        if self._drive.store.now() < due_at:
            detail = f"step {self._key} seems not done, but a request of its may still be under way"
            await self._wait(doubt, due_at=due_at, detail=detail)

    async def _write_resolved(self, *, how: str, outcome: str, **rest: Any) -> None:
        fields = {name: rest.pop(name) for name in ("raw", "blob", "by", "note") if name in rest}
        entry = e.StepResolved(step=self._key, how=how, outcome=outcome, **fields)
        await self._drive.write(entry, drop=self._call.drop(), **rest, **self._drive.paid(entry))

    # By a person

    async def _posts(self) -> Sequence[Post]:
        try:
            return await self._drive.answer(self._drive.store.inbox(self._drive.lease.row.run))
        except Damaged as damaged:
            raise self._drive.refuse(damaged) from None

    def _is_word(self, post: Post) -> bool:
        return post.kind == RESOLVE and msgspec.json.decode(post.body, type=Resolution).step == self._key

    async def _hear(self, post: Post, doubt: r.InQuestion) -> Any:
        """End the doubt by a person's word."""
        word = msgspec.json.decode(post.body, type=Resolution)
        wrong = self._wrong(word)
        if wrong is None:
            return await self._by_person(word, post.seq, doubt)
        # A slip of the person's must not end the run: it is written down, and another word may follow.
        doubt = structs.replace(doubt, why=f"{doubt.why} ({wrong})")
        again = e.StepDoubted(step=self._key, why=doubt.why, attempt=doubt.attempt)
        await self._drive.write(again, consumed=(post.seq,))
        return await self.resolve(doubt)

    def _wrong(self, word: Resolution) -> str | None:
        """Say what is wrong with the value that a person gave."""
        try:
            if word.done:
                self._codec.decode(word.value, f"the value given by {word.by or 'somebody'}")
        except InvalidValue as error:
            return self._drive.secrets.redact_text(str(error))
        return None

    async def _by_person(self, word: Resolution, post: int, doubt: r.InQuestion) -> Any:
        if not word.done:
            await self._wait_out(doubt)
        await self._write_resolved(
            how="person",
            outcome="done" if word.done else "not_done",
            raw=word.value,
            by=word.by,
            note=word.note,
            consumed=(post,),
        )
        if word.done:
            return self._codec.decode(word.value)
        return await self._call.attempt(doubt.attempt + 1)

    # By `verify`

    async def _ask_verify(self, attempt: int) -> Any:
        """Return what `verify` found: a value, NOT_DONE, or that it is still unknown."""
        call, drive = self._call, self._drive
        assert call.verify is not None
        code = look_at(call.verify)
        arguments = (call.step(attempt), *call.args) if code.inject == "step" else call.args
        try:
            found = await drive.perform(code, arguments, call.keywords)
            if found is not NOT_DONE:
                self._codec.round_trip(found, f"verify of {self._key}")
        except BaseException as error:
            if not is_failure(error):
                if isinstance(error, asyncio.CancelledError) and not drive.unwinding:
                    drive.write_soon(e.StepDoubted(step=self._key, why="cancelled", attempt=attempt))
                raise
            # A check that cannot run proves nothing.
            drive.log.warning("verify could not tell", step=self._key, error=repr(error))
            info = error_info(error, drive.secrets)
            self._unsure = f"verify could not tell: {info.type}: {info.message[:_SAID_OF_ERROR]}"
            return _UNKNOWN
        return found
