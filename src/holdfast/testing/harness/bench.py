"""What the harness kit is given: a harness, and the service behind it as a test has it in hand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from msgspec import Struct

from holdfast.agent.harness import Ask, Event, Harness, Session, Start, Told
from holdfast.agent.model import TextPiece
from holdfast.core.message import ToolCall

Line = str | Sequence[ToolCall]
"""What the service says in one exchange: text, or calls of the agent's tools."""


class Creation(Struct, frozen=True):
    """Something that the service created: an interaction, a response, a session's turn, a run."""

    id: str
    parent: str | None = None
    """What it goes on behind; None where it begins a chain."""


class Bench(Protocol):
    """A harness and its service, which lives in no process of ours. All of a bench's harnesses speak with one.

    A bench that has `tells = True` shows the words of an exchange that is held, one event each.
    """

    caps: bool
    """Whether the service has a cap of its own that `cap` can let it reach."""
    wrong_cursors: Sequence[Any]
    """Values that are no cursors of this harness's."""

    def harness(self) -> Harness:
        """Return another harness for the service, as another process would have it."""
        ...

    def clear(self, *lines: Line) -> None:
        """Let the service forget everything, and say these lines: the n-th in the n-th exchange of a chain."""
        ...

    def created(self) -> Sequence[Creation]:
        """Return all that was created since, in order."""
        ...

    def cancelled(self) -> Sequence[str]:
        """Return the ids of what somebody ended from outside."""
        ...

    def cut(self, after: int, *, clean: bool) -> None:
        """Let the next look at an exchange break off, once, after so many of the events behind its handle.

        With `clean` the stream ends as if it were over; without, its connection breaks.
        """
        ...

    def cap(self) -> None:
        """Let exchanges reach the service's own cap instead of their end."""
        ...

    def hold(self) -> None:
        """Let exchanges be created, and stay under way until `release` or their cancellation."""
        ...

    def release(self) -> None:
        """Let what is held go on."""
        ...

    def close(self) -> None:
        """End the service."""
        ...


class Listening:
    """A harness that keeps what another one reports."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.events: list[Event] = []
        """All events of all its sessions, in the order in which they came."""
        self._came = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness, name)

    async def open(self, start: Start) -> Session:
        """Open a session that is listened to."""
        return _Heard(await self._harness.open(start), self)

    def hear(self, event: Event) -> None:
        """Keep an event."""
        self.events.append(event)
        self._came.set()

    async def heard(self) -> None:
        """Wait until another event has come."""
        self._came.clear()
        await self._came.wait()

    @property
    def text(self) -> str:
        """What was shown so far."""
        pieces = [event.piece for event in self.events if isinstance(event, Told)]
        return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


class _Heard:
    """A session that is listened to."""

    def __init__(self, session: Session, listening: Listening) -> None:
        self._session, self._listening = session, listening

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def create(self, ask: Ask) -> AsyncIterator[Event]:
        return self._listen(self._session.create(ask))

    def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        return self._listen(self._session.attach(ask, handle, after))

    async def find(self, ask: Ask) -> Any:
        return await self._session.find(ask)

    async def cancel(self, handle: Any) -> None:
        await self._session.cancel(handle)

    async def close(self) -> None:
        await self._session.close()

    async def _listen(self, events: Any) -> AsyncIterator[Event]:
        try:
            async for event in events:
                self._listening.hear(event)
                yield event
        finally:
            await events.aclose()
