"""Runs that end the process which drives them, each in its way, as long as there is a cause; and some that do not."""

import asyncio
import os
import resource
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast.engine.function import Durable

CAUSE: Final = "HOLDFAST_TEST_CAUSE"
"""The environment's name for a file: what is poison kills while the file is there."""
_MOST_BYTES: Final = 64 * 2**20
_LINGER: Final = 20


def _is_there() -> bool:
    return Path(os.environ[CAUSE]).exists()


async def look(number: int) -> int:
    """Do a little, and be under way when somebody kills the process."""
    for _ in range(_LINGER):
        await asyncio.sleep(0)
    return number


async def leave(number: int) -> int:
    """End the process without a word."""
    if _is_there():
        os._exit(3)
    return number


def swell(step: hf.Step[None], number: int) -> int:
    """Take all the memory that there is, as native code does that does not survive it."""
    if _is_there():
        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_BYTES, used + _MOST_BYTES))
        hoard = []
        try:
            while True:
                hoard.append(bytearray(2**20))
        except MemoryError:
            os.abort()
    return number


@hf.durable
async def healthy(ctx: hf.Context, number: int) -> int:
    """Do nobody harm, in a few steps."""
    first = await ctx.step(look, number)
    return await ctx.step(look, first + 1)


@hf.durable
async def exits(ctx: hf.Context, number: int) -> int:
    """Kill in a step that writes no intent."""
    return await ctx.step(leave, await ctx.step(look, number))


@hf.durable
async def swells(ctx: hf.Context, number: int) -> int:
    """Kill in a step on a thread, whose intent is written each time."""
    return await ctx.step(swell, await ctx.step(look, number), effect="keyed")


@hf.durable
async def imports(ctx: hf.Context, number: int) -> int:
    """Kill between steps, by what the function needs."""
    from tests.chaos import deadly  # noqa: F401 - what kills is that it is imported, and here

    return await ctx.step(look, number)


POISON: Final[dict[str, tuple[Durable[Any, [int]], str]]] = {
    "exits": (exits, "after step 0/look#1"),
    "swells": (swells, "in step 0/swell#1"),
    "imports": (imports, "before its first step was recorded"),
}
"""What kills, by its name, with what its quarantine says of where."""
app = hf.App(healthy, exits, swells, imports, version="1")
