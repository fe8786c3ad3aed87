"""What ends a doubt is looked at before there is one: where it counts, whether it can be called, and what it said."""

from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.errors import InvalidInput
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, soon


def find(order: str) -> Any:
    """Find nothing."""
    return hf.NOT_DONE


def pay(order: str) -> str:
    """Pay."""
    return order


@pytest.mark.parametrize("effect", ["repeat", "keyed", None])
@pytest.mark.parametrize(("name", "value"), [("verify", find), ("in_doubt", "wait"), ("in_doubt", "raise")])
async def test_what_ends_a_doubt_is_for_steps_that_can_be_in_doubt(
    stage: Stage, effect: Any, name: str, value: Any
) -> None:
    """Whoever forgets effect="once" is told so, instead of being paid twice."""
    with pytest.raises(InvalidInput, match=f"{name}= is for effect='once'"):
        hf.step(effect=effect, **{name: value})

    options: dict[str, Any] = {name: value, "effect": effect}

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(pay, "A1", **options)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.RunError, match=f"{name}= is for effect='once', and pay is '{effect or 'repeat'}'"):
            await run.result(timeout=20)


async def test_a_call_may_say_more_of_a_once_step_or_make_another_of_it(stage: Stage) -> None:
    """What the function declared need not be said again, and counts for nothing where the call says repeat."""
    once = hf.step(effect="once", verify=find)(lambda order: order)

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        return [
            await ctx.step(once, "a", in_doubt="wait", name="waiting"),
            await ctx.step(once, "b", effect="repeat", name="repeated"),
        ]

    async with stage.open(tale) as runtime:
        assert await runtime.run(tale) == ["a", "b"]


def nothing() -> Any:
    """A verify that takes no argument."""


def two(order: str, cents: int) -> Any:
    """A verify that wants more than there is."""


def other(step: hf.Step[Any], order: str, cents: int) -> Any:
    """A verify that wants more than there is, beside its surroundings."""


@pytest.mark.parametrize("verify", [nothing, two, other])
async def test_a_verify_that_cannot_be_called_is_noticed_before_the_effect(stage: Stage, verify: Any) -> None:
    """Not in the disaster that it is for."""
    paid: list[str] = []

    @hf.step(effect="once", verify=verify)
    def act(order: str) -> None:
        paid.append(order)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(act, "A1")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.RunError, match=f"verify= of act is given the step's own arguments.*{verify.__name__}"):
            await run.result(timeout=20)
        assert paid == []
        assert "StepStarted" not in await kinds_of(run)


def closed(order: str) -> Any:
    """A verify that cannot tell."""
    raise LookupError(f"the bank is closed for {order}")


@hf.step(effect="once", verify=closed)
def cut_off(order: str) -> str:
    """Lose the answer."""
    raise ConnectionResetError("the answer never came")


async def test_a_doubt_tells_why_verify_could_not(stage: Stage) -> None:
    """The same sentence, live and on replay."""
    told: list[str] = []
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.step(cut_off, "A1")
        except hf.InDoubt as doubt:
            told.append(doubt.message)
        await ctx.step(hurdle, name="hurdle")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        again = await runtime.get(run.id)
        await again.result(timeout=20)
        (resolved,) = [entry for entry in await entries_of(again) if isinstance(entry, events.StepResolved)]
    said = "verify could not tell: LookupError: the bank is closed for A1"
    assert told == [f"ConnectionResetError: the answer never came ({said})"] * 2
    assert (resolved.how, resolved.note) == ("policy", said)


async def test_a_run_that_waits_for_a_word_tells_why_verify_could_not(stage: Stage) -> None:
    """Whoever is to look knows what was tried."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(cut_off, "A1", in_doubt="wait")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        info = await parked(run, "doubt")
        assert "verify could not tell: LookupError: the bank is closed for A1" in info.reason
        await run.resolve("0/cut_off#1", "seen")
        assert await run.result(timeout=20) == "seen"
