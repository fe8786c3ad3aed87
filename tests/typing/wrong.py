"""Calls that a type checker must refuse, one per marked line; never run."""

import holdfast as hf
from holdfast.testing import every_crash
from tests.typing.right import (
    Pool,
    at_a_tick_with,
    book,
    count,
    load,
    onboard,
    paid,
    pay,
    remind,
    sent,
    without_arguments,
)  # fmt: skip


@hf.durable
async def careless(ctx: hf.Context, customer: str) -> str:
    """Wrong steps."""
    await ctx.step(load, customer)  # wrong: an argument is missing
    await ctx.step(load, customer, "three")  # wrong: not an int
    await ctx.step(load, customer, 3, 4)  # wrong: too many
    await ctx.step(count, [1, 2])  # wrong: not a list of text
    await ctx.step(pay)  # wrong: cents are missing
    await ctx.step(pay, "five")  # wrong: not an int
    await ctx.step(book, 5)  # wrong: not text
    await ctx.step(load, customer, 3, effect="twice")  # wrong: no such effect
    await ctx.step(load, customer, 3, in_doubt="ignore")  # wrong: no such policy
    await ctx.step(load, customer, 3, limits=3)  # wrong: no such option
    await ctx.step(load, customer, 3, retry=3)  # wrong: not a Retry
    await ctx.step(load, customer, limit=3)  # wrong: a function's keyword
    words: list[int] = await ctx.step(load, customer, 3)  # wrong: its result is text
    number: int = await ctx.receive(sent)  # wrong: it carries text
    print(number)
    return words  # wrong: not text


async def use_wrongly(runtime: hf.Runtime) -> None:
    """Wrong starts."""
    await runtime.start(onboard)  # wrong: both arguments are missing
    await runtime.start(onboard, "acme")  # wrong: one is missing
    await runtime.start(onboard, 3, "acme")  # wrong: swapped
    await runtime.start(onboard, "acme", 3, 4)  # wrong: too many
    await runtime.start(without_arguments, "acme")  # wrong: it takes none
    await runtime.start(load, "acme", 3)  # wrong: not durable
    await runtime.start(onboard, "acme", 3, key=7)  # wrong: no key
    await runtime.start(onboard, "acme", 3, label={})  # wrong: no such option
    await runtime.run(onboard, "acme")  # wrong: one is missing
    text: str = await runtime.run(onboard, "acme", 3)  # wrong: its result is a dict
    hf.run(onboard, "acme")  # wrong: one is missing
    handle = await runtime.start(onboard, "acme", 3)
    await handle.signal(paid, "three")  # wrong: it carries an int
    wider: hf.Run[str] = handle  # wrong: its result is a dict
    print(wider)
    hf.App(load)  # wrong: not durable
    print(text, Pool)


async def plain_greeting(ctx: hf.Context, customer: str) -> str:
    """An agent's function that nobody made durable."""
    return customer


async def leave_out_wrongly(ctx: hf.Context, runtime: hf.Runtime) -> None:
    """A default takes the check from no other argument."""
    hf.run(remind)  # wrong: the customer is missing
    hf.run(remind, "acme", "three")  # wrong: not an int
    hf.run(remind, "acme", 3, "note", 4)  # wrong: too many
    await runtime.start(remind, 3)  # wrong: not text
    await runtime.run(remind, customer="acme")  # wrong: a function's keyword
    number: str = await runtime.run(remind, "acme")  # wrong: its result is a bool
    await ctx.run(remind)  # wrong: the customer is missing
    await ctx.spawn(remind, "acme", None)  # wrong: not an int
    await ctx.map(remind, [1, 2])  # wrong: not text
    await every_crash(remind, 3)  # wrong: not text
    await ctx.step(remind, "acme")  # wrong: a run of its own, not a step
    await ctx.run(plain_greeting, "acme")  # wrong: not durable
    await remind(ctx, "acme", note=3)  # wrong: not text
    print(number)


def schedule_wrongly(app: hf.App) -> None:
    """Wrong schedules."""
    app.schedule(onboard, "0 2 * * *")  # wrong: its arguments are missing
    app.schedule(onboard, "0 2 * * *", args=("acme",))  # wrong: one is missing
    app.schedule(onboard, "0 2 * * *", args=(3, "acme"))  # wrong: swapped
    app.schedule(at_a_tick_with, "0 2 * * *", args=("blue", "three"))  # wrong: not an int
    app.schedule(without_arguments, "0 2 * * *", missed="some")  # wrong: no such policy
    app.schedule(without_arguments, "0 2 * * *", overlap="never")  # wrong: no such policy
    app.schedule(load, "0 2 * * *")  # wrong: not durable


@hf.durable  # wrong: not async
def plain(ctx: hf.Context) -> int:
    """Durable functions are async."""
    return 1


@hf.tool
def refund(order: str, cents: int = 5) -> str:
    """Pay back."""
    return order


clerk = hf.Agent("clerk", model="openai:gpt-5-mini", tools=[refund])


async def with_agents(runtime: hf.Runtime) -> None:
    """An agent takes one message."""
    await runtime.start(clerk, 42)  # wrong: no message
    await runtime.start(clerk)  # wrong: no message at all
    hf.Agent("clerk", model="openai:gpt-5-mini", limit=3)  # wrong: no such option


refund(42)  # wrong: not text
refund("42", "five")  # wrong: not an int
hf.tool(effect="twice")(refund)  # wrong: no such effect
hf.tool(in_doubt="hope")(refund)  # wrong: no such policy


with hf.checkpoint.open("loop", of=str) as saved:
    saved.save([1])  # wrong: not text
    saved.effect("call-1", len, 5)  # wrong: an int has no length
