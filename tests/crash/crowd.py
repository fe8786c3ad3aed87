"""Many runs inside a step when their only worker is killed; started as a program, it brings them there and dies."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import holdfast as hf

SLOTS = 8
"""How many of the limited steps may be under way at once."""


def functions(begun: Callable[[], None], arrive: Callable[[int], Awaitable[None]]) -> list[Any]:
    """Return what is served everywhere, what has a limit, and what is served only by whoever dies."""
    limit = hf.Limit("crowd", at_once=SLOTS)

    async def prepare(number: int) -> int:
        return number

    async def act(number: int) -> int:
        await arrive(number)
        return number

    @hf.durable
    async def plain(ctx: hf.Context, number: int) -> int:
        await ctx.step(prepare, number)
        begun()
        return await ctx.step(act, number)

    @hf.durable
    async def limited(ctx: hf.Context, number: int) -> int:
        await ctx.step(prepare, number)
        begun()
        return await ctx.step(act, number, limit=limit)

    @hf.durable
    async def foreign(ctx: hf.Context, number: int) -> int:
        await ctx.step(prepare, number)
        begun()
        return await ctx.step(act, number)

    return [plain, limited, foreign]


async def seed(address: str, count: int) -> None:
    """Bring so many runs of each kind into their second step, or to wait for it, and die."""
    left, all_begun = 3 * count, asyncio.Event()

    def begun() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            all_begun.set()

    async def arrive(number: int) -> None:
        await asyncio.Event().wait()

    kinds = functions(begun, arrive)
    async with hf.open(address, hf.App(*kinds, version="1"), concurrency=3 * count) as runtime:
        for kind in reversed(kinds):
            await asyncio.gather(*(runtime.start(kind, number, key=(kind.name, number)) for number in range(count)))
        await asyncio.wait_for(all_begun.wait(), 60)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(seed(sys.argv[1], int(sys.argv[2])))
