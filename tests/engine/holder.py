"""A process that holds a slot until it is killed: `python -m tests.engine.holder ADDRESS`.

It starts one run whose limited step says `holding` and then waits for ever.
"""

import asyncio
import sys

import holdfast as hf

LIMIT = hf.Limit("shared", at_once=1)


async def hold() -> str:
    """Say that the slot is taken, and keep it."""
    print("holding", flush=True)
    return await asyncio.get_running_loop().create_future()


@hf.durable
async def holder(ctx: hf.Context) -> str:
    """Take the slot."""
    return await ctx.step(hold, limit=LIMIT)


async def main(address: str) -> None:
    """Drive until killed."""
    async with hf.open(address, hf.App(holder)) as runtime:
        await (await runtime.start(holder)).result()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
