"""What a stateful provider has made and keeps, and in which form it tells of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.rigs.provider.frame import Failing, Frame
from tests.rigs.provider.turn import Answer, Fault


@dataclass(eq=False)
class Generation:
    """One generation: made and charged once, whoever hears of it."""

    id: str
    model: str
    asked: Mapping[str, Any]
    answer: Answer
    previous: str | None
    later: list[Fault] = field(default_factory=list)
    frames: Sequence[Frame] = ()
    come: int = 0
    """How many of its events are there."""
    cancelled: bool = False
    holds: bool = False
    """It goes on when somebody listens again."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def background(self) -> bool:
        """Whether it goes on when nobody listens."""
        return bool(self.asked.get("background"))

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.cancelled or self.come >= len(self.frames)

    @property
    def done(self) -> bool:
        """Whether it came to its end."""
        return self.over and not self.cancelled

    def grow(self, come: int) -> None:
        """Have so many events."""
        if not self.over:
            self.come = come
            self._tell()

    def cancel(self) -> None:
        """End it where it is."""
        if not self.over:
            self.cancelled = True
            self._tell()

    async def until(self, number: int) -> bool:
        """Wait until the event of a place is there; False where it will never be."""
        while self.come <= number and not self.over:
            await self._changed.wait()
        return self.come > number

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Stateful(Failing, Protocol):
    """A wire format whose generations are kept."""

    def events(self, generation: Generation, *, half_call: bool) -> Sequence[Frame]:
        """Return all events of a generation, in order."""

    def resource(self, generation: Generation) -> Mapping[str, Any]:
        """Return a generation as far as it has come."""

    def previous(self, asked: Mapping[str, Any]) -> str | None:
        """Return which generation a request goes on from."""

    def answered(self, asked: Mapping[str, Any]) -> Sequence[str]:
        """Return the calls that a request has results of."""

    def skipped(self, query: Mapping[str, str]) -> int:
        """Return how many events somebody has who asks for the rest.

        Raises:
            ValueError: there is no such event.
        """

    def error(self, status: int) -> Mapping[str, Any]:
        """Return the body of a refusal."""
