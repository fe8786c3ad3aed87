"""What a process under trial serves: five durable functions that between them use every verb, and their children."""

import asyncio
from typing import Any, Final

import holdfast as hf
from holdfast.engine.function import Durable
from holdfast.store import point
from tests.chaos import program
from tests.chaos.program import PAY_SECONDS, book, did, fulfil, hold, look, pay, was_paid

PAID: Final = hf.Signal("paid", int)
SENT: Final = hf.Signal("sent", str)
TILL: Final = hf.Limit("till", at_once=1)
GENERATIONS: Final = 2
_DAWDLE_SECONDS: Final = 0.002


def note(what: str, **facts: Any) -> None:
    """Write a line outside that no death takes back."""
    program.world().note(what, **facts)


async def act(order: str, what: str = "acts") -> str:
    """Do something that may be repeated until it is recorded."""
    did(what, order)
    return what


async def dawdle(order: str) -> None:
    """Take longer than anybody waits."""
    point.reached("dawdle begins")
    await asyncio.Event().wait()


@hf.durable
async def visit(ctx: hf.Context, name: str) -> dict[str, Any]:
    """Wait for a time, for one of two signals through a pause, for what does not come, and for people."""
    told: dict[str, Any] = {"patched": ctx.patched("fast"), "began": int(ctx.now().timestamp() * 1_000_000)}

    def ack(what: str, value: Any) -> None:
        note("told", order=name, name=what, value=value)
        told[what] = value

    ctx.log.debug("a visit", run=ctx.run_id)
    await ctx.sleep(30)
    came = await ctx.receive(PAID, SENT, timeout=3600)
    ack("paid", [came[0].name, came[1]] if came is not None else None)
    ack("nothing", await ctx.receive(SENT, timeout=20))
    decision = await ctx.ask("Ship it?", show={"paid": told["paid"]}, args={"to": "home"}, expires=3600)
    ack("decided", [decision.yes, decision.args, decision.by])
    ack("late", (await ctx.ask("Anything else?", expires=50)).expired)
    ack("sent", (await ctx.gather(ctx.sleep(40), ctx.receive(SENT)))[1])
    await ctx.emit({"almost": name})
    try:
        await ctx.step(dawdle, name, timeout=_DAWDLE_SECONDS)
    except hf.StepError as error:
        ack("slow", error.type)
    return told


@hf.durable
async def stay(ctx: hf.Context, name: str) -> None:
    """Wait for what does not come, and clean up when told to end."""
    await ctx.step(act, name, "came")
    try:
        await ctx.receive(SENT)
    finally:
        await ctx.step(act, name, "left")


@hf.durable
async def clerk(ctx: hf.Context, name: str) -> str:
    """Hold something and look, beside each other, as a child."""
    held, _ = await ctx.gather(ctx.step(hold, name, effect="keyed"), ctx.step(look, name))
    return held


@hf.durable
async def courier(ctx: hf.Context, name: str) -> str:
    """Deliver what its parent sends."""
    what = await ctx.receive(SENT)
    return await ctx.step(act, name, f"delivers-{what}")


@hf.durable
async def market(ctx: hf.Context, name: str) -> list[Any]:
    """Do everything beside each other, two branches of it in one till's turn."""

    async def both() -> list[Any]:
        ctx.now()
        return [await ctx.step(look, f"{name}.both"), await ctx.step(book, name)]

    codes: list[Any] = [
        ctx.step(pay, name, effect="once", verify=was_paid, timeout=PAY_SECONDS, limit=TILL),
        ctx.step(hold, name, effect="keyed", limit=TILL),
        ctx.run(clerk, f"{name}.clerk"),
        both(),
        ctx.map(act, [f"{name}.{item}" for item in range(3)], at_once=2),
    ]
    return list(await ctx.gather(*codes))


@hf.durable
async def family(ctx: hf.Context, name: str, told: dict[str, Any]) -> dict[str, Any]:
    """Spawn, signal, cancel, and go on from the top with what came of it."""

    def ack(what: str, value: Any) -> None:
        note("told", order=name, name=what, value=value)
        told[what] = value

    if told:
        ack("held", await ctx.step(hold, f"{name}.later", effect="keyed"))
        ack("chance", [str(ctx.uuid()), ctx.random.random()])
        return told
    ack("first held", await ctx.step(hold, name, effect="keyed"))
    errand = await ctx.spawn(courier, f"{name}.errand")
    guest = await ctx.spawn(stay, f"{name}.guest", key="guest")
    await errand.signal(SENT, "parcel")
    ack("delivered", (await ctx.gather(ctx.sleep(5), errand.result()))[1])
    await guest.cancel("enough")
    try:
        await guest.result()
    except hf.RunError as error:
        ack("guest", [str(error.status), error.reason])
    ack("clerks", await ctx.map(clerk, [f"{name}.one", f"{name}.two"], key=str))
    ack("first chance", [str(ctx.uuid()), ctx.random.random()])
    await ctx.continue_as(name, told)


CODES: Final[dict[str, Durable[Any, ...]]] = {
    "order": fulfil, "visit": visit, "stay": stay, "market": market, "family": family, "clerk": clerk,
    "courier": courier,
}  # fmt: skip
"""All that is served, by the word that a run's name begins with."""
ACTS: Final = ("order", "visit", "stay", "market", "family")
"""What is started from outside."""


def arguments(act: str, name: str) -> tuple[Any, ...]:
    """Return what an act of that name is started with."""
    return (name, {}) if act == "family" else (name,)
