"""Programs for the kit to kill: one that survives anything, and others that are wrong in one way each."""

import asyncio
import itertools
from collections import Counter
from datetime import timedelta
from typing import Any

import holdfast as hf

world: Counter[str] = Counter()
"""What the steps did to the world, by name."""
seen: list[str] = []
coin = itertools.count()


async def never() -> None:
    """Wait for what nobody does, on whichever loop."""
    await asyncio.get_running_loop().create_future()


def forget() -> None:
    """Put the world back."""
    world.clear()
    seen.clear()


async def load(customer: str) -> str:
    """Look something up."""
    world["load"] += 1
    return customer.title()


def find(customer: str) -> Any:
    """Look whether the customer was charged."""
    return f"receipt of {customer}" if world[f"charge {customer}"] else hf.NOT_DONE


@hf.step(effect="once", verify=find)
def charge(customer: str) -> str:
    """Take money."""
    world[f"charge {customer}"] += 1
    return f"receipt of {customer}"


@hf.step(effect="keyed")
def book(step: hf.Step[str], customer: str) -> str:
    """Write into somebody else's books, under a key."""
    world[f"book {step.idempotency_key}"] = 1
    return f"{step.deps} has {customer}"


def count_customers(transaction: hf.Transaction, customer: str) -> int:
    """Write into the store's own database."""
    transaction.execute("CREATE TABLE IF NOT EXISTS customers (name TEXT)")
    transaction.execute("INSERT INTO customers VALUES (?)", (customer,))
    return int(transaction.execute("SELECT count(*) FROM customers")[0][0])


async def flaky() -> str:
    """Fail the first time."""
    world["flaky"] += 1
    if world["flaky"] == 1:
        raise ConnectionError("not now")
    return "at last"


@hf.durable
async def onboard(ctx: hf.Context, customer: str) -> list[Any]:
    """Use every kind of step."""
    name = await ctx.step(load, customer)
    receipt = await ctx.step(charge, customer)
    booked = await ctx.step(book, customer)
    count = await ctx.step(count_customers, customer)
    late = await ctx.step(flaky, retry=hf.Retry(first=timedelta(days=3), most=timedelta(days=3)))
    await ctx.emit("nearly done")
    return [name, receipt, booked, count, late, str(ctx.uuid()), ctx.random.random()]


@hf.durable
async def booked(ctx: hf.Context, customer: str) -> str:
    """Write into the books."""
    return await ctx.step(book, await ctx.step(load, customer))


app = hf.App(onboard, booked, deps=lambda: "the bank")


@hf.durable
async def simple(ctx: hf.Context, customer: str) -> str:
    """Ask for two steps."""
    return await ctx.step(load, await ctx.step(load, customer))


@hf.durable
async def fickle(ctx: hf.Context) -> str:
    """Take another way each time."""
    await ctx.step(load if next(coin) % 2 else echo, "a")
    return await ctx.step(echo, "a")


async def echo(customer: str) -> str:
    """Return what was given."""
    return customer


@hf.durable
async def forgetful(ctx: hf.Context, customer: str) -> int:
    """Act between the steps, where code runs again after every crash."""
    seen.append(customer)
    await ctx.step(load, customer)
    return len(seen)


@hf.durable
async def drifting(ctx: hf.Context) -> int:
    """Return something that is not the run's."""
    return next(coin)


@hf.step(effect="once", verify=lambda customer: hf.NOT_DONE, name="pay")
def pay_unseen(customer: str) -> str:
    """Take money, and deny it."""
    world["paid"] += 1
    return "paid"


@hf.durable
async def denying(ctx: hf.Context, customer: str) -> str:
    """Pay by a step whose check lies."""
    return await ctx.step(pay_unseen, customer)


@hf.step(effect="once")
def send(customer: str) -> str:
    """Send what cannot be looked up."""
    world["sent"] += 1
    return "sent"


@hf.durable
async def doubtful(ctx: hf.Context, customer: str) -> str:
    """Send once, and hope."""
    return await ctx.step(send, customer)


@hf.durable
async def waiting(ctx: hf.Context, customer: str) -> str:
    """Send once, and ask a person if that is interrupted."""
    return await ctx.step(send, customer, in_doubt="wait")


def refuse(customer: str) -> str:
    """Fail."""
    raise ValueError(f"no {customer}")


@hf.durable
async def failing(ctx: hf.Context, customer: str) -> str:
    """Fail, the same each time."""
    return await ctx.step(refuse, customer)


@hf.durable
async def resting(ctx: hf.Context) -> str:
    """Come to where only a person can help."""
    return await ctx.step(refuse, "a", effect="once", in_doubt="wait")


@hf.durable
async def hanging(ctx: hf.Context) -> None:
    """Never come to an end."""
    await ctx.step(never, key="wait")


@hf.durable
async def tidy(ctx: hf.Context) -> str:
    """Tidy up when the code is left, which a crash does not wait for."""
    try:
        return await ctx.step(load, "a")
    finally:
        seen.append("left")


@hf.durable
async def cleaning(ctx: hf.Context) -> str:
    """Clean up by a step when the code is left."""
    try:
        return await ctx.step(load, "a")
    finally:
        await ctx.step(clean)


async def clean() -> None:
    """Clean up."""
    seen.append("cleaned")


PAID: hf.Signal[int] = hf.Signal("paid", int)


@hf.durable
async def clerk(ctx: hf.Context) -> int | None:
    """Wait for a signal, as a child."""
    return await ctx.receive(PAID, timeout=3600.0)


@hf.durable
async def manager(ctx: hf.Context) -> int | None:
    """Let a child wait for a child of its own."""
    return await ctx.run(clerk)


@hf.durable
async def firm(ctx: hf.Context) -> int | None:
    """Wait for a grandchild."""
    return await ctx.run(manager)


@hf.durable
async def deal(ctx: hf.Context) -> list[Any]:
    """Ask, wait twice, and let a child wait."""
    told = await ctx.ask("Go on?", show={"price": 9})
    mine, childs = ctx.receive(PAID, timeout=60.0), ctx.run(clerk)
    return [bool(told), *await ctx.gather(mine, childs)]


DEALING = hf.App(clerk, deal)
MANAGED = hf.App(manager)


@hf.durable
async def paying(ctx: hf.Context) -> str:
    """Ask for what may be changed."""
    told = await ctx.ask("Pay the invoice?", args={"cents": 900})
    return f"paid {(told.args or {})['cents']}" if told else "refused"


def agree(question: Any) -> bool:
    """Say yes."""
    return True


def decline(question: Any) -> bool:
    """Say no."""
    return False


def agree_to_less(question: Any) -> tuple[bool, dict[str, Any]]:
    """Say yes to less than what was asked for."""
    return True, {"cents": question.args["cents"] - 200}


def decide_less(question: Any) -> hf.Decision:
    """Say the same as a person's decision."""
    return hf.Decision(yes=True, by="ann", args={"cents": 700})


def mumble(question: Any) -> Any:
    """Say neither."""
    return "yes"


SAID: hf.Signal[str] = hf.Signal("said", str)


@hf.step(effect="once", in_doubt="raise")
def risky() -> str:
    """Do what nobody can look up."""
    return "done"


@hf.durable
async def doubting(ctx: hf.Context) -> str:
    """Ask somebody only when it is not known what happened."""
    try:
        return await ctx.step(risky)
    except hf.InDoubt:
        return await ctx.receive(SAID)
