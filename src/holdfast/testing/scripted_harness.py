"""A harness that follows a script, and the provider behind it: what is created there outlives the process."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.agent.harness import Ask, CursorInvalid, Ended, Event, InDoubt, Known, Start, Told
from holdfast.agent.model import ModelCut, ModelRefused, TextPiece
from holdfast.core.message import ASSISTANT, Message, Part, Text, ToolCall, Usage

_MOST: Final = 10_000
_LOOK_SECONDS: Final = 0.005

Line = str | ToolCall | list[Any] | Ended | BaseException | Callable[[Ask], Any]
"""What is said next: text, calls, a whole ending, an error before anything is created, or what a function returns."""


class Created(Struct, frozen=True, omit_defaults=True):
    """One exchange as the provider knows it: who made it, behind which one, and what it says."""

    id: str
    parent: str | None
    key: str
    ended: Ended


class ScriptedProvider:
    """Where exchanges are kept: in this process, or in a folder that any process may look into.

    Every exchange goes behind another one or begins a chain; a chain with two exchanges behind one has forked.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = Path(folder) if folder is not None else None
        self._kept: list[dict[str, Any]] = []
        self.cuts: list[tuple[int, bool]] = []
        """After how many events each of the next looks at an exchange breaks off; True: as if it were over."""
        self.held = False
        """True while no exchange comes to its end, unless it is cancelled."""

    def add(self, parent: str | None, key: str, ended: Ended) -> Created:
        """Keep a new exchange."""
        new = Created(f"ex-{len(self.created) + 1}", parent, key, ended)
        self._note({"created": msgspec.to_builtins(new)})
        return new

    def end(self, id: str) -> None:
        """Note that somebody ended it."""
        self._note({"cancelled": id})

    @property
    def created(self) -> list[Created]:
        """All exchanges that were ever created, in order."""
        return [msgspec.convert(one["created"], Created) for one in self._notes() if "created" in one]

    @property
    def cancelled(self) -> list[str]:
        """The ids of those that were ended from outside."""
        return [str(one["cancelled"]) for one in self._notes() if "cancelled" in one]

    @property
    def forks(self) -> list[str]:
        """The ids behind which more than one exchange was gone on with."""
        used = {one.parent for one in self.created if one.parent is not None}
        going_on = [one.parent for one in self.created if one.parent is not None and one.id in used]
        return sorted({parent for parent in going_on if going_on.count(parent) > 1})

    def get(self, id: Any) -> Created | None:
        """Return one by its id."""
        return next((one for one in self.created if one.id == id), None)

    def of_key(self, key: str) -> Created | None:
        """Return the one that was created under a key."""
        return next((one for one in self.created if one.key == key), None)

    def depth(self, id: str | None) -> int:
        """Return how many exchanges a chain has up to this one."""
        depth = 0
        while id is not None and depth < _MOST:
            found = self.get(id)
            depth, id = depth + 1, found.parent if found is not None else None
        return depth

    def _note(self, what: dict[str, Any]) -> None:
        self._kept.append(what)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = os.open(self._folder / "provider.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                os.write(file, json.dumps(what).encode() + b"\n")
            finally:
                os.close(file)

    def _notes(self) -> list[dict[str, Any]]:
        if self._folder is None:
            return self._kept
        path = self._folder / "provider.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


class ScriptedHarness:
    """A harness for tests: the n-th exchange of a chain says the n-th line, whichever process asks."""

    version = 1
    takes_tools = True

    def __init__(
        self, *lines: Line, provider: ScriptedProvider | None = None, name: str = "scripted", keyed: bool = False,
        finds: bool = False, in_doubt: InDoubt = "again",
    ) -> None:  # fmt: skip
        """Follow a script; behind its last line the last one is said again.

        Args:
            lines: What is said, one for each exchange of a chain.
            provider: Where exchanges are kept; by default in this process.
            name: What conversations are bound to.
            keyed: Whether a creation sent twice under one key is one.
            finds: Whether an exchange whose id was lost can be looked up by its key.
            in_doubt: What follows where it cannot.
        """
        self.provider = provider if provider is not None else ScriptedProvider()
        self.lines, self.name, self.keyed, self.finds, self.in_doubt = lines, name, keyed, finds, in_doubt
        self.lane = f"scripted/{name}"
        self.asks: list[Ask] = []
        """All that was asked of this object, creations only."""
        self.attached: list[tuple[Any, str | None]] = []
        """What was attached to: handles, and behind which event."""
        self.starts: list[Start] = []

    async def open(self, start: Start) -> "ScriptedSession":
        """Return a session of the script."""
        at = start.cursor
        if at is not None and (not isinstance(at, dict) or not isinstance(at.get("at"), str)):
            raise CursorInvalid(f"{at!r} names no exchange", harness=self.name, what="corrupt")
        self.starts.append(start)
        return ScriptedSession(self)


class ScriptedSession:
    """One turn with a scripted harness."""

    def __init__(self, harness: ScriptedHarness) -> None:
        self._harness, self._provider = harness, harness.provider

    async def create(self, ask: Ask) -> AsyncIterator[Event]:
        """Say the next line of the chain."""
        harness, provider = self._harness, self._provider
        harness.asks.append(ask)
        known = provider.of_key(ask.key) if harness.keyed else None
        if known is None:
            parent = ask.cursor["at"] if ask.cursor is not None else None
            known = provider.add(parent, ask.key, self._ending(ask, provider.depth(parent)))
        yield Known({"id": known.id}, id="0")
        async for event in self._events(known, 0):
            yield event

    async def attach(self, ask: Ask, handle: Any, after: str | None) -> AsyncIterator[Event]:
        """Go on with an exchange."""
        self._harness.attached.append((handle, after))
        known = self._provider.get(handle["id"])
        if known is None:
            raise ModelRefused(f"there is no exchange {handle['id']!r}")
        async for event in self._events(known, int(after or 0)):
            yield event

    async def _events(self, known: Created, after: int) -> AsyncIterator[Event]:
        words = (known.ended.message.text if known.ended.message is not None else "").split()
        events: list[Event] = [Told(TextPiece(f"{word} "), id=str(n)) for n, word in enumerate(words, 1)]
        events.append(msgspec.structs.replace(known.ended, id=str(len(words) + 1)))
        cut, clean = self._provider.cuts.pop(0) if self._provider.cuts else (None, False)
        for number, event in enumerate(events, 1):
            if number <= after:
                continue
            if number - 1 == cut and clean:
                return
            if number - 1 == cut:
                raise ModelCut(f"cut after {cut} events")
            if number == len(events):
                await self._held(known.id)
            yield event

    async def _held(self, id: str) -> None:
        while self._provider.held:
            if id in self._provider.cancelled:
                raise ModelRefused(f"exchange {id!r} was cancelled")
            await asyncio.sleep(_LOOK_SECONDS)

    async def find(self, ask: Ask) -> Any:
        """Look an exchange up by its key, where that can be done."""
        known = self._provider.of_key(ask.key) if self._harness.finds else None
        return {"id": known.id} if known is not None else None

    async def cancel(self, handle: Any) -> None:
        """End an exchange."""
        self._provider.end(handle["id"])

    async def close(self) -> None:
        """Let go of nothing."""

    def _ending(self, ask: Ask, depth: int) -> Ended:
        lines = self._harness.lines
        line: Any = lines[min(depth, len(lines) - 1)]
        if callable(line):
            line = line(ask)
        if isinstance(line, BaseException):
            raise line
        number = len(self._provider.created) + 1
        if isinstance(line, Ended):
            return line
        several = line if isinstance(line, list) else [line]
        parts = tuple(_part(one, f"call-{depth + 1}-{place}") for place, one in enumerate(several, 1))
        usage = Usage(input=sum(len(message.text) for message in ask.messages), output=len(str(parts)))
        message = Message(ASSISTANT, parts)
        return Ended(message=message, cursor={"at": f"ex-{number}"}, usage=usage, model="scripted")


def _part(one: Any, id: str) -> Part:
    if isinstance(one, str):
        return Text(one)
    if isinstance(one, ToolCall) and not one.id:
        return ToolCall(id, one.name, one.arguments)
    part: Part = one
    return part
