"""A TCP proxy before PostgreSQL that loses a chosen reply, cuts the line while a commit runs, or lets it land late."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self, TypeVar

from tests.rigs.daemon import LOOPBACK
from tests.rigs.peers import pid_at
from tests.rigs.server import at_port
from tests.rigs.wire import CANCEL_REQUEST, GSS_REQUEST, SSL_REQUEST, After, Conversation, Request, Splitter, code

WRITES: Final = r"\b(?:INSERT|UPDATE|DELETE|MERGE|CREATE|ALTER|DROP|TRUNCATE|hf_\w+\s*\()"
"""What a transaction that may have written has in its text; a call of one of our functions may."""
_CHUNK: Final = 1 << 16
_PATIENCE_SECONDS: Final = 10.0
_PARTS: Final = (b"P", b"B", b"D", b"E", b"C")
"""The parts of a request, which go on together with its end, or when the client wants an answer before that."""
_COPY: Final = (b"G", b"H", b"W")

T = TypeVar("T")


class Kind(Enum):
    """How a commit's connection is cut, from the client's side always the same: no reply, and the line is dead."""

    BEFORE = "it never arrives"
    DURING = "it arrives, and the line is cut at once"
    SWALLOWED = "it is done, and the reply is lost"
    HANGING = "the line is cut at once, it is done but for its end, and ends only when let"
    LATE = "the line is cut at once, and it arrives only when let"


@dataclass(frozen=True, slots=True)
class Fault:
    """Strikes the `nth` commit whose transaction matches `pattern`, counted from when the fault was set.

    What is to land late lands after `land_seconds`, or just before the first commit after it that matches
    `land_before`, or else when told. With `killing`, the client's process is killed at the very moment, before anything
    else is done.
    """

    kind: Kind
    nth: int = 1
    pattern: str = WRITES
    land_seconds: float | None = None
    land_before: str | None = None
    killing: bool = False

    def matches(self, text: str) -> bool:
        """Return whether a transaction is one of those counted."""
        return re.search(self.pattern, text, re.IGNORECASE) is not None


class Proxy:
    """Stands before a server, in a thread of its own, and does nothing until it is told to; usable in `with`."""

    def __init__(self, port: int, *, host: str = LOOPBACK) -> None:
        self._upstream = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listening: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._fault: Fault | None = None
        self._matched = 0
        self.landing = asyncio.Event()
        self.landed = asyncio.Event()
        self.passing = asyncio.Event()
        self.delay_seconds = 0.0
        self.port = 0
        self.commits: list[str] = []
        self.struck: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.accept()
        self.thaw()
        return self

    def __exit__(self, *exception: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_SECONDS)
        self._loop.close()

    def before(self, address: str) -> str:
        """Return an address of the server as one that leads through here."""
        return at_port(address, self.port)

    def strike(self, fault: Fault | None) -> None:
        """Set the fault to come, in place of any other, and count from here."""

        def change() -> None:
            self._fault, self._matched = fault, 0
            self.struck.clear()
            self.commits.clear()
            # What was late lands now, if it has not yet.
            self.landing.set()
            self.landing, self.landed = asyncio.Event(), asyncio.Event()

        self._call(change)

    def land(self) -> None:
        """Let what is late arrive."""
        self._call(lambda: self.landing.set())

    def cut(self) -> None:
        """Cut every connection that there is now."""
        self._call(self._cut)

    def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    def freeze(self) -> None:
        """Pass nothing on, in either direction, and keep every connection open."""
        self._call(self.passing.clear)

    def thaw(self) -> None:
        """Pass everything on again, what was held up included."""
        self._call(self.passing.set)

    def refuse(self) -> None:
        """Refuse new connections until `accept`."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Accept connections, on the same port as before."""
        self._do(self._accept())

    def judge(self, request: Request) -> Fault | None:
        """Note a request about to be passed on, and return the fault that strikes it."""
        if request.after is not After.COMMITTED:
            return None
        self.commits.append(request.text)
        fault = self._fault
        if fault is None or not fault.matches(request.text):
            return None
        self._matched += 1
        if self._matched != fault.nth:
            return None
        self.struck.append(request.text)
        if fault.land_seconds is not None:
            self._loop.call_later(fault.land_seconds, self.landing.set)
        return fault

    async def let_pass(self, request: Request) -> None:
        """Hold a request up if something is to land before it."""
        fault = self._fault
        if fault is None or fault.kind not in (Kind.LATE, Kind.HANGING) or not self.struck or self.landed.is_set():
            return
        if fault.land_before is not None and re.search(fault.land_before, request.text, re.IGNORECASE):
            self.landing.set()
            await asyncio.wait_for(self.landed.wait(), _PATIENCE_SECONDS)

    async def _accept(self) -> None:
        if self._listening is None:
            self._listening = await asyncio.start_server(self._serve, LOOPBACK, self.port)
            self.port = self._listening.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _close(self) -> None:
        await self._refuse()
        self.passing.set()
        self.landing.set()
        self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=_PATIENCE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), (far_reader, far_writer))
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_SECONDS)

    def _call(self, change: Callable[[], object]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            change()
            done.set_result(None)

        self._loop.call_soon_threadsafe(run)
        done.result(_PATIENCE_SECONDS)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, proxy: Proxy, client: Ends, server: Ends) -> None:
        self._proxy = proxy
        self._client, self._to_client = client
        self._server, self._to_server = server
        self._conversation = Conversation()
        self._swallowed: Request | None = None
        self._answered = asyncio.Event()

    async def run(self) -> None:
        """Pass messages on until one side ends."""
        try:
            if await self._greet():
                pumps = [asyncio.ensure_future(self._forth()), asyncio.ensure_future(self._back())]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                for pump in pumps:
                    pump.cancel()
                for result in await asyncio.gather(*pumps, return_exceptions=True):
                    if isinstance(result, Exception) and not isinstance(result, OSError):
                        raise result
        finally:
            self.cut()

    def cut(self) -> None:
        """End both connections; the client gets nothing more, the server what was already passed on."""
        self._to_client.transport.abort()
        self._to_server.close()

    async def _greet(self) -> bool:
        """Pass the first words on, without encryption; False if there is nothing to follow them."""
        splitter = Splitter(greets=True)
        while data := await _read(self._client):
            for message in splitter.feed(data):
                if code(message) in (SSL_REQUEST, GSS_REQUEST):
                    self._to_client.write(b"N")
                    continue
                self._to_server.write(message.raw)
                if code(message) == CANCEL_REQUEST:
                    await self._server.read()
                    return False
                return True
        return False

    async def _forth(self) -> None:
        splitter, held = Splitter(greets=False), b""
        while data := await self._next(self._client):
            for message in splitter.feed(data):
                request = self._conversation.ask(message)
                if request is not None and await self._struck(request, held, message.raw):
                    return
                held += message.raw
                if message.kind not in _PARTS:
                    self._to_server.write(held)
                    held = b""
            await self._to_server.drain()

    async def _struck(self, request: Request, held: bytes, end: bytes) -> bool:
        """Do to a request what is to be done to it; True if that was the connection's last."""
        if self._proxy.delay_seconds:
            await asyncio.sleep(self._proxy.delay_seconds)
        fault = self._proxy.judge(request)
        if fault is None:
            await self._proxy.let_pass(request)
            return False
        if fault.killing:
            self._kill_client()
        match fault.kind:
            case Kind.SWALLOWED:
                self._swallowed = request
                return False
            case Kind.BEFORE:
                pass
            case Kind.DURING:
                self._to_server.write(held + end)
            case Kind.HANGING:
                self._to_server.write(held)
                await self._land(end)
            case Kind.LATE:
                await self._land(held + end)
        return True

    def _kill_client(self) -> None:
        client, own = self._to_client.get_extra_info("peername")[1], self._to_client.get_extra_info("sockname")[1]
        pid = pid_at(client, to=own)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    async def _land(self, rest: bytes) -> None:
        landing, landed = self._proxy.landing, self._proxy.landed
        self._to_client.transport.abort()
        self._answered.clear()
        await landing.wait()
        try:
            self._to_server.write(rest)
            # Until the server has answered, although nobody hears it any more.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._answered.wait(), _PATIENCE_SECONDS)
        finally:
            landed.set()

    async def _back(self) -> None:
        splitter = Splitter(greets=False)
        while data := await self._next(self._server):
            for message in splitter.feed(data):
                holding = self._swallowed is not None and self._conversation.answering is self._swallowed
                done = self._conversation.answer(message)
                if self._conversation.answering is None:
                    self._answered.set()
                if holding and message.kind not in _COPY:
                    if done is not None:
                        return
                elif not self._to_client.is_closing():
                    self._to_client.write(message.raw)
            if not self._to_client.is_closing():
                await self._to_client.drain()

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        data = await _read(reader)
        await self._proxy.passing.wait()
        return data


async def _read(reader: asyncio.StreamReader) -> bytes:
    with suppress(ConnectionError):
        return await reader.read(_CHUNK)
    return b""
