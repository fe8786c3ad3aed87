"""The provider: a loopback server whose every byte, pause and broken connection is told to it."""

import asyncio
import json
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Self

from tests.rigs.provider.chat import Chat
from tests.rigs.provider.frame import Dialect, Frame
from tests.rigs.provider.messages import Messages
from tests.rigs.provider.responses import Responses
from tests.rigs.provider.turn import Answer, Fault, Turn

_DIALECTS: Final[Mapping[str, Dialect]] = {
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/messages": Messages(),
}


@dataclass(frozen=True)
class Heard:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

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
        """How many generations were made, by model: what the provider would charge for."""
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
        return await _Streaming(reader, writer, turn, dialect, model).run()


@dataclass(frozen=True)
class _Streaming:
    """One streamed reply."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    turn: Turn
    dialect: Dialect
    model: str

    async def run(self) -> bool:
        fault = self.turn.fault
        chunked = fault.cut != "silent"
        kind = {"content-type": "text/event-stream", **self.turn.headers}
        kind |= {"transfer-encoding": "chunked"} if chunked else {"connection": "close"}
        self.writer.write(_head(200, kind))
        half_call = fault.flaw in ("half_call", "half_call_fin")
        frames = self.dialect.frames(self.turn.answer, self.model, half_call=half_call)
        for some in self._sent(frames):
            for segment in _segments(some) if fault.flaw == "split_utf8" else [some]:
                self.writer.write(b"%x\r\n%s\r\n" % (len(segment), segment) if chunked else segment)
                await self.writer.drain()
                await asyncio.sleep(self.turn.pause_seconds)
        return await self._end(chunked=chunked)

    def _sent(self, frames: Sequence[Frame]) -> Iterator[bytes]:
        """Yield what goes out before the end of the body."""
        fault, tokens = self.turn.fault, 0
        for number, frame in enumerate(frames):
            if fault.cut is not None and tokens >= fault.after and frame.carries != "frame":
                break
            if fault.flaw == "half_call_fin" and _last_call(frames, number):
                yield frame.bytes
                return
            if fault.flaw == "unterminated" and frame.carries == "end":
                return
            yield frame.bytes
            tokens += frame.carries == "token"
            if fault.flaw == "doubled" and frame.carries == "end":
                yield frame.bytes
        else:
            return
        wrong = {"malformed": b'data: {"id": "x", "choices": [{"ind\n\n', "broken_utf8": b'data: "caf\xc3"\n\n'}
        if fault.cut in wrong:
            named = b"event: content_block_delta\n" if isinstance(self.dialect, Messages) else b""
            yield named + wrong[fault.cut]
        elif fault.cut == "error":
            yield fault.body or self.dialect.error_frame()
        if fault.cut in ("malformed", "broken_utf8", "error"):
            yield from (frame.bytes for frame in frames[number:])

    async def _end(self, *, chunked: bool) -> bool:
        fault = self.turn.fault
        if fault.cut == "stall":
            # Until the client gives up.
            while await self.reader.read(1024):
                pass
            return False
        if fault.cut == "rst":
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()
            return False
        if fault.cut in ("fin", "silent") or fault.flaw == "half_call_fin":
            return False
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        return True


def _last_call(frames: Sequence[Frame], number: int) -> bool:
    return frames[number].carries == "call" and all(frame.carries != "call" for frame in frames[number + 1 :])


def _segments(some: bytes) -> Iterator[bytes]:
    """Yield an event in pieces that end within its characters."""
    start = 0
    for place, byte in enumerate(some):
        if byte & 0b1100_0000 == 0b1000_0000:
            yield some[start:place]
            start = place
    yield some[start:]


async def _request(reader: asyncio.StreamReader, connection: int) -> Heard | None:
    """Return the next request of a connection, or None at its end."""
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Heard(path=first.split()[1].partition("?")[0], headers=headers, body=body, connection=connection)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def plain(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    own = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    writer.write(_head(status, own) + body)
    await writer.drain()
    return True
