"""Whoever holds a conversation with a worker that dies: sends the turns, answers, steers, watches, and tells of it."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

import holdfast as hf
from holdfast import events as e
from holdfast.core.ids import RunId
from holdfast.core.message import Message
from holdfast.runtime import Runtime
from holdfast.stream.event import Chunk, PreviewReset
from tests.chaos import script, talking
from tests.chaos.onlooking import Onlooker
from tests.chaos.program import Story, digest

NAME: Final = "the talk"
_BY: Final = "ann"


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation at its end, from all sides."""

    history: tuple[Message, ...]
    stories: tuple[Story, ...]
    """Every turn by its number, and what the clerk did by the turn's number and its step."""
    ledger: tuple[Any, ...]
    requests: tuple[tuple[str, bytes], ...]
    """What the models were asked, in order."""
    onlookers: tuple[Onlooker, ...]
    findings: tuple[str, ...]
    left: tuple[str, ...] = ()
    deaths: tuple["Death", ...] = ()


@dataclass(frozen=True, slots=True)
class Death:
    """Where a worker died: the point, and the last entries of the runs that were under way."""

    point: str
    entries: tuple[tuple[str, str, str], ...]


class Holder:
    """One conversation from its first turn to its last."""

    def __init__(self, runtime: Runtime, bell: Path, chance: Random, turns: Sequence[int]) -> None:
        self._runtime, self._bell, self._chance, self._turns = runtime, bell, chance, turns
        self._conversation = runtime.conversation(NAME, talking.desk)
        self._runs: dict[int, hf.Run[str]] = {}
        self._places: dict[RunId, str] = {}
        self._onlookers: dict[RunId, Onlooker] = {}
        self._watching = asyncio.TaskGroup()
        self._serving: list[asyncio.StreamWriter] = []
        self._over = False
        self.listening = asyncio.Event()
        """Set once a worker may come."""

    async def hold(self) -> None:
        """Return when every turn has ended; whoever serves is told so, and when it is given up."""
        try:
            async with await asyncio.start_unix_server(self._answer_bell, self._bell), self._watching:
                self.listening.set()
                for turn in self._turns:
                    await self._send(turn)
                    if turn + 1 == script.QUEUED and script.QUEUED in self._turns:
                        await self._send(turn + 1)
                    await self._runs[turn].result()
        finally:
            self._over = True
            for writer in self._serving:
                writer.close()

    async def _send(self, turn: int) -> None:
        if turn not in self._runs:
            self._runs[turn] = run = await self._conversation.send(script.said(turn), key=f"turn-{turn}")
            self._watch(run.id, str(turn))

    def _watch(self, run: RunId, place: str) -> None:
        if run not in self._onlookers:
            self._places[run] = place
            self._onlookers[run] = Onlooker(self._runtime, run, self._chance)
            self._watching.create_task(self._onlookers[run].follow(self._heard))

    async def _heard(self, run: RunId, event: Any) -> None:
        """Do what an entry of a run asks of somebody outside."""
        match event:
            case e.ChildSpawned():
                self._watch(RunId(event.child), f"{self._places[run]}/{event.step}")
            case e.QuestionAsked():
                [question] = [one for one in await self._runtime.client.questions(run) if one.step == event.step]
                yes, args = script.ANSWERS[int(self._places[run])]
                await self._runtime.answer(question, yes, args=args, by=_BY)
            case _:
                pass

    async def _answer_bell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            match await reader.readline():
                case talking.SERVES if not self._over:
                    self._serving.append(writer)
                    return
                case talking.WAITS:
                    run = self._runs[script.STEERED]
                    # Under one key: whoever dies while it waits waits again, and is told once all the same.
                    await run.steer(script.STEERING, by=_BY, key="hurry")
                    writer.write(b"go on\n")
                    await writer.drain()
                case _:
                    pass
        writer.close()

    async def died(self, point: str) -> Death:
        """Return where the worker died, by what the runs under way have come to."""
        last = []
        for run, place in list(self._places.items()):
            if not (await self._runtime.client.info(run)).status.terminal:
                entries = [event for event in await self._events(run) if not isinstance(event, Chunk | PreviewReset)]
                last.append((place, entries[-1].type, getattr(entries[-1], "step", None) or ""))
        return Death(point, tuple(last))

    async def _events(self, run: RunId) -> tuple[Any, ...]:
        return tuple([event async for event in self._runtime.client.events(run, follow=False)])

    async def tell(self, ledger: Sequence[Any], requests: Sequence[tuple[str, bytes]]) -> Talk:
        """Return all that there is to judge."""
        stories = []
        for run, place in self._places.items():
            info, events = await self._runtime.client.info(run), await self._events(run)
            digests = tuple(digest(event) for event in events)
            stories.append(Story(place, run, str(info.status), info.reason, info.result, events, digests))
        return Talk(
            history=tuple(await self._conversation.history()),
            stories=tuple(stories),
            ledger=tuple(ledger),
            requests=tuple(requests),
            onlookers=tuple(self._onlookers.values()),
            findings=tuple(
                [f"{finding.run} {finding.seq}: {finding.what}" async for finding in self._runtime.client.verify()]
            ),
        )


def plain(messages: Sequence[Message]) -> list[Any]:
    """Return messages as plain data."""
    return [msgspec.to_builtins(message) for message in messages]
