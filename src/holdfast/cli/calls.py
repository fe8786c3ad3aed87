"""The calls of an agent's messages, followed through the run's events: what was asked for, and how each stands."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast import events as ev
from holdfast.cli.surface import brief, shown
from holdfast.core.message import ToolCall
from holdfast.core.status import Effect
from holdfast.core.stepkey import branch_of, set_of
from holdfast.core.transcript import CALLS
from holdfast.stream.event import Event

_MOST: Final = 28
"""How much of one argument is shown."""


class Call(Struct, kw_only=True):
    """One call: as the model wrote it, and what its events told so far."""

    name: str
    arguments: str
    asked_at: int
    begun_at: int | None = None
    effect: Effect | None = None
    child: str | None = None
    doubt: str = ""
    waits: bool = False
    """For a person's decision."""
    denied: bool = False
    ended: bool = False

    @property
    def words(self) -> str:
        """It as a line of code would have it, short."""
        return f"{shown(self.name)}({_arguments(self.arguments)})"

    def took(self, at: int) -> int:
        """Return the µs from its beginning to `at`."""
        return at - (self.begun_at or self.asked_at)


class Calls:
    """Follows the calls of one run; its events are taken in order, from the first."""

    def __init__(self) -> None:
        self._sets: dict[str, Sequence[Call]] = {}

    def ask(self, event: ev.MessageAdded, asked: Sequence[ToolCall]) -> Sequence[Call]:
        """Keep the calls of a message and return them."""
        calls = [Call(name=one.name, arguments=one.arguments, asked_at=event.at) for one in asked]
        if calls:
            self._sets[f"{branch_of(event.step or '0/')}/{CALLS}#{len(self._sets) + 1}"] = calls
        return calls

    def of(self, event: Event) -> Call | None:
        """Return the call that an event belongs to."""
        branch = branch_of(getattr(event, "step", None) or "0/")
        asked = self._sets.get(set_of(branch) or "", ())
        number = branch.rpartition(".")[2]
        return asked[int(number) - 1] if number.isdecimal() and 0 < int(number) <= len(asked) else None

    @property
    def under_way(self) -> Sequence[Call]:
        """Those without a result."""
        return [call for calls in self._sets.values() for call in calls if not call.ended]

    def take(self, event: Event) -> Call | None:
        """Note what an event tells of a call, and return the call; None for an event of none."""
        call = self.of(event)
        match event:
            case _ if call is None:
                return None
            case ev.StepStarted(waits=[]):
                call.effect, call.begun_at, call.waits = event.effect, event.at, False
            case ev.StepDoubted():
                call.doubt = event.sentence
            case ev.QuestionAsked():
                call.waits = True
            case ev.QuestionAnswered():
                call.waits, call.denied, call.begun_at = False, not event.yes, event.at
            case ev.ChildSpawned():
                call.child = event.child
            case ev.MessageAdded():
                call.ended = True
            case _:
                pass
        return call


def _arguments(text: str) -> str:
    try:
        given: Any = msgspec.json.decode(text or "{}")
    except msgspec.MsgspecError:
        return brief(text, _MOST)
    if not isinstance(given, Mapping):
        return brief(given, _MOST)
    return ", ".join(f"{shown(str(name))}={brief(value, _MOST)}" for name, value in given.items())
