"""What the served program can do: end, fail, wait, ask, doubt, emit, and have children."""

import asyncio

import holdfast as hf

go = hf.Signal("go", int)
gate = asyncio.Event()
"""Holds `teller` in the middle of its step, where it runs in the tests' own process."""


@hf.durable
async def double(ctx: hf.Context, number: int) -> int:
    """End at once."""
    return await ctx.step(_double, number)


async def _double(number: int) -> int:
    return 2 * number


@hf.durable
async def fails(ctx: hf.Context) -> None:
    """Fail at once."""
    raise ValueError("it had to fail")


@hf.durable
async def waits(ctx: hf.Context, rounds: int = 1) -> int:
    """Wait for so many signals, and return their sum."""
    total = 0
    for _ in range(rounds):
        total += await ctx.receive(go)
        await ctx.emit(total)
    return total


@hf.durable
async def asks(ctx: hf.Context, what: str) -> bool:
    """Ask a person."""
    return bool(await ctx.ask(what, show={"what": what}, args={"cents": 1}))


@hf.durable
async def calls_back(ctx: hf.Context) -> int:
    """Let whoever has the token bring a number."""
    wait = await ctx.callback(hf.Signal("paid", int))
    await ctx.emit(wait.token, name="token")
    return await wait.result()


async def _tell(step: hf.Step[None], words: int) -> str:
    for number in range(words):
        step.emit({"kind": "text", "text": f"w{number} "})
    await gate.wait()
    return "".join(f"w{number} " for number in range(words))


@hf.durable
async def teller(ctx: hf.Context, words: int) -> str:
    """Tell some words as previews, and keep them when the gate is open."""
    return await ctx.step(_tell, words)


@hf.durable
async def talks(ctx: hf.Context, lines: int, size: int) -> None:
    """Emit so many values of so many bytes."""
    for _ in range(lines):
        await ctx.emit("x" * size)


@hf.durable
async def parent(ctx: hf.Context) -> int:
    """Have a child with a budget."""
    return await ctx.run(double, 21, budget=hf.Budget(steps=5))


@hf.durable
async def steps(ctx: hf.Context, number: int) -> int:
    """Perform so many steps."""
    for _ in range(number):
        await ctx.step(_double, number)
    return number


@hf.step(effect="once", in_doubt="wait")
async def pay() -> str:
    """Lose the answer of a payment."""
    raise hf.InDoubt(message="the line went dead")


@hf.durable
async def doubts(ctx: hf.Context) -> str:
    """Pay, and wait for somebody who knows whether it happened."""
    return await ctx.step(pay)


@hf.durable
async def limited(ctx: hf.Context) -> int:
    """Perform a step under a limit."""
    return await ctx.step(_double, 1, limit=hf.Limit("shared", at_once=2))


app = hf.App(double, fails, waits, asks, calls_back, teller, talks, parent, steps, doubts, limited)
