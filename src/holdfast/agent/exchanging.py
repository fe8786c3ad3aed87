"""One exchange with a harness as a step: begun once, found again by its handle, and its cursor moved in its commit."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.agent.binding import Stand, current_stand, read_stand, stored
from holdfast.agent.cost import Cost
from holdfast.agent.generating import known
from holdfast.agent.harness import FAILURES, Ask, Ended, Harness, HarnessFailed, Known, Rests, Session, Start, Told
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused, Request
from holdfast.agent.pace import PACE
from holdfast.agent.preview import Preview
from holdfast.core.budget import USD
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput
from holdfast.core.message import ASSISTANT, Message, Text
from holdfast.core.retry import Retry
from holdfast.core.status import NOT_DONE, Effect
from holdfast.engine.elsewhere import Elsewhere, Resting
from holdfast.engine.function import StepCode
from holdfast.engine.policy import Policy
from holdfast.engine.speech import Said, Speech
from holdfast.engine.step import Step
from holdfast.engine.talk import Talk

EXCHANGE: Final = "harness"
"""The name of an exchange's step."""
_ANSWER: Final = "answer"
"""The name of the message that a person gave in the place of one that nobody knows."""
_UNBEGUN: Final = (ModelBusy, ModelRefused)
"""What is said before anything is created: such an attempt costs nothing."""
_CUTS: Final = (ModelBusy, ModelCut)
_ANY: Final = Codec(Any)


