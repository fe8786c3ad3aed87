"""A run that kills its worker again and again."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import holdfast as hf

_LIVES: Final = 20


async def die(number: int) -> int:
    """Kill the process that performs it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return number


async def linger(number: int) -> int:
    """Be under way whenever somebody else kills the process."""
    for _ in range(100):
        await asyncio.sleep(0)
    return number


@hf.durable
async def poison(ctx: hf.Context) -> int:
    """Kill every worker that takes it up."""
    return await ctx.step(die, 1)


@hf.durable
async def healthy(ctx: hf.Context, number: int) -> int:
    """Do nobody harm."""
    return await ctx.step(linger, number)


async def live(store: str) -> None:
    """Start the poison and its neighbours, or take them up, and wait for all of them."""
    async with hf.open(store, hf.App(poison, healthy)) as runtime:
        neighbours = [await runtime.start(healthy, number, key=("healthy", number)) for number in range(5)]
        bad = await runtime.start(poison, key="poison")
        assert [await run.result(timeout=30) for run in neighbours] == list(range(5))
        try:
            await bad.result(timeout=30)
        except hf.RunError as error:
            print(error.status, error.reason)


def test_only_the_run_that_kills_is_quarantined(tmp_path: Path) -> None:
    """P5: a run that kills its worker again and again is quarantined, with the reason, and holds nobody else up."""
    store = f"sqlite:///{tmp_path / 'poison.db'}"
    code = f"import asyncio; from {__name__} import live; asyncio.run(live({store!r}))"
    command = [sys.executable, "-c", code]
    said = None
    for _ in range(_LIVES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:
            said = done.stdout
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
    assert said is not None, f"not over after {_LIVES} lives"
    assert said.startswith("quarantined no_progress: 5 workers died")
