"""Does a step cost more when much came before it? Cost at several depths of one run and at several fills of a store.

Meant for a directory in memory: the question is about the algorithm, and the disk's noise would hide the answer.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Final

import holdfast as hf
from benchmarks.workload import MARKER

WINDOWS: Final = 10
WINDOW_STEPS: Final = 50
AT_ONCE: Final = 256


async def work(number: int) -> str:
    """A trivial step with a tiny result."""
    return "done"


async def step_seconds(step: Callable[[int], Awaitable[object]]) -> float:
    """Return processor seconds per step: the median over windows, so that one hiccup does not count."""
    windows: list[float] = []
    for _ in range(WINDOWS):
        began = time.process_time()
        for number in range(WINDOW_STEPS):
            await step(number)
        windows.append((time.process_time() - began) / WINDOW_STEPS)
    return median(windows)


async def by_entries(store: str, depths: list[int]) -> dict[str, dict[int, float]]:
    """Measure one run's steps after `depths` entries of its own."""
    costs: dict[int, float] = {}

    @hf.durable
    async def deep(ctx: hf.Context) -> int:
        done = 0
        for depth in depths:
            while done < depth:
                await ctx.step(work, done)
                done += 1
            costs[depth] = await step_seconds(lambda number: ctx.step(work, number))
            done += WINDOWS * WINDOW_STEPS
        return done

    async with hf.open(store, hf.App(deep, version="benchmark")) as runtime:
        await (await runtime.start(deep)).result()
    return {"step": costs}


async def by_runs(store: str, fills: list[int]) -> dict[str, dict[int, float]]:
    """Measure a new run's steps, and whole one-step runs, in a store that already holds `fills` runs."""
    costs: dict[int, float] = {}
    whole: dict[int, float] = {}

    @hf.durable
    async def probe(ctx: hf.Context, fill: int) -> None:
        costs[fill] = await step_seconds(lambda number: ctx.step(work, number))

    @hf.durable
    async def one(ctx: hf.Context) -> str:
        return await ctx.step(work, 0)

    app = hf.App(probe, one, version="benchmark")
    async with hf.open(store, app, concurrency=AT_ONCE) as runtime:

        async def once(number: int = 0) -> str:
            return await (await runtime.start(one)).result()

        filled = 0
        for fill in fills:
            while filled < fill:
                batch = min(AT_ONCE, fill - filled)
                await asyncio.gather(*(once() for _ in range(batch)))
                filled += batch
            await (await runtime.start(probe, fill)).result()
            whole[fill] = await step_seconds(once)
            filled += 1 + WINDOWS * WINDOW_STEPS
    return {"step": costs, "once": whole}


MEASURES = {"entries": by_entries, "runs": by_runs}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--of", choices=MEASURES, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", required=True)
    given = parser.parse_args()
    found = asyncio.run(MEASURES[given.of](f"sqlite:///{given.directory / 'holdfast.db'}", given.sizes))
    print(MARKER + json.dumps(found), flush=True)
