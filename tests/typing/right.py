"""Calls that a type checker accepts, with the types that come out; never run."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, assert_type

import holdfast as hf
from holdfast.testing import every_crash


class Pool:
    """A dependency."""


async def load(customer: str, limit: int) -> list[str]:
    """An async step."""
    return [customer] * limit


def count(words: list[str]) -> int:
    """A plain step."""
    return len(words)


async def pay(step: hf.Step[Pool], cents: int) -> bytes:
    """A step that asks for its surroundings."""
    assert_type(step.deps, Pool)
    assert_type(step.idempotency_key, str)
    return b""


def plain_pay(step: hf.Step[Pool], cents: int) -> float:
    """The same in a thread."""
    return cents / 100


def book(tx: hf.Transaction, what: str) -> int:
    """A transaction step."""
    assert_type(tx.execute("SELECT 1"), list[tuple[Any, ...]])
    return 1


def with_default(word: str, times: int = 1) -> str:
    """A step with a default."""
    return word * times


class Service:
    """Methods are steps too."""

    async def call(self, word: str) -> str:
        """One of them."""
        return word


@hf.step(effect="once", verify=lambda cents: hf.NOT_DONE, retry=hf.Retry(attempts=2))
async def declared(cents: int) -> str:
    """A step with a policy keeps its type."""
    return str(cents)


@hf.durable
async def onboard(ctx: hf.Context, customer: str, limit: int) -> dict[str, int]:
    """Every verb, rightly used."""
    words = await ctx.step(load, customer, limit)
    assert_type(words, list[str])
    assert_type(await ctx.step(count, words), int)
    assert_type(await ctx.step(pay, 5, effect="keyed", timeout=timedelta(seconds=3)), bytes)
    assert_type(await ctx.step(plain_pay, 5, effect=hf.Effect.ONCE, in_doubt="wait"), float)
    assert_type(await ctx.step(book, "line", key="book"), int)
    assert_type(await ctx.step(declared, 5, name="other", not_performed=(ConnectionError,)), str)
    assert_type(await ctx.step(Service().call, "word", retry=hf.Retry()), str)
    assert_type(await ctx.step(partial(load, limit=3), customer), list[str])
    assert_type(await ctx.step(with_default, "word", 2), str)
    assert_type(await ctx.step(with_default, "word"), str)
    await ctx.emit({"percent": 50}, name="progress")
    ctx.log.info("logged", stamp=ctx.now(), chance=ctx.random.random(), id=ctx.uuid())
    return {customer: limit}


@hf.durable(name="nothing")
async def without_arguments(ctx: hf.Context) -> None:
    """A run without input."""


@hf.durable
async def at_a_tick(ctx: hf.Context, at: datetime) -> None:
    """A run that is given its tick."""


@hf.durable
async def at_a_tick_with(ctx: hf.Context, at: datetime, team: str, size: int) -> None:
    """A run that is given its tick and more."""


def schedule(app: hf.App) -> None:
    """Schedules, rightly declared."""
    app.schedule(without_arguments, "@hourly")
    app.schedule(at_a_tick, "0 2 * * *", tz="Europe/Berlin", missed="last", overlap="skip", name="nightly")
    app.schedule(at_a_tick_with, "0 2 * * *", args=("blue", 3))
    app.schedule(onboard, "0 2 * * *", args=("acme", 3))


async def use() -> None:
    """The runtime, rightly used."""
    app = hf.App(onboard, without_arguments, deps=Pool, version="1", secrets=["KEY"])
    async with hf.open("sqlite:///x.db", app, concurrency=3) as runtime:
        run = await runtime.start(onboard, "acme", 3, key=("onboard", "acme", 3), labels={"team": "blue"}, delay=1.5)
        assert_type(run, hf.Run[dict[str, int]])
        assert_type(await run.result(timeout=timedelta(minutes=1)), dict[str, int])
        assert_type(await runtime.run(onboard, "acme", 3), dict[str, int])
        assert_type(await (await runtime.start(without_arguments)).result(), None)
        assert_type(await runtime.get(run.id), hf.Run[Any])
        assert_type(await runtime.get(key="k", of=onboard), hf.Run[dict[str, int]])
        assert_type(await run.info(), hf.RunInfo)
        events: AsyncIterator[hf.Event] = run.events(after="17:4:40")
        async for event in events:
            match event:
                case hf.events.Chunk():
                    assert_type(event.offset, int)
                case hf.events.StepCompleted():
                    assert_type(event.step, str)
                case _:
                    pass


def use_plainly() -> None:
    """The runtime from plain code."""
    assert_type(hf.run(onboard, "acme", 3, key="k", store="memory://"), dict[str, int])
    with hf.open() as runtime:
        run = runtime.wait(runtime.start(onboard, "acme", 3))
        assert_type(run, hf.Run[dict[str, int]])
        assert_type(runtime.wait(run.result()), dict[str, int])


paid = hf.Signal("paid", int)
said = hf.Signal("said")


async def wait(ctx: hf.Context) -> None:
    """The verbs that wait, fan out and spawn, rightly used."""
    assert_type(paid, hf.Signal[int])
    assert_type(said, hf.Signal[Any])
    assert_type(await ctx.receive(paid), int)
    assert_type(await ctx.receive(paid, timeout=3), int | None)
    assert_type(await ctx.receive(paid, said), tuple[hf.Signal[Any], Any])
    assert_type(await ctx.ask("Shall I?", show=1, expires=timedelta(days=1)), hf.Decision)
    assert_type(await ctx.gather(ctx.step(count, ["a"]), ctx.receive(paid)), tuple[int, int])
    assert_type(await ctx.run(onboard, "acme", 3), dict[str, int])
    child = await ctx.spawn(onboard, "acme", 3)
    assert_type(child, hf.Child[dict[str, int]])
    assert_type(await child.result(), dict[str, int])
    await child.signal(paid, 3)


sent = hf.Signal("sent", str)
any_of_them: Sequence[hf.Signal[object]] = [paid, sent]


@hf.durable
async def is_big(ctx: hf.Context, customer: str, limit: int) -> bool:
    """Another function with the same arguments."""
    return limit > 3


def find_payment(order: str) -> str | hf.NotDone:
    """A verify that may find nothing."""
    return {"A1": "payment 1"}.get(order, hf.NOT_DONE)


@hf.step(effect="once", verify=find_payment)
def pay_order(order: str) -> str:
    """A step that is looked up when it is in doubt."""
    return order


async def mix(ctx: hf.Context) -> str:
    """What is received or returned may be taken for something wider."""
    told = f"{await ctx.receive(paid)} {await ctx.receive(paid, timeout=3)} {await ctx.run(onboard, 'acme', 3)}"
    for signal in (paid, sent):
        told += f"{await ctx.receive(signal)}"
    for each in any_of_them:
        told += f"{await ctx.receive(each)}"
    for child in [await ctx.spawn(onboard, "acme", 3), await ctx.spawn(is_big, "acme", 3)]:
        told += f"{await child.result()}"
    assert_type(await ctx.step(pay_order, "A1"), str)
    return told


async def mix_runs(runtime: hf.Runtime) -> None:
    """Runs of several functions go through the same hands."""
    for function in (onboard, is_big):
        print(await runtime.run(function, "acme", 3))
    for run in [await runtime.start(onboard, "acme", 3), await runtime.start(without_arguments)]:
        print(await run.result())
    one: hf.Run[object] = await runtime.start(is_big, "acme", 3)
    await one.signal(paid, 3)
    await one.signal(paid)
    await one.signal(said, {"any": "thing"})
    await one.signal("paid", 3)


@hf.durable
async def remind(ctx: hf.Context, customer: str, times: int = 1, *, note: str = "") -> bool:
    """A function whose last arguments may be left out."""
    return times > 1


@hf.durable(name="tick with defaults")
async def at_a_tick_or_more(ctx: hf.Context, at: datetime, team: str = "blue") -> None:
    """A run that is given its tick, and may be given more."""


async def leave_out(ctx: hf.Context, runtime: hf.Runtime, app: hf.App) -> None:
    """An argument with a default may be left out, of every verb that starts a run."""
    assert_type(hf.run(remind, "acme"), bool)
    assert_type(hf.run(remind, "acme", 3, key="k"), bool)
    assert_type(await runtime.run(remind, "acme"), bool)
    assert_type(await runtime.start(remind, "acme", labels={"team": "blue"}), hf.Run[bool])
    assert_type(await runtime.get(key="k", of=remind), hf.Run[bool])
    assert_type(await ctx.run(remind, "acme", key="one"), bool)
    assert_type(await ctx.spawn(remind, "acme"), hf.Child[bool])
    assert_type(await ctx.map(remind, ["acme", "bolt"]), list[bool])
    await every_crash(remind, "acme", timeout=10)
    app.schedule(at_a_tick_or_more, "@hourly")
    app.schedule(remind, "@hourly", args=("acme",))


async def called_plainly(ctx: hf.Context) -> None:
    """A durable function that is called is the function, with its keywords."""
    assert_type(await remind(ctx, "acme", note="soon"), bool)


BY_NAME: Mapping[str, hf.Durable[object, [str]]] = {"remind": remind}
ANY: Sequence[hf.Durable[Any, ...]] = [remind, onboard, without_arguments]


async def pick(runtime: hf.Runtime) -> None:
    """Functions with the same arguments are kept by name, any functions in a list."""
    one: hf.Run[object] = await runtime.start(BY_NAME["remind"], "acme")
    print(one)
    for function in ANY:
        assert_type(await runtime.run(function, 1, 2, 3), Any)
    hf.App(*ANY)


@hf.tool(effect="repeat", needs_approval=lambda order: len(order) > 3)
async def look_up(step: hf.Step[None], order: str) -> int:
    """Look an order up."""
    return len(order)


@hf.tool
def refund(order: str, cents: int = 5) -> str:
    """Pay back."""
    return order


class Answer(NamedTuple):
    """What an agent is to answer."""

    order: int


clerk = hf.Agent("clerk", model="openai:gpt-5-mini", tools=[refund])
reader = hf.Agent("reader", model="openai:gpt-5-mini", output=Answer, turn_limit=3)


async def with_agents(ctx: hf.Context, runtime: hf.Runtime) -> None:
    """An agent takes a message, and its runs return text, or what `output` says."""
    assert_type(clerk, hf.Agent[str])
    assert_type(await runtime.start(clerk, "hello"), hf.Run[str])
    assert_type(await ctx.run(reader, "hello"), Answer)


async def with_tools(ctx: hf.Context) -> None:
    """A tool is called like its function, and is a step with its function's result."""
    assert_type(refund("42", cents=3), str)
    assert_type(await ctx.step(refund, "42"), str)
    hf.mcp.Server("desk", ["desk"], effects={"order": "once"})


async def with_checkpoints() -> None:
    """Messages have the type that was named, and an effect that of its function."""
    with hf.checkpoint.open("loop", of=str) as saved:
        assert_type(saved.load(), list[str] | None)
        assert_type(saved.effect("call-1", len, "abc"), int)
    async with hf.checkpoint.open(("loop", 1), of=str) as soon:
        assert_type(await soon.load(), list[str] | None)
        assert_type(await soon.effect("call-1", len, "abc"), int)
        assert_type(await soon.effect("call-2", load, "acme", 3), list[str])
    assert_type([left.id for left in hf.checkpoint.interrupted()], list[str])