class Exchanging:
    """What stays the same for all exchanges of a turn, and the session that they are had in."""

    def __init__(self, talk: Talk, harness: Harness, start: Start, retry: Retry) -> None:
        self._talk, self._harness, self._start = talk, harness, start
        self._retry = retry if retry.on is not None else replace(retry, on=_CUTS)
        self._session: Session | None = None

    async def close(self) -> None:
        """Let go of what this process holds for the turn; what was begun elsewhere goes on."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def generate(self, messages: Sequence[Message]) -> Said:
        """Return the next message, as it stands in the journal; the harness is told what it has not heard yet.

        Raises:
            CursorInvalid: what is stored of where it stands cannot be gone on from.
            HarnessFailed: the exchange has not completed; what was said is kept.
            StepError: it has not, and nothing is kept.
            InDoubt: nobody knows whether it happened.
        """
        talk = self._talk
        call: list[Elsewhere] = []

        def make(key: str) -> Elsewhere:
            call.append(self._call(key, messages))
            return call[0]

        said = await talk.ask(EXCHANGE, make)
        if not isinstance(said, Said):
            return await talk.put(_ANSWER, ASSISTANT, [Text(said if isinstance(said, str) else str(said))])
        stand = msgspec.convert(call[0].mark, Stand)
        if stand.how in FAILURES:
            raise FAILURES[stand.how](stand.why or f"the harness ended the exchange as {stand.how}", how=stand.how)
        return said

    async def _open(self) -> Session:
        if self._session is None:
            stand = await current_stand(self._talk, self._harness)
            start = msgspec.structs.replace(self._start, cursor=stand.cursor, version=stand.v)
            self._session = await self._harness.open(start)
        return self._session

    def _stand(self) -> Stand:
        moved = self._talk.cursor
        assert moved is not None
        return read_stand(self._harness, moved.raw)

    # One exchange

    def _call(self, key: str, messages: Sequence[Message]) -> Elsewhere:
        harness, drive = self._harness, self._talk.drive
        exchange = _Exchange(self, messages)
        call = exchange.call = Elsewhere(drive, _code(exchange.take, harness, self._retry), key, harness.name)
        call.shape, call.spent = _speech, _wasted
        call.cuts, call.ended = _CUTS, (HarnessFailed,)
        call.ready, call.find, call.off = self._open, exchange.find, exchange.cancel
        call.in_doubt = harness.in_doubt
        counted = Cost(harness, lambda: self._request(messages))
        call.gate = PACE.gate(harness.lane, drive.store.now, lambda: counted.tokens)
        call.draws = partial(counted.draws, priced=drive.counts(USD))
        return call

    def _request(self, messages: Sequence[Message]) -> Request:
        """Return what an exchange is estimated by: all that was said, which a provider reads again."""
        start = self._start
        return Request(
            instructions=start.instructions, messages=tuple(messages), tools=tuple(start.tools), output=start.output,
            settings=start.settings,
        )  # fmt: skip


class _Exchange:
    """One exchange: what is told, and what was heard so far."""

    call: Elsewhere

    def __init__(self, turn: Exchanging, messages: Sequence[Message]) -> None:
        self._turn, self._version = turn, turn._harness.version
        self._messages = unheard(messages)
        self._after: str | None = None
        self._most = 0
        """How many events came at most while it was looked at once."""

    async def take(self, step: Step[Any]) -> Ended:
        """Begin the exchange, or go on with it, and return how it ended.

        Raises:
            ModelCut: its events ended before it had.
            HarnessFailed: it ended, and leaves nothing that could be kept.
        """
        session, call, ask = await self._turn._open(), self.call, self._ask(step)
        if call.mark is None:
            call.begun = True
            events: Any = session.create(ask)
        else:
            events = session.attach(ask, call.mark.get("handle"), self._after)
        heard, preview = 0, Preview(step.emit, call.drive.secrets)
        async with aclosing(events):
            async for event in events:
                heard += 1
                self._hear(event.id, heard)
                match event:
                    case Told(piece=piece):
                        preview.say(piece)
                    case Known(handle=handle):
                        await call.known(self._mark(handle))
                    case Rests(why=why, seconds=seconds):
                        raise Resting(why, seconds)
                    case Ended():
                        return self._end(event)
        raise ModelCut("the events ended before the exchange had")

    def _hear(self, id: str, heard: int) -> None:
        if (id and id != self._after) or heard > self._most:
            self.call.tries = 0
        self._after, self._most = id or self._after, max(self._most, heard)

    def _end(self, event: Ended) -> Ended:
        """Return an exchange's end with what is to be kept of it.

        Raises:
            HarnessFailed: there is nothing to keep.
        """
        if event.message is None or event.cursor is None:
            if event.how == "completed":
                raise InvalidInput("a harness's exchange that completed has a message and a cursor")
            raise FAILURES[event.how](event.why or f"it ended as {event.how}", how=event.how, usage=event.usage)
        stand = Stand(self._version, cursor=event.cursor, how=event.how, why=event.why)
        self.call.moved = (msgspec.to_builtins(stand), stored(self.call.harness, stand))
        return event

    async def find(self, step: Step[Any]) -> Any:
        """Look for what was begun, and return its mark."""
        found = await (await self._turn._open()).find(self._ask(step))
        return found if found is None or found is NOT_DONE else self._mark(found)

    async def cancel(self, mark: Any) -> None:
        """End what was begun."""
        await (await self._turn._open()).cancel(mark.get("handle"))

    def _ask(self, step: Step[Any]) -> Ask:
        key = f"{step.idempotency_key}.{step.attempt}"
        return Ask(messages=self._messages, cursor=self._turn._stand().cursor, key=key)

    def _mark(self, handle: Any) -> Any:
        return msgspec.to_builtins(Stand(self._version, handle=handle))


def unheard(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return what a harness has not been told: all behind the last that it said."""
    places = [place for place, message in enumerate(messages, 1) if message.role == ASSISTANT]
    return tuple(messages[places[-1] :] if places else messages)


def _code(take: Any, harness: Harness, retry: Retry) -> StepCode:
    effect = Effect.KEYED if harness.keyed else Effect.ONCE
    return StepCode(
        function=take, name=EXCHANGE, is_async=True, inject="step", parameters=(), variadic=False,
        policy=Policy(effect=effect, retry=retry, not_performed=_UNBEGUN), own_codec=_ANY, aliases=(),
        simple=False, lasting=True,
    )  # fmt: skip


def _speech(ended: Ended) -> Speech:
    message = ended.message
    assert message is not None
    return Speech(
        ASSISTANT, message.parts, native=message.native, provider=message.provider, model=ended.model,
        usage=known(ended.usage),
    )  # fmt: skip


def _wasted(error: BaseException) -> dict[str, int | None] | None:
    usage = error.usage if isinstance(error, ModelError | HarnessFailed) else None
    return known(usage) if usage is not None else None
