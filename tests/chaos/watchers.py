"""Watchers that connect again at random while the server and the workers are killed: each sees every event once."""

import asyncio
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import httpx2
import msgspec

import holdfast as hf
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.judge import Broken
from tests.chaos.sites import Sites, file_site, schema_site
from tests.chaos.watched import TOKEN
from tests.rigs.server import Server

CLIENTS: Final = 50
RUNS: Final = 10
STEPS: Final = 6
WORDS: Final = 12
_MOST_READ: Final = 8
"""How many messages a watcher reads at most before it leaves."""
_KILL_SECONDS: Final = (0.3, 1.5)
_REST: Final = 8
"""How often watchers come again before the next of few deaths."""
_ROUND_SECONDS: Final = 180.0


@dataclass
class Watcher:
    """One reader of one run: what it holds, and what it may see next."""

    run: str
    chance: random.Random
    last: str = ""
    seq: int = 0
    previews: dict[str, list[str]] = field(default_factory=dict)
    over: bool = False
    reconnects: int = 0
    resets: int = 0
    digest: Any = field(default_factory=sha256)
    """Of every entry, so that any two watchers of a run can be compared."""

    async def watch(self, client: httpx2.AsyncClient) -> None:
        """Read the run to its end, leaving and coming again.

        Raises:
            Broken: an event was lost, came twice, or does not fit its preview.
        """
        while not self.over:
            try:
                await self._connect(client)
            except httpx2.TransportError:
                await asyncio.sleep(self.chance.uniform(0.01, 0.1))
            self.reconnects += 1

    async def _connect(self, client: httpx2.AsyncClient) -> None:
        headers = {"Accept": "application/x-ndjson", **({"Last-Event-ID": self.last} if self.last else {})}
        most = self.chance.randint(1, _MOST_READ)
        async with client.stream("GET", f"/v1/runs/{self.run}/events", headers=headers) as answer:
            if answer.status_code == 503:
                return
            if answer.status_code != 200:
                raise Broken(f"after {self.last!r}, run {self.run}: {answer.status_code} {await answer.aread()!r}")
            async for line in answer.aiter_lines():
                if line:
                    self.take(msgspec.json.decode(line), line)
                    most -= 1
                if self.over or most <= 0:
                    return

    def take(self, event: dict[str, Any], line: str) -> None:
        """Take the next message in."""
        match event["type"]:
            case "preview.reset":
                self.previews.clear()
                self.resets += 1
                return
            case "stream.failed":
                return  # it is told again, with a status, or has gone by then
            case "chunk":
                self._take_chunk(event)
            case _:
                self._take_entry(event, line)
        self.last = event["id"]

    def _take_chunk(self, event: dict[str, Any]) -> None:
        data = event["data"]
        told = self.previews.setdefault(data["step"], [])
        if data["offset"] != len(told):
            raise Broken(f"chunk {event['id']} of run {self.run} is number {data['offset']}, after {len(told)}")
        told.append(data["value"])

    def _take_entry(self, event: dict[str, Any], line: str) -> None:
        if event["seq"] != self.seq + 1:
            raise Broken(f"entry {event['seq']} of run {self.run} came after entry {self.seq}")
        self.seq = event["seq"]
        self.digest.update(line.encode())
        match event["type"]:
            case "RunResumed":
                self.previews.clear()
            case "StepCompleted":
                told = "".join(self.previews.pop(event["data"]["step"], []))
                if not event["data"]["value"].startswith(told):
                    raise Broken(f"entry {event['id']} of run {self.run} says other words than {told!r}")
            case "RunFinished":
                if self.previews:
                    raise Broken(f"run {self.run} ended with the previews {self.previews}")
                self.over = True


