"""A bench for `harness.Remote`: a real server on loopback, whose streams can be cut and whose model can be held."""

import asyncio
import socket
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn

import holdfast as hf
from holdfast.harness import Harness, Remote
from holdfast.models import Message, Reply, Request, Say, Text, TextPiece
from holdfast.server import create_app
from holdfast.testing.harness import Creation, Line

SECONDS = 30.0
TOKEN = "a-token-that-only-tests-have"


class _Cut(Exception):
    """Ends a response in the middle."""


class RemoteBench:
    """An agent of another server: what it says is said by a model that the bench has in hand."""

    caps = False
    tells = True
    wrong_cursors: Sequence[Any] = ({"conversation": 7}, {"conversation": None})

    def __init__(self) -> None:
        self._lines: Sequence[Line] = ()
        self._cuts: list[tuple[int, bool]] = []
        self._cancelled: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(SECONDS)

    # The service

    async def _serve(self) -> None:
        self._loop, self._stop, self._free = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
        )
        server = uvicorn.Server(config)
        await self._open()
        serving = asyncio.ensure_future(server.serve(sockets=[self._socket]))
        self._ready.set()
        await self._stop.wait()
        await self._forget()
        server.should_exit = True
        await serving

    async def _open(self) -> None:
        """Let what is served have an empty store."""
        self._runtime = await hf.open("memory://", hf.App(hf.Agent("teller", model=_Teller(self))))
        self._app = create_app(self._runtime, token=TOKEN)

    async def _forget(self) -> None:
        self._app.state.streams.close()
        await self._runtime.close()

    async def _renew(self) -> None:
        await self._forget()
        await self._open()

    def _wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(SECONDS)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        app: Any = self._app
        path = scope.get("path", "")
        if path.endswith("/cancel"):
            self._cancelled.append(path.split("/")[-2])
        cut, clean = self._cuts.pop(0) if path.endswith("/events") and self._cuts else (None, False)
        sent = 0

        async def counted(message: Any) -> None:
            nonlocal sent
            if message["type"] == "http.response.body":
                if sent == cut:
                    if clean:
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise _Cut
                sent += message.get("body", b"").count(b"\ndata: ")
            await send(message)

        await app(scope, receive, counted)

    def close(self) -> None:
        """Stop the server."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    # The bench

    def harness(self) -> Harness:
        """Return another one for the same server."""
        return Remote(self.url, "teller", token=TOKEN, rest_seconds=0.01)

    def clear(self, *lines: Line) -> None:
        """Begin with another script, and an empty store."""
        self._lines, self._cuts, self._cancelled = lines, [], []
        self._wait(self._renew())
        self.release()

    def created(self) -> Sequence[Creation]:
        """Return the runs; one goes on behind the one before it in its conversation."""
        last: dict[str, str] = {}
        made = []
        for run in reversed(self._wait(_listed(self._runtime))):
            made.append(Creation(run.id, last.get(run.conversation)))
            last[run.conversation] = run.id
        return made

    def cancelled(self) -> Sequence[str]:
        """Return which runs were asked to end."""
        return self._cancelled

    def cut(self, after: int, *, clean: bool) -> None:
        """Let the next stream of events break off."""
        self._cuts.append((after, clean))

    def cap(self) -> None:
        """There is none."""

    def hold(self) -> None:
        """Let the model not answer."""
        self._loop.call_soon_threadsafe(self._free.clear)

    def release(self) -> None:
        """Let it."""
        self._loop.call_soon_threadsafe(self._free.set)


async def _listed(runtime: hf.Runtime) -> Sequence[Any]:
    return await runtime.runs(limit=1000)


class _Teller:
    """Says the bench's lines, word by word."""

    name = lane = "bench:teller"

    def __init__(self, bench: RemoteBench) -> None:
        self._bench = bench

    async def ask(self, request: Request, say: Say) -> Reply:
        """Say the line that comes next."""
        heard = sum(message.role == "assistant" for message in request.messages)
        line = str(self._bench._lines[min(heard, len(self._bench._lines) - 1)])
        for word in line.split():
            say(TextPiece(f"{word} "))
        await self._bench._free.wait()
        return Reply(Message("assistant", (Text(line),)))
