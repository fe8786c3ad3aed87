"""One streamed reply: its events as they are, or as a fault leaves them."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from tests.rigs.provider.frame import Failing, Frame
from tests.rigs.provider.messages import Messages
from tests.rigs.provider.turn import Fault

Until = Callable[[int], Awaitable[bool]]
"""Waits until an event is there, by its place; False where it will never be."""


@dataclass(frozen=True)
class Streaming:
    """Events that go out on a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    dialect: Failing
    frames: Sequence[Frame]
    fault: Fault
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_seconds: float = 0.0
    until: Until | None = None

    async def run(self) -> bool:
        """Send them; False when the connection is of no further use."""
        chunked = self.fault.cut != "silent"
        kind = {"content-type": "text/event-stream", **self.headers}
        kind |= {"transfer-encoding": "chunked"} if chunked else {"connection": "close"}
        self.writer.write(head(200, kind))
        await self.writer.drain()
        for number, some in self._sent():
            if self.until is not None and not await self.until(number):
                break
            for segment in _segments(some) if self.fault.flaw == "split_utf8" else [some]:
                self.writer.write(b"%x\r\n%s\r\n" % (len(segment), segment) if chunked else segment)
                await self.writer.drain()
                await asyncio.sleep(self.pause_seconds)
        return await self._end(chunked=chunked)

    def _sent(self) -> Iterator[tuple[int, bytes]]:
        """Yield what goes out before the end of the body, each with the place of the event that must be there."""
        fault, frames, tokens = self.fault, self.frames, 0
        for number, frame in enumerate(frames):
            if self._is_cut(number, tokens, frame):
                break
            if fault.flaw == "half_call_fin" and _last_call(frames, number):
                yield number, frame.bytes
                return
            if fault.flaw == "unterminated" and frame.carries == "end":
                return
            yield number, frame.bytes
            tokens += frame.carries == "token"
            if fault.flaw == "doubled" and frame.carries == "end":
                yield number, frame.bytes
        else:
            return
        wrong = {"malformed": b'data: {"id": "x", "choices": [{"ind\n\n', "broken_utf8": b'data: "caf\xc3"\n\n'}
        if fault.cut in wrong:
            named = b"event: content_block_delta\n" if isinstance(self.dialect, Messages) else b""
            yield number, named + wrong[fault.cut]
        elif fault.cut == "error":
            yield number, fault.body or self.dialect.error_frame()
        if fault.cut in ("malformed", "broken_utf8", "error"):
            yield from enumerate((frame.bytes for frame in frames[number:]), start=number)

    def _is_cut(self, number: int, tokens: int, frame: Frame) -> bool:
        fault = self.fault
        if fault.cut is None:
            return False
        if fault.after_events is not None:
            return number >= fault.after_events
        return tokens >= fault.after and frame.carries != "frame"

    async def _end(self, *, chunked: bool) -> bool:
        fault = self.fault
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


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """Return how a reply begins."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def plain(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Send a reply that is no stream; the connection can be used again."""
    own = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    writer.write(head(status, own) + body)
    await writer.drain()
    return True
