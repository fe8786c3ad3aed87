"""A real server on loopback in a thread of its own, and what its tests ask it with."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import uvicorn

import holdfast as hf
from holdfast.server import create_app

SECONDS = 30.0
TOKEN = "a-token-that-only-tests-have"
T = TypeVar("T")


class Served:
    """A runtime and its server, from start to stop."""

    def __init__(self, store: Path, app: hf.App, **options: Any) -> None:
        self._store, self._app, self._options = f"sqlite:///{store}", app, options
        self._socket = socket.create_server(("127.0.0.1", 0))
        # What the system holds for a reader is no part of the server, and hides whether it waits for one.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._stop: asyncio.Event

    def __enter__(self) -> "Served":
        self._thread.start()
        assert self._ready.wait(SECONDS)
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with hf.open(self._store, self._app) as runtime:
            self.runtime = runtime
            app = create_app(runtime, **{"token": TOKEN, **self._options})
            self.streams = app.state.streams
            config = uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, log_level="critical")
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[self._socket]))
            self._ready.set()
            await self._stop.wait()
            app.state.streams.close()
            server.should_exit = True
            await serving

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Wait for something of the runtime."""

        async def awaited() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(awaited(), self.loop).result(SECONDS)

    def client(self, token: str | None = TOKEN, **options: Any) -> httpx2.Client:
        """Return a client that sends a token."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=SECONDS, **options)


class Asking:
    """What most tests do with a client."""

    def __init__(self, client: httpx2.Client) -> None:
        self.http = client

    def start(self, name: str, input: Any = None, key: str | None = None) -> str:
        """Start a run and return its id."""
        body = {"name": name, **({"input": input} if input is not None else {})}
        answer = self.http.post("/v1/runs", json=body, headers={"Idempotency-Key": key} if key else {})
        assert answer.status_code in (200, 201), answer.text
        run: str = answer.json()["id"]
        return run

    def events(self, run: str, after: str | None = None, *, until: str | None = None) -> list[dict[str, Any]]:
        """Return a run's events, to its end or to one of a type."""
        found = []
        with self.stream(run, after) as answer:
            for event in lines_of(answer):
                found.append(event)
                if event["type"] == until:
                    break
        return found

    def stream(self, run: str, after: str | None = None, accept: str = "application/x-ndjson") -> Any:
        """Open a run's stream."""
        headers = {"Accept": accept, **({"Last-Event-ID": after} if after else {})}
        return self.http.stream("GET", f"/v1/runs/{run}/events", headers=headers)

    def until(self, run: str, status: str) -> dict[str, Any]:
        """Return a run once it stands so."""
        give_up = time.monotonic() + SECONDS
        while (info := self.http.get(f"/v1/runs/{run}").json())["status"] != status:
            assert time.monotonic() < give_up, info
        found: dict[str, Any] = info
        return found

    def ended(self, run: str) -> dict[str, Any]:
        """Return a run once it has ended."""
        self.events(run)
        info: dict[str, Any] = self.http.get(f"/v1/runs/{run}").json()
        return info


def lines_of(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    """Yield what an NDJSON answer says."""
    assert answer.status_code == 200, answer.read()
    give_up = time.monotonic() + SECONDS
    for line in answer.iter_lines():
        assert time.monotonic() < give_up
        if line:
            yield json.loads(line)
