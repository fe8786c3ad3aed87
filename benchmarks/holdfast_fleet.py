"""Holdfast in several processes on one store; each role is a process, and times are on the machine's monotonic clock.

- `create` starts runs that it does not drive, and `serve` notes when it enters each.
- `victim` holds many runs in a step until it is killed, and `taker` notes when it enters and advances each of them.
- `write` makes one run's steps, and `watch` notes when it has each of their entries.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import holdfast as hf
from benchmarks.workload import MARKER, READY

_PAUSE_SECONDS: Final = (0.005, 0.035)
"""Between two probes; uneven, so that no poll is in step with them."""
_KEY: Final = "watched"
_PAYLOAD: Final = "x" * 1000
_PATIENCE_SECONDS: Final = 100.0

Times = dict[str, Any]


async def word() -> None:
    """Say that this process is ready, and wait for the word."""
    print(READY, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


async def pause() -> None:
    """Wait a little."""
    await asyncio.sleep(random.uniform(*_PAUSE_SECONDS))


class Marks:
    """When each of so many things happened first."""

    def __init__(self, count: int) -> None:
        self.at: dict[int, float] = {}
        self._count = count
        self._all = asyncio.Event()

    def mark(self, number: int) -> None:
        self.at.setdefault(number, time.monotonic())
        if len(self.at) == self._count:
            self._all.set()

    async def wait_all(self) -> None:
        await asyncio.wait_for(self._all.wait(), _PATIENCE_SECONDS)


def probing(marks: Marks | None) -> Any:
    """Return a durable function whose first line is marked."""

    @hf.durable
    async def probe(ctx: hf.Context, number: int) -> int:
        if marks is not None:
            marks.mark(number)
        return number

    return probe


async def create(address: str, count: int) -> Times:
    """Start runs, one now and then."""
    probe = probing(None)
    asked: dict[int, float] = {}
    async with hf.open(address, hf.App(probe, version="benchmark"), work=False) as runtime:
        await word()
        for number in range(count):
            await pause()
            asked[number] = time.monotonic()
            await runtime.start(probe, number)
    return {"asked": asked}


async def serve(address: str, count: int) -> Times:
    """Drive what others start."""
    entered = Marks(count)
    async with hf.open(address, hf.App(probing(entered), version="benchmark")):
        await word()
        await entered.wait_all()
    return {"entered": entered.at}


async def work(number: int) -> str:
    """A step that is done."""
    return _PAYLOAD


def holding(entered: Marks, advanced: Marks, arrive: Callable[[], Awaitable[None]]) -> Any:
    """Return a durable function that makes a step, then one that `arrive` decides about."""

    async def hold() -> str:
        await arrive()
        return _PAYLOAD

    @hf.durable
    async def held(ctx: hf.Context, number: int) -> int:
        entered.mark(number)
        await ctx.step(work, number)
        await ctx.step(hold)
        advanced.mark(number)
        return number

    return held


async def victim(address: str, count: int) -> Times:
    """Hold all runs in a step, for good."""
    arrived = 0
    all_arrived = asyncio.Event()

    async def arrive() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == count:
            all_arrived.set()
        await asyncio.Event().wait()

    held = holding(Marks(count), Marks(count), arrive)
    async with hf.open(address, hf.App(held, version="benchmark"), concurrency=count) as runtime:
        await asyncio.gather(*(runtime.start(held, number) for number in range(count)))
        await asyncio.wait_for(all_arrived.wait(), _PATIENCE_SECONDS)
        await word()
    return {}


async def taker(address: str, count: int) -> Times:
    """Take over what the victim leaves."""
    entered, advanced = Marks(count), Marks(count)

    async def arrive() -> None:
        return None

    held = holding(entered, advanced, arrive)
    async with hf.open(address, hf.App(held, version="benchmark"), concurrency=count):
        await word()
        await entered.wait_all()
        await advanced.wait_all()
    return {"entered": entered.at, "advanced": advanced.at}


async def write(address: str, count: int) -> Times:
    """Make one run's steps, one now and then, and note when each is recorded."""
    told = asyncio.Event()
    recorded: dict[int, float] = {}

    async def say(number: int) -> int:
        await pause()
        return number

    @hf.durable
    async def talk(ctx: hf.Context, count: int) -> int:
        await told.wait()
        for number in range(count):
            await ctx.step(say, number)
            recorded[number] = time.monotonic()
        return count

    async with hf.open(address, hf.App(talk, version="benchmark")) as runtime:
        run = await runtime.start(talk, count, key=_KEY)
        await word()
        told.set()
        await run.result()
    return {"recorded": recorded}


async def watch(address: str, count: int) -> Times:
    """Follow that run."""
    seen: dict[int, float] = {}
    async with hf.open(address, work=False) as runtime:
        run = await runtime.get(key=_KEY)
        async for event in run.events():
            if isinstance(event, hf.events.RunStarted):
                await word()
            if isinstance(event, hf.events.StepCompleted):
                seen[len(seen)] = time.monotonic()
            if len(seen) == count:
                break
    return {"seen": seen}


ROLES: Final = {one.__name__: one for one in (create, serve, victim, taker, write, watch)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=ROLES, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--count", type=int, required=True)
    given = parser.parse_args()
    print(MARKER + json.dumps(asyncio.run(ROLES[given.role](given.address, given.count))), flush=True)
