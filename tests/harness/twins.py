"""Deliberately broken twins of the scripted harness, each with a fault that a real one had."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast.core.message import ASSISTANT, Message, Text
from holdfast.core.status import NOT_DONE
from holdfast.harness import Ask, Ended, Event, Known, Start, Told
from holdfast.models import ModelCut
from holdfast.testing.scripted_harness import ScriptedHarness, ScriptedSession


class _Twin(ScriptedHarness):
    """A harness whose sessions are broken."""

    session: type[ScriptedSession] = ScriptedSession

    async def open(self, start: Start) -> ScriptedSession:
        await super().open(start)
        return self.session(self)


class _ForkingSession(ScriptedSession):
    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        created = self._provider.created
        latest = {"at": created[-1].id} if created else None
        async for event in super().create(msgspec.structs.replace(ask, cursor=latest)):
            yield event


class Forking(_Twin):
    """Goes on behind whatever was created last, and not behind what was committed."""

    session = _ForkingSession


class _RecreatingSession(ScriptedSession):
    async def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        async for event in self.create(ask):
            yield event


class Recreating(_Twin):
    """Throws the id away that it has, and creates again."""

    session = _RecreatingSession


class _ForgetfulSession(ScriptedSession):
    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        async for event in super().create(ask):
            if not isinstance(event, Known):
                yield event


class Forgetful(_Twin):
    """Never tells the id of what it created."""

    session = _ForgetfulSession


class _HopefulSession(ScriptedSession):
    async def _events(self, known: Any, after: int) -> AsyncIterator[Event]:
        said: list[str] = []
        async for event in super()._events(known, after):
            said += [event.piece.text] if isinstance(event, Told) and hasattr(event.piece, "text") else []
            yield event
            if isinstance(event, Ended):
                return
        yield Ended(message=Message(ASSISTANT, (Text("".join(said)),)), cursor={"at": known.id}, id="end")


class Hopeful(_Twin):
    """Takes the end of a stream for the end of the exchange."""

    session = _HopefulSession


class _RepeatingSession(ScriptedSession):
    async def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        async for event in super().attach(ask, handle, None):
            yield event


class Repeating(_Twin):
    """Sends all events again, whatever was seen."""

    session = _RepeatingSession


class Gullible(ScriptedHarness):
    """Begins anew where it cannot read its cursor."""

    async def open(self, start: Start) -> ScriptedSession:
        return ScriptedSession(self)


class _BoastfulSession(ScriptedSession):
    async def _events(self, known: Any, after: int) -> AsyncIterator[Event]:
        async for event in super()._events(known, after):
            yield msgspec.structs.replace(event, how="completed") if isinstance(event, Ended) else event


class Boastful(_Twin):
    """Reports a cap that was reached as a completion."""

    session = _BoastfulSession


class _DenyingSession(ScriptedSession):
    async def find(self, ask: Ask) -> Any:
        return NOT_DONE


class Denying(_Twin):
    """Says of what it does not find that it never was."""

    session = _DenyingSession


class _KeylessSession(ScriptedSession):
    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        number = len(self._provider.created)
        async for event in super().create(msgspec.structs.replace(ask, key=f"{ask.key}-{number}")):
            yield event


class Keyless(_Twin):
    """Says that it is keyed, and sends another key each time."""

    session = _KeylessSession

    def __init__(self, *lines: Any, **options: Any) -> None:
        super().__init__(*lines, **{**options, "keyed": True})


class _StubbornSession(ScriptedSession):
    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        try:
            async for event in super().create(ask):
                yield event
        except ModelCut:
            async for event in super().create(ask):
                yield event


class Stubborn(_Twin):
    """Creates again by itself when its stream is cut."""

    session = _StubbornSession


class _DeafSession(ScriptedSession):
    async def cancel(self, handle: Any) -> None:
        return


class Deaf(_Twin):
    """Does not pass on that a run was cancelled."""

    session = _DeafSession


class _JealousSession(ScriptedSession):
    _begun: list[str]

    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        async for event in super().create(ask):
            if isinstance(event, Known):
                self._begun = [event.handle["id"]]
            yield event

    async def close(self) -> None:
        for id in getattr(self, "_begun", []):
            self._provider.end(id)


class Jealous(_Twin):
    """Ends what it created when its process goes."""

    session = _JealousSession
