"""A run of many steps that is killed, and the time a new process needs until the run's next step begins.

`--phase seed` makes the steps and then kills itself with SIGKILL inside the one after them. `--phase resume` opens the
same store; its clock starts after the import and stops when that step is entered again.
"""

import argparse
import asyncio
import json
import os
import signal
import time
from pathlib import Path

import holdfast as hf
from benchmarks.workload import MARKER

PAYLOAD = "x" * 1000


async def work(number: int) -> str:
    """A step that is done."""
    return PAYLOAD


def killing() -> None:
    """Die as a crash does: nothing is flushed, nothing closed."""
    os.kill(os.getpid(), signal.SIGKILL)


class Resuming:
    """Remembers when the first new step was entered."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.at = 0.0

    def __call__(self) -> None:
        self.at = time.perf_counter()
        self.entered.set()


async def main(phase: str, directory: Path, steps: int) -> None:
    """Seed or resume."""
    resuming = Resuming()
    arrived = killing if phase == "seed" else resuming

    async def next_step() -> str:
        arrived()
        return PAYLOAD

    @hf.durable
    async def long(ctx: hf.Context, count: int) -> int:
        for number in range(count):
            await ctx.step(work, number)
        await ctx.step(next_step)
        return count

    app = hf.App(long, version="benchmark")
    began = time.perf_counter()
    async with hf.open(f"sqlite:///{directory / 'holdfast.db'}", app) as runtime:
        if phase == "seed":
            await (await runtime.start(long, steps)).result()
        await asyncio.wait_for(resuming.entered.wait(), timeout=120)
    print(MARKER + json.dumps({"seconds": resuming.at - began}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", choices=["seed", "resume"], required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(main(given.phase, given.directory, given.steps))
