"""A program before a deploy: some runs wait twice, and every act is noted outside the store."""

import os
from pathlib import Path

import holdfast as hf

HERE = Path(__file__).parent
GO = hf.Signal("go", str)
ON = hf.Signal("on", str)


def act(who: str, what: str) -> str:
    """Write down, where no journal can take it back, that this was done, and by which version."""
    file = os.open(HERE / "acts.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{who} {what} 1\n".encode())
    os.close(file)
    return what


@hf.durable
async def benign(ctx: hf.Context, who: str) -> str:
    """Act, wait, act, wait, act."""
    await ctx.step(act, who, "first")
    await ctx.receive(GO)
    await ctx.step(act, who, "second")
    await ctx.receive(ON)
    return await ctx.step(act, who, "third")


@hf.durable
async def harmful(ctx: hf.Context, who: str) -> str:
    """Act twice, wait, act."""
    await ctx.gather(ctx.step(act, who, "first"), ctx.step(act, who, "second"))
    await ctx.receive(GO)
    return await ctx.step(act, who, "third")


app = hf.App(benign, harmful, version="1")
