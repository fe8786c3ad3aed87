"""The provider: a loopback server whose every byte, pause and broken connection is told to it."""

import asyncio
import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import parse_qsl

from tests.rigs.provider.chat import Chat
from tests.rigs.provider.frame import Dialect
from tests.rigs.provider.generation import Generation, Stateful
from tests.rigs.provider.interactions import Interactions
from tests.rigs.provider.keeper import Asked, Keeper
from tests.rigs.provider.messages import Messages
from tests.rigs.provider.responses import Responses
from tests.rigs.provider.streaming import Streaming, plain
from tests.rigs.provider.turn import Answer, Fault, Turn

_DIALECTS: Final[Mapping[str, Dialect]] = {
    "/v1/chat/completions": Chat(),
    "/v1/messages": Messages(),
}
_KEPT: Final[Mapping[str, tuple[type[Stateful], str]]] = {
    "/v1/responses": (Responses, "resp_"),
    "/v1/interactions": (Interactions, "v1_"),
}
"""By their paths: what speaks the formats whose generations are kept, and how their ids begin."""


@dataclass(frozen=True)
class Heard:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def json(self) -> dict[str, Any]:
        """What it asks."""
        asked: dict[str, Any] = json.loads(self.body)
        return asked


class Provider:
    """A server in a thread of its own; what it says to a model is told beforehand, by the model's name."""

    def __init__(self) -> None:
        self.heard: dict[str, list[Heard]] = defaultdict(list)
        self.created: dict[str, int] = defaultdict(int)
        """How many generations were made that it does not keep, by model: what the provider would charge for."""
        self.keepers = {path: Keeper(kind(), prefix) for path, (kind, prefix) in _KEPT.items()}
        self._turns: dict[str, deque[Turn]] = defaultdict(deque)
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="provider", daemon=True)
        self._server: asyncio.Server | None = None

    def says(self, model: str, *turns: Turn | Answer | Fault) -> None:
        """Say these to a model's next requests; a fault by itself is one of an empty answer."""
        for turn in turns:
            match turn:
                case Answer():
                    self._turns[model].append(Turn(turn))
                case Fault():
                    self._turns[model].append(Turn(fault=turn))
                case Turn():
                    self._turns[model].append(turn)

    def made(self, model: str) -> Sequence[Generation]:
        """Return the generations of a model that are kept, in the order of their making."""
        return [one for keeper in self.keepers.values() for one in keeper.made if one.model == model]

    def next_turn(self, heard: Heard, model: str) -> Turn:
        """Return what a model says to a request."""
        return self._turns[model].popleft() if self._turns[model] else Turn(Answer(tokens=("fine",)))

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """Its address, without the version of an interface."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """Its address as OpenAI's clients want it."""
        return f"{self.url}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        starting = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while (heard := await _request(reader, number)) is not None:
                if not await self._reply(heard, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _reply(self, heard: Heard, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when its connection is of no further use."""
        for path, keeper in self.keepers.items():
            if heard.path == path or heard.path.startswith(f"{path}/"):
                rest = heard.path.removeprefix(path).removeprefix("/")
                asked = Asked(heard.method, rest, heard.query, heard.body, reader, writer)
                return await self._keep(heard, keeper, asked)
        dialect = _DIALECTS.get(heard.path)
        if dialect is None:
            return await plain(writer, 404, {}, b'{"error": {"message": "no such path", "type": "not_found_error"}}')
        model = str(heard.json.get("model"))
        self.heard[model].append(heard)
        turn = self.next_turn(heard, model)
        fault = turn.fault
        if fault.status == 200 or fault.created:
            self.created[model] += 1
        if fault.status != 200:
            body = fault.body if fault.body is not None else json.dumps(dialect.error(fault.status)).encode()
            return await plain(writer, fault.status, fault.headers, body)
        if not heard.json.get("stream"):
            return await plain(writer, 200, turn.headers, json.dumps(dialect.whole(turn.answer, model)).encode())
        half_call = fault.flaw in ("half_call", "half_call_fin")
        frames = dialect.frames(turn.answer, model, half_call=half_call)
        return await Streaming(
            reader, writer, dialect, frames, fault, headers=turn.headers, pause_seconds=turn.pause_seconds
        ).run()

    async def _keep(self, heard: Heard, keeper: Keeper, asked: Asked) -> bool:
        """Answer a request for something that is kept."""
        self.heard[keeper.model_of(asked)].append(heard)
        return await keeper.reply(asked, lambda model: self.next_turn(heard, model))


async def _request(reader: asyncio.StreamReader, connection: int) -> Heard | None:
    """Return the next request of a connection, or None at its end."""
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split()
    path, _, query = target.partition("?")
    return Heard(path, headers, body, connection, method, dict(parse_qsl(query)))
