"""A bench for the coding harnesses: a stand-in whose turns can be cut, capped and held."""

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from holdfast.harness import Ask, Event, Harness, Known, Start
from holdfast.testing.harness import Creation, Line
from tests.coding.rig import AGAIN, Kind, StandIn


class CodingBench:
    """A stand-in of one kind. What is created is a turn of a session; it is known by the key of its exchange."""

    wrong_cursors: Sequence[Any] = ({"session": 7}, {"session": "s", "workspace": "/somewhere/else"})

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._folder, self._kind = folder, kind
        self.caps = kind == "claude"
        self._number = 0
        self.clear("nothing")

    def harness(self) -> Harness:
        """Return another one for the same stand-in."""
        return _Announcing(self, self._standin.harness(workspace=self._standin.workspace))

    def clear(self, *lines: Line) -> None:
        """Begin with a stand-in that remembers nothing."""
        self._number += 1
        self._standin = StandIn(self._folder / str(self._number), self._kind)
        (self._standin.folder / "lines.json").write_text(json.dumps(lines))
        self.announced: dict[str, str | None] = {}
        """What was begun, by its key, and the key of what it goes on behind."""
        self.handles: dict[str, str] = {}
        self.called_off: list[str] = []

    def created(self) -> Sequence[Creation]:
        """Return what was announced, and every turn that the stand-in was asked for without."""
        made = [Creation(key, parent) for key, parent in self.announced.items()]
        asked = [one for name in self._standin.sessions for one in self._standin.said(name) if one.startswith("asked")]
        turns = sum(AGAIN not in one for one in asked)
        return [*made, *(Creation(f"unannounced {number}") for number in range(len(made), turns))]

    def cancelled(self) -> Sequence[str]:
        """Return what the harness was told to end; nothing of it may be left."""
        assert not any(Path(f"/proc/{call['pid']}").exists() for call in self._standin.calls if self.called_off)
        return self.called_off

    def cut(self, after: int, *, clean: bool) -> None:
        """Let the next start break off."""
        (self._standin.folder / "cut.json").write_text(json.dumps({"after": after, "clean": clean}))

    def cap(self) -> None:
        """Let turns reach the program's cap."""
        (self._standin.folder / "capped").touch()

    def hold(self) -> None:
        """Let turns stay under way."""
        (self._standin.folder / "held").touch()

    def release(self) -> None:
        """Let them go on."""
        (self._standin.folder / "held").unlink()

    def close(self) -> None:
        """Nothing is open."""


class _Announcing:
    """A harness that tells its bench what it begins."""

    def __init__(self, bench: CodingBench, harness: Any) -> None:
        self._bench, self._harness = bench, harness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._harness, name)

    async def open(self, start: Start) -> "_Announced":
        return _Announced(self._bench, await self._harness.open(start))


class _Announced:
    """A session of such a harness."""

    def __init__(self, bench: CodingBench, session: Any) -> None:
        self._bench, self._session = bench, session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def create(self, ask: Ask) -> AsyncGenerator[Event, None]:
        return self._heard(ask, self._session.create(ask))

    def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncGenerator[Event, None]:
        return self._heard(ask, self._session.attach(ask, handle, after))

    async def cancel(self, handle: Any) -> None:
        await self._session.cancel(handle)
        self._bench.called_off.append(self._bench.handles[json.dumps(handle)])

    async def _heard(self, ask: Ask, events: Any) -> AsyncGenerator[Event, None]:
        try:
            async for event in events:
                if isinstance(event, Known):
                    self._bench.announced.setdefault(ask.key, ask.cursor["key"] if ask.cursor is not None else None)
                    self._bench.handles[json.dumps(event.handle)] = ask.key
                yield event
        finally:
            await events.aclose()
