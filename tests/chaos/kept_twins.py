"""Broken twins of the harnesses whose provider keeps what it generates; each must be caught."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

import msgspec

from holdfast.agent.cost import Cost
from holdfast.agent.harness import Ask, Event, Known
from holdfast.agent.harnesses.interactions import Interaction
from holdfast.agent.harnesses.line import Line
from holdfast.agent.harnesses.responses import Responses
from holdfast.agent.harnesses.stateful import StatefulSession
from holdfast.agent.harnesses.wire import Fold
from holdfast.agent.model import ModelBusy, ModelCut, ModelError
from holdfast.engine.elsewhere import Elsewhere

Break = Callable[[], AbstractContextManager[Any]]


@contextmanager
def _believing() -> Iterator[None]:
    """The end of a stream is taken for the end of an answer."""
    heard = StatefulSession._heard

    async def all_is_well(self: Any, fold: Any, stream: AsyncGenerator[str, None]) -> AsyncGenerator[Event, None]:
        try:
            async for event in heard(self, fold, stream):
                yield event
        except ModelCut:
            if not fold.id:
                raise
            fold._resource = {**fold._resource, "status": "completed"}
            yield await self._ended(fold)

    with patch.object(StatefulSession, "_heard", all_is_well):
        yield


@contextmanager
def _half_calling() -> Iterator[None]:
    """Half a call is given to its tool."""
    with patch.object(Interaction, "sure", property(lambda self: True)):
        yield


@contextmanager
def _resending() -> Iterator[None]:
    """A creation that failed is taken for one that did not happen, and sent again without a word."""
    error = Line._error

    def harmless(self: Line, *given: Any, **told: Any) -> ModelError:
        found = error(self, *given, **told)
        return ModelBusy(str(found)) if isinstance(found, ModelCut) else found

    with patch.object(Line, "_error", harmless):
        yield


@contextmanager
def _recreating() -> Iterator[None]:
    """What was created is not looked for, but created again."""

    def attach(self: StatefulSession, ask: Ask, handle: Any, after: str | None) -> AsyncGenerator[Event, None]:
        return self.create(ask)

    with patch.object(StatefulSession, "attach", attach):
        yield


@contextmanager
def _deaf() -> Iterator[None]:
    """Being asked to come back later is taken for a failure that may have come after the creation."""
    error = Line._error

    def cut(self: Line, *given: Any, **told: Any) -> ModelError:
        found = error(self, *given, **told)
        return ModelCut(str(found)) if isinstance(found, ModelBusy) else found

    with patch.object(Line, "_error", cut):
        yield


@contextmanager
def _fleeting() -> Iterator[None]:
    """What is generated ends when nobody listens."""
    body = Responses.body

    def foreground(self: Responses, *given: Any) -> bytes:
        return msgspec.json.encode({**msgspec.json.decode(body(self, *given)), "background": False})

    with patch.object(Responses, "body", foreground):
        yield


@contextmanager
def _forking() -> Iterator[None]:
    """What a user says goes on from nothing."""
    create = StatefulSession.create

    def from_the_start(self: StatefulSession, ask: Ask) -> AsyncGenerator[Event, None]:
        results = all(message.role == "tool" for message in ask.messages)
        return create(self, ask if results else msgspec.structs.replace(ask, cursor=None))

    with patch.object(StatefulSession, "create", from_the_start):
        yield


FAULT_TWINS: Final[Mapping[str, Break]] = {
    "believing": _believing, "half_calling": _half_calling, "resending": _resending, "recreating": _recreating,
    "deaf": _deaf, "fleeting": _fleeting, "forking": _forking,
}  # fmt: skip


# In a process that dies: what is broken stays so until it does.


def _forget_ids() -> None:
    """The id of what was created is told to nobody."""
    taken = StatefulSession._taken

    def silent(self: StatefulSession, fold: Fold, data: str) -> list[Event]:
        return [event for event in taken(self, fold, data) if not isinstance(event, Known)]

    StatefulSession._taken = silent  # type: ignore[method-assign]


def _create_again() -> None:
    """What was created before a death is created again after it."""

    def attach(self: StatefulSession, ask: Ask, handle: Any, after: str | None) -> AsyncGenerator[Event, None]:
        return self.create(ask)

    StatefulSession.attach = attach  # type: ignore[method-assign]


def _never_doubt() -> None:
    """What a death left without an id is sent again, and nobody is shown that it may have happened."""

    async def again(self: Elsewhere, why: str, sent: Any, error: BaseException | None) -> Any:
        return await self.attempt(sent.attempt + 1)

    Elsewhere.doubt = again  # type: ignore[method-assign]


def _pay_nothing() -> None:
    """Nothing is set aside for an exchange, so that one that was lost costs nothing."""
    Cost.draws = lambda self, *, priced: {}  # type: ignore[method-assign]


KILL_TWINS: Final[Mapping[str, Callable[[], None]]] = {
    "": lambda: None, "forget_ids": _forget_ids, "create_again": _create_again, "never_doubt": _never_doubt,
    "pay_nothing": _pay_nothing,
}  # fmt: skip
