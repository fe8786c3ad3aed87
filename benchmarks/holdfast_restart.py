"""Many open runs whose only worker is killed, and the process that takes them all up again.

`--phase seed` brings the runs to where they wait and then kills itself with SIGKILL. `--phase open` opens the same
store with the defaults; its clock starts before the opening and stops when the last run has its next step on disk.
Between the two, `--phase post` sends the signal that runs of the kind `posted` wait for.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import holdfast as hf
from benchmarks.workload import MARKER

KINDS: Final = ("driven", "asleep", "posted", "unserved", "limited", "suspect")
"""Inside a step; in a sleep that is over; a signal has come for them; inside a step, and half of them of a name that is
not served here; inside a step that has a limit; inside a step and without any progress before it."""
AT_ONCE: Final = 16
"""What the limit of the kind `limited` lets be under way."""
_PATIENCE_SECONDS: Final = 300.0
_POSTED_AT_ONCE: Final = 100
_STARTED_AT_ONCE: Final = 100
_LOOK_SECONDS: Final = 0.25

Arrive = Callable[[int], Awaitable[None]]
Note = Callable[[int], None]


class Count:
    """Counts what happens to each of so many runs, and how much of it at once."""

    def __init__(self, runs: int) -> None:
        self._times = bytearray(runs)
        self._left = runs
        self._under_way = 0
        self.most = 0
        self.first_at = self.last_at = self.cpu_seconds = 0.0
        self.all = asyncio.Event()

    def enter(self) -> None:
        """Count a step that is under way."""
        self._under_way += 1
        self.most = max(self.most, self._under_way)

    def leave(self) -> None:
        """Count one that is not any more."""
        self._under_way -= 1

    def done(self, number: int) -> None:
        """Count a run's next step, which is on disk."""
        self.last_at = time.perf_counter()
        self.first_at = self.first_at or self.last_at
        self._times[number] += 1
        self._left -= 1
        if self._left == 0:
            self.cpu_seconds = time.process_time()
            self.all.set()

    @property
    def once_each(self) -> bool:
        """True when every run made its step here, and none made it twice."""
        return all(times == 1 for times in self._times)


def functions(kind: str, arrive: Arrive, passed: Note, done: Note) -> list[Any]:
    """Return the durable functions of a kind; the first is the one that is served in every process.

    `passed` is told of a run that is about to come to where it waits, `done` of one that is behind it.
    """
    limit = hf.Limit("restart", at_once=AT_ONCE) if kind == "limited" else None
    word = hf.Signal("word", int)

    async def work(number: int) -> int:
        return number

    async def next_step(number: int) -> int:
        await arrive(number)
        return number

    async def course(ctx: hf.Context, number: int, seconds: float) -> int:
        if kind != "suspect":
            await ctx.step(work, number)
        passed(number)
        if kind == "asleep":
            await ctx.sleep(seconds)
        elif kind == "posted":
            await ctx.receive(word)
        if limit is not None:
            await ctx.step(next_step, number, limit=limit)
        else:
            await ctx.step(next_step, number)
        done(number)
        return number

    @hf.durable
    async def here(ctx: hf.Context, number: int, seconds: float) -> int:
        return await course(ctx, number, seconds)

    @hf.durable
    async def elsewhere(ctx: hf.Context, number: int, seconds: float) -> int:
        return await course(ctx, number, seconds)

    return [here, elsewhere]


async def seed(kind: str, address: str, count: int, until: float) -> None:
    """Bring the runs to where they wait, and die."""
    waiting = {"step": min(count, AT_ONCE) if kind == "limited" else count, "all": count}
    in_place = {what: asyncio.Event() for what in waiting}

    def come(what: str) -> None:
        waiting[what] -= 1
        if waiting[what] == 0:
            in_place[what].set()

    async def arrive(number: int) -> None:
        come("step")
        await asyncio.Event().wait()

    both = functions(kind, arrive, lambda number: come("all"), lambda number: None)
    foreign = count // 2 if kind == "unserved" else 0
    async with hf.open(address, hf.App(*both, version="benchmark"), concurrency=count) as runtime:
        # The runs that nobody will serve are the older ones: a claim that looks at them looks at all of them.
        await _start(runtime, both[1], foreign, until)
        await _start(runtime, both[0], count - foreign, until)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await in_place["all"].wait()
            if kind in ("asleep", "posted"):
                await _wait_resting(runtime)
            else:
                await in_place["step"].wait()
        if kind == "asleep" and time.time() > until:
            sys.exit("the runs were not asleep before the first of them was due")
        os.kill(os.getpid(), signal.SIGKILL)


async def _start(runtime: hf.Runtime, what: Any, count: int, until: float) -> None:
    """Start so many runs, some at a time: starts share the connections that a process reads with."""
    for first in range(0, count, _STARTED_AT_ONCE):
        numbers = range(first, min(first + _STARTED_AT_ONCE, count))
        seconds = max(0.0, until - time.time())
        await asyncio.gather(*(runtime.start(what, number, seconds) for number in numbers))


async def _wait_resting(runtime: hf.Runtime) -> None:
    """Return when no run is driven any more."""
    while True:
        if not await runtime.runs(status="running", limit=1):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def post(address: str) -> None:
    """Send every run the signal that it waits for."""
    async with hf.open(address, work=False) as runtime:
        before = None
        while page := await runtime.runs(status="waiting", before=before, limit=_POSTED_AT_ONCE):
            before = page[-1].id
            handles = [await runtime.get(run.id) for run in page]
            await asyncio.gather(*(handle.signal("word", 1) for handle in handles))


async def take_up(kind: str, address: str, count: int) -> dict[str, Any]:
    """Open the store with the defaults and see every run that is served make its next step."""
    mine = count - count // 2 if kind == "unserved" else count
    seen = Count(mine)

    async def arrive(number: int) -> None:
        seen.enter()
        await asyncio.sleep(0)
        seen.leave()

    app = hf.App(functions(kind, arrive, lambda number: None, seen.done)[0], version="benchmark")
    cpu_began, began = time.process_time(), time.perf_counter()
    async with hf.open(address, app):
        opened = time.perf_counter()
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await seen.all.wait()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "opened": opened - began,
        "first": seen.first_at - began,
        "all": seen.last_at - began,
        "cpu": seen.cpu_seconds - cpu_began,
        "most": seen.most,
        "once_each": seen.once_each,
        "peak_mb": peak / 1024,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", choices=["seed", "post", "open"], required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--until", type=float, default=0.0)
    given = parser.parse_args()
    if given.phase == "seed":
        asyncio.run(seed(given.kind, given.address, given.runs, given.until))
    elif given.phase == "post":
        asyncio.run(post(given.address))
    else:
        print(MARKER + json.dumps(asyncio.run(take_up(given.kind, given.address, given.runs))), flush=True)
