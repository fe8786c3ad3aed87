"""One who watches a run: what it holds and may see next, which judges it; and one who reads lines over HTTP."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import httpx2
import msgspec

from tests.chaos.judge import Broken


@dataclass(kw_only=True)
class Watcher:
    """One reader of one run: what it holds, and what it may see next."""

    run: str
    chance: random.Random
    stays: Sequence[int]
    """How many messages it reads at most before it leaves, one of these by chance."""
    last: str = ""
    seq: int = 0
    previews: dict[str, list[str]] = field(default_factory=dict)
    over: bool = False
    reconnects: int = 0
    cut: int = 0
    """How many of its connections were broken off, and not left."""
    resets: int = 0
    words: int = 0
    """How many it saw of previews."""
    digest: Any = field(default_factory=sha256)
    """Of every entry, so that any two watchers of a run can be compared."""

    def __str__(self) -> str:
        return f"a {type(self).__name__} of run {self.run}"

    async def watch(self) -> None:
        """Read the run to its end, leaving and coming again.

        Raises:
            Broken: an event was lost, came twice, or does not fit its preview.
        """
        raise NotImplementedError

    def stay(self) -> int:
        """Return how many messages it reads before it leaves the next time."""
        return self.chance.randint(1, self.chance.choice(self.stays))

    def take(self, line: str) -> None:
        """Take the next message in."""
        event: dict[str, Any] = msgspec.json.decode(line)
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
            raise Broken(f"chunk {event['id']} is number {data['offset']}, after {len(told)}, to {self}")
        told.append(data["value"])
        self.words += 1

    def _take_entry(self, event: dict[str, Any], line: str) -> None:
        if event["seq"] != self.seq + 1:
            raise Broken(f"entry {event['seq']} came after entry {self.seq}, to {self}")
        self.seq = event["seq"]
        self.digest.update(line.encode())
        match event["type"]:
            case "RunResumed":
                self.previews.clear()
            case "StepCompleted":
                told = "".join(self.previews.pop(event["data"]["step"], []))
                if not event["data"]["value"].startswith(told):
                    raise Broken(f"entry {event['id']} says other words than {told!r}, to {self}")
            case "RunFinished":
                if self.previews:
                    raise Broken(f"the run ended with the previews {self.previews}, to {self}")
                self.over = True


@dataclass(kw_only=True)
class LineReader(Watcher):
    """Reads lines of JSON, and says by a header what it has."""

    http: httpx2.AsyncClient

    async def watch(self) -> None:
        while not self.over:
            try:
                await self._connect()
            except (httpx2.ReadError, httpx2.RemoteProtocolError):
                self.cut += 1
            except httpx2.TransportError:
                await asyncio.sleep(self.chance.uniform(0.01, 0.1))
            self.reconnects += 1

    async def _connect(self) -> None:
        headers = {"Accept": "application/x-ndjson", **({"Last-Event-ID": self.last} if self.last else {})}
        most = self.stay()
        async with self.http.stream("GET", f"/v1/runs/{self.run}/events", headers=headers) as answer:
            if answer.status_code == 503:
                return
            if answer.status_code != 200:
                raise Broken(f"{self} was answered {answer.status_code} after {self.last!r}: {await answer.aread()!r}")
            async for line in answer.aiter_lines():
                if line:
                    self.take(line)
                    most -= 1
                if self.over or most <= 0:
                    return