class Hosts:
    """A server and workers that are killed and come again."""

    def __init__(self, address: str, *, workers: int, twin: str = "") -> None:
        self._address, self._twin, self._open = address, twin, ExitStack()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._all = [self._start("serve"), *(self._start("work") for _ in range(workers))]
        for process in self._all:
            _ready(process)
        self.kills = 0

    def _start(self, what: str) -> "subprocess.Popen[bytes]":
        more = [str(self.port), self._twin or "none"] if what == "serve" else []
        return subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.watched", what, self._address, *more], stdout=subprocess.PIPE
        )

    def kill(self, place: int) -> None:
        """Kill one, the server at 0, and start it again."""
        _end(self._all[place])
        self._all[place] = self._start("work" if place else "serve")
        _ready(self._all[place])
        self.kills += 1

    def kill_any(self, chance: random.Random) -> None:
        """Kill one by chance."""
        self.kill(chance.randrange(len(self._all)))

    def close(self) -> None:
        """End all of them."""
        for process in self._all:
            _end(process)


def _ready(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    if process.stdout.readline() != b"ready\n":
        raise Broken(f"a process ended before it was ready: {process.wait()}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.communicate()


@contextmanager
def hosted(address: str, *, workers: int = 2, twin: str = "") -> Iterator[Hosts]:
    """Give a server and workers on a store."""
    hosts = Hosts(address, workers=workers, twin=twin)
    try:
        yield hosts
    finally:
        hosts.close()


async def play(
    hosts: Hosts, chance: random.Random, *, clients: int = CLIENTS, runs: int = RUNS, steps: int = STEPS,
    kills: int | None = None,
) -> list[Watcher]:  # fmt: skip
    """Let clients watch runs to their end while processes are killed, so many or on and on; return the watchers.

    Raises:
        Broken: one saw what it may not, or two saw different journals.
    """
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{hosts.port}", headers={"Authorization": f"Bearer {TOKEN}"}, verify=False,
        timeout=_ROUND_SECONDS, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    ) as client:  # fmt: skip
        input = {"steps": steps, "words": WORDS}
        started = [await client.post("/v1/runs", json={"name": "teller", "input": input}) for _ in range(runs)]
        watchers = [
            Watcher(started[place % runs].json()["id"], random.Random(chance.random())) for place in range(clients)
        ]
        killing = asyncio.ensure_future(_kill(hosts, chance, kills, watchers))
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                await asyncio.gather(*(watcher.watch(client) for watcher in watchers))
        except TimeoutError:
            raise Broken(f"watchers still wait: {[(w.run, w.last) for w in watchers if not w.over]}") from None
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
    journals = {(watcher.run, watcher.seq, watcher.digest.hexdigest()) for watcher in watchers}
    if len(journals) != runs:
        raise Broken(f"{runs} runs were seen as {len(journals)} journals")
    return watchers


async def _kill(hosts: Hosts, chance: random.Random, kills: int | None, watchers: list[Watcher]) -> None:
    """Kill processes by chance now and then; or few, the server first, once the watchers have come again so often."""
    if kills is None:
        while True:
            await asyncio.sleep(chance.uniform(*_KILL_SECONDS))
            await asyncio.to_thread(hosts.kill_any, chance)
    for done in range(kills):
        while sum(watcher.reconnects for watcher in watchers) < _REST * (done + 1):  # noqa: ASYNC110 - clients tell nobody
            await asyncio.sleep(0.01)
        await asyncio.to_thread(hosts.kill, done % 2)


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let 50 clients connect again `wanted` times, half of them on each store."""
    shared, started, chance = Shared(tick), time.monotonic(), random.Random(seed)
    _watch_on(shared, file_site, wanted // 2, chance)
    with Server() as server:
        _watch_on(shared, lambda: schema_site(server), wanted, chance)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _watch_on(shared: Shared, site: Sites, until: int, chance: random.Random) -> None:
    while shared.count("reconnects") < until and not shared.hopeless:
        try:
            with site() as place, hosted(place.address) as hosts:
                while shared.count("reconnects") < until:
                    before = hosts.kills
                    watchers = asyncio.run(play(hosts, chance))
                    counts = {
                        "reconnects": sum(watcher.reconnects for watcher in watchers),
                        "resets": sum(watcher.resets for watcher in watchers),
                        "entries": sum(watcher.seq for watcher in watchers),
                        "kills": hosts.kills - before,
                    }
                    shared.done(counts["reconnects"], None, **counts)
        except (Broken, hf.HoldfastError, httpx2.HTTPError) as error:
            shared.done(0, repr(error), broken=1)
