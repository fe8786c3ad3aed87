"""Generations that the provider keeps: created, asked for again, cancelled; each made and charged once."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.rigs.provider.generation import Generation, Stateful
from tests.rigs.provider.streaming import Streaming, plain
from tests.rigs.provider.turn import Fault, Turn

Next = Callable[[str], Turn]
"""Says what a model says next."""


@dataclass(frozen=True)
class Asked:
    """One request, and the connection that it came on."""

    method: str
    rest: str
    """The path behind that of the collection."""
    query: Mapping[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class Keeper:
    """All that one wire format has made."""

    dialect: Stateful
    prefix: str
    made: list[Generation] = field(default_factory=list)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _growing: set["asyncio.Task[None]"] = field(default_factory=set)

    def find(self, id: str) -> Generation | None:
        """Return a generation that is still kept."""
        return next((one for one in self.made if one.id == id and one.asked.get("store") is not False), None)

    def model_of(self, asked: Asked) -> str:
        """Return whose request it is."""
        if not asked.rest:
            return str(json.loads(asked.body).get("model"))
        found = self.find(asked.rest.partition("/")[0])
        return found.model if found is not None else ""

    async def reply(self, asked: Asked, next_turn: Next) -> bool:
        """Answer one request; False when its connection is of no further use."""
        if not asked.rest:
            return await self._create(asked, next_turn)
        id, _, verb = asked.rest.partition("/")
        found = self.find(id)
        if found is None:
            return await self._refuse(asked, 404)
        fault = found.later.pop(0) if found.later else Fault()
        if fault.status != 200:
            return await self._fail(asked, fault)
        if asked.method == "GET" and asked.query.get("stream") == "true":
            return await self._attach(asked, found, fault)
        if asked.method == "GET":
            return await self._tell(asked, found)
        if asked.method == "DELETE":
            self.made[self.made.index(found)].asked = {**found.asked, "store": False}
            return await self._send(asked, {})
        if verb == "cancel" and found.background:
            found.cancel()
            return await self._tell(asked, found)
        return await self._refuse(asked, 400)

    async def _create(self, asked: Asked, next_turn: Next) -> bool:
        body = json.loads(asked.body)
        wrong = self._wrong(body)
        if wrong is not None:
            return await self._refuse(asked, 400, wrong)
        turn = next_turn(str(body.get("model")))
        fault = turn.fault
        if fault.status != 200 and not fault.created:
            return await self._fail(asked, fault)
        made = self._make(body, turn)
        if fault.status != 200:
            return await self._fail(asked, fault)
        if body.get("stream"):
            return await self._stream(asked, made, fault, skipped=0, headers=turn.headers)
        if not made.background:
            await made.until(len(made.frames) - 1)
        return await self._tell(asked, made)

    def _wrong(self, body: Mapping[str, Any]) -> str | None:
        """Say why a request cannot be answered: it does not go on from where it says that it does."""
        previous, given = self.dialect.previous(body), set(self.dialect.answered(body))
        if previous is None:
            return "there is no such call" if given else None
        before = self.find(previous)
        if before is None:
            return f"there is no {previous}"
        if not before.done:
            return f"{previous} is not over"
        wanted = {call.id for call in before.answer.calls}
        return None if given == wanted else f"the calls of {previous} are {wanted}, and the results are of {given}"

    def _make(self, body: Mapping[str, Any], turn: Turn) -> Generation:
        id = f"{self.prefix}{next(self._numbers)}"
        previous = self.dialect.previous(body)
        made = Generation(id, str(body["model"]), body, turn.answer, previous, list(turn.later))
        made.frames = self.dialect.events(made, half_call=False)
        made.holds = turn.holds_after is not None
        self.made.append(made)
        if turn.pause_seconds == 0:
            made.grow(len(made.frames) if turn.holds_after is None else turn.holds_after)
        else:
            growing = asyncio.get_running_loop().create_task(_grow(made, turn))
            self._growing.add(growing)
            growing.add_done_callback(self._growing.discard)
        return made

    async def _attach(self, asked: Asked, found: Generation, fault: Fault) -> bool:
        try:
            skipped = self.dialect.skipped(asked.query)
        except ValueError:
            return await self._refuse(asked, 400)
        if not found.background or skipped > found.come:
            return await self._refuse(asked, 400)
        if found.holds:
            found.grow(len(found.frames))
        return await self._stream(asked, found, fault, skipped=skipped)

    async def _stream(
        self, asked: Asked, made: Generation, fault: Fault, *, skipped: int, headers: Mapping[str, str] | None = None
    ) -> bool:
        frames = made.frames
        if fault.flaw in ("half_call", "half_call_fin"):
            frames = self.dialect.events(made, half_call=True)

        async def until(number: int) -> bool:
            return await made.until(skipped + number)

        streaming = Streaming(
            asked.reader, asked.writer, self.dialect, frames[skipped:], fault, headers or {}, until=until
        )
        if made.background:
            return await streaming.run()
        try:
            whole = await streaming.run()
        except (ConnectionError, asyncio.CancelledError):
            made.cancel()
            raise
        if not whole or fault.cut is not None:
            made.cancelled = True  # nobody listens any more
        return whole

    async def _tell(self, asked: Asked, found: Generation) -> bool:
        return await self._send(asked, self.dialect.resource(found))

    async def _send(self, asked: Asked, body: Mapping[str, Any]) -> bool:
        return await plain(asked.writer, 200, {}, json.dumps(body).encode())

    async def _fail(self, asked: Asked, fault: Fault) -> bool:
        body = fault.body if fault.body is not None else json.dumps(self.dialect.error(fault.status)).encode()
        return await plain(asked.writer, fault.status, fault.headers, body)

    async def _refuse(self, asked: Asked, status: int, why: str = "") -> bool:
        body = self.dialect.error(status)
        if why:
            body = {"error": {**body["error"], "message": why}}
        return await plain(asked.writer, status, {}, json.dumps(body).encode())


async def _grow(made: Generation, turn: Turn) -> None:
    most = len(made.frames) if turn.holds_after is None else turn.holds_after
    for come in range(1, most + 1):
        await asyncio.sleep(turn.pause_seconds)
        made.grow(come)
