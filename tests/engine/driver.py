"""A process that drives runs until it is killed: `python -m tests.engine.driver PATH WORK`.

It starts one run of `tale` under key `k`, and says `reached` from inside the run's second step, which then waits for a
line; `finish` lets it through.
"""

import asyncio
import sys

import holdfast as hf


def say(word: str) -> str:
    """Say a word on standard output."""
    print(word, flush=True)
    return word


def wait_for_word() -> str:
    """Say where the run is and wait for a line."""
    say("reached")
    return sys.stdin.readline().strip()


@hf.durable
async def tale(ctx: hf.Context) -> list[str]:
    """Say a word, wait, say another."""
    first = await ctx.step(say, "first")
    waited = await ctx.step(wait_for_word)
    return [first, waited, await ctx.step(say, "last")]


async def main(path: str) -> None:
    """Drive until told otherwise."""
    async with hf.open(f"sqlite:///{path}", hf.App(tale)) as runtime:
        run = await runtime.start(tale, key="k")
        say(" ".join(await run.result()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
