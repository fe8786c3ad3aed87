"""Restate: its server from the package, on the same disk, and asynchronous handlers with `ctx.run_typed` steps."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from benchmarks.workload import Gate, Load, Sample, main, measure, stored_bytes

_RUNS = "SELECT count(*) AS stored FROM sys_journal WHERE entry_type = 'Command: Run'"
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.1
_STREAMS = 100_000
_SHOWN = ("default-num-partitions", "rocksdb-disable-wal", "rocksdb-disable-wal-fsync")


def _program() -> Path:
    (found,) = Path(sys.prefix).glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Restate:
    """Handlers in this process; the server calls them, and is asked by HTTP."""

    def __init__(self, load: Load) -> None:
        self._gate: Gate | None = None
        self.service = restate.Service("benchmark")
        self.http: httpx.AsyncClient | None = None
        self.ingress = ""
        payload = load.payload

        async def work() -> str:
            return payload

        @self.service.handler()
        async def steps(ctx: restate.Context) -> int:
            gate = self._gate
            assert gate is not None
            await ctx.run_typed("step", work)
            await gate.arrive()
            done = 0
            while gate.more(done):
                await ctx.run_typed("step", work)
                done += 1
            gate.leave(done)
            return done

        @self.service.handler()
        async def one(ctx: restate.Context) -> str:
            return await ctx.run_typed("step", work)

    async def run(self, gate: Gate) -> None:
        self._gate = gate
        await self._call("steps")

    async def once(self) -> None:
        await self._call("one")

    async def _call(self, handler: str) -> None:
        assert self.http is not None
        answer = await self.http.post(f"{self.ingress}/benchmark/{handler}")
        answer.raise_for_status()


class Server:
    """The server's process."""

    def __init__(self, folder: Path) -> None:
        ports = {name: _free_port() for name in ("INGRESS", "ADMIN", "NODE")}
        self.ingress, self.admin = (f"http://127.0.0.1:{ports[name]}" for name in ("INGRESS", "ADMIN"))
        environment = os.environ | {
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ports['INGRESS']}",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{ports['ADMIN']}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{ports['NODE']}",
            "RESTATE_DISABLE_TELEMETRY": "true",
        }
        self._command = [str(_program()), "--base-dir", str(folder), "--listen-mode", "tcp", "--node-name", "benchmark"]
        self._environment = environment
        self._log = (folder.parent / "restate.log").open("w")
        self._process = subprocess.Popen(self._command, env=environment, stdout=self._log, stderr=self._log)

    @property
    def settings(self) -> dict[str, str]:
        """What it runs at, as it says itself; where parts of it differ, all of it."""
        said = subprocess.run(
            [*self._command, "--dump-config"], env=self._environment, capture_output=True, text=True, check=False
        )
        pairs = [line.split(" = ", 1) for line in said.stdout.splitlines() if " = " in line]
        return {name: " and ".join(sorted({value for key, value in pairs if key == name})) for name in _SHOWN}

    async def wait_ready(self, http: httpx.AsyncClient) -> None:
        async with asyncio.timeout(_START_SECONDS):
            while True:
                try:
                    health = [f"{self.ingress}/restate/health", f"{self.admin}/health"]
                    if all([(await http.get(url)).is_success for url in health]):
                        return
                except httpx.TransportError:
                    pass
                if self._process.poll() is not None:
                    raise RuntimeError(f"restate-server ended with {self._process.returncode}")
                await asyncio.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


@asynccontextmanager
async def served(service: restate.Service) -> AsyncIterator[str]:
    """Serve the handlers to the server, and yield their address."""
    port, ended = _free_port(), asyncio.Event()
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.h2_max_concurrent_streams = _STREAMS
    serving = asyncio.create_task(serve(restate.app([service]), config, shutdown_trigger=ended.wait))  # type: ignore[arg-type]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        ended.set()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def stored_runs(http: httpx.AsyncClient, server: Server) -> int:
    answer = await http.post(f"{server.admin}/query", json={"query": _RUNS}, headers={"accept": "application/json"})
    rows: list[dict[str, Any]] = answer.raise_for_status().json()["rows"]
    return int(rows[0]["stored"])


async def work(load: Load) -> Sample:
    """Measure Restate."""
    subject, server = Restate(load), Server(load.directory)
    limits = httpx.Limits(max_connections=None)
    try:
        async with httpx.AsyncClient(timeout=300, limits=limits) as http, served(subject.service) as handlers:
            await server.wait_ready(http)
            (await http.post(f"{server.admin}/deployments", json={"uri": handlers})).raise_for_status()
            subject.http, subject.ingress = http, server.ingress
            sample = await measure(subject, load)
            stored = await stored_runs(http, server)
    finally:
        server.stop()
    return replace(sample, stored=stored, bytes=stored_bytes(load.directory), settings=server.settings)


if __name__ == "__main__":
    main(work)
