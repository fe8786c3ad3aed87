"""A result that could never be stored is refused before anything is done for it."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

import holdfast as hf
from holdfast.core.errors import InvalidValue
from holdfast.core.storable import unstorable
from tests.engine.stage import Stage, kinds_of


class Charge:
    """A plain class, which is not data."""


@dataclass
class Receipt:
    """Data, but for what it holds."""

    charge: Charge


class Node(msgspec.Struct):
    """Data that holds its like."""

    children: "list[Node]"


class Model(pydantic.BaseModel):
    """Data, too."""

    cents: int


@pytest.mark.parametrize(
    "annotation", [Charge, object, Charge | None, list[Charge], dict[str, Charge], tuple[int, Charge], Receipt]
)
def test_a_type_is_seen_to_hold_what_is_not_data(annotation: Any) -> None:
    """However deep it is hidden, it is named."""
    assert unstorable(annotation) in (Charge, object)


@pytest.mark.parametrize(
    "annotation", [Any, None, int, str | None, list[Node], Node, Model, list[Model], tuple[int, ...]]
)
def test_a_type_of_data_may_be_stored(annotation: Any) -> None:
    """Types that hold each other, and those of pydantic, are data."""
    assert unstorable(annotation) is None


@pytest.mark.parametrize("effect", ["once", "keyed", "repeat"])
@pytest.mark.parametrize("result", [Charge, object, list[Charge]])
async def test_a_step_whose_result_cannot_be_stored_is_not_performed(stage: Stage, effect: str, result: Any) -> None:
    """The payment would have been made, and then be in doubt for ever."""
    paid: list[int] = []

    def pay(cents: int) -> Any:
        paid.append(cents)
        return Charge()

    pay.__annotations__["return"] = result

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(pay, 3, effect=effect)  # type: ignore[call-overload]

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.RunError, match=r"step pay returns .*(Charge|object).* is not data"):
            await run.result(timeout=20)
        assert paid == []
        assert not {"StepStarted", "StepDoubted"} & set(await kinds_of(run))


async def test_what_the_call_says_of_the_result_counts(stage: Stage) -> None:
    """A function from elsewhere with a vague annotation is usable: the call says what comes back."""

    def vague() -> object:
        return {"cents": 3}

    def find() -> object:
        return hf.NOT_DONE

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        return await ctx.step(vague, returns=dict[str, int], effect="once", verify=find)

    async with stage.open(tale) as runtime:
        assert await runtime.run(tale) == {"cents": 3}


async def test_a_call_cannot_say_that_the_result_is_no_data(stage: Stage) -> None:
    """`returns=` is looked at like an annotation."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(len, "abc", returns=Charge)

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match=r"returns= is .*Charge.* is not data"):
            await runtime.run(tale)
    with pytest.raises(InvalidValue, match=r"returns= is .*Charge.* is not data"):
        hf.step(returns=Charge)


async def test_a_function_whose_result_cannot_be_stored_is_not_run(stage: Stage) -> None:
    """All its steps would have been performed for nothing."""

    @hf.durable
    async def tale(ctx: hf.Context) -> object:
        return 1

    @hf.durable
    async def parent(ctx: hf.Context) -> None:
        await ctx.run(tale)

    with pytest.raises(InvalidValue, match=r"tale returns .*object.* is not data"):
        hf.App(tale)
    async with stage.open(parent) as runtime:
        with pytest.raises(InvalidValue, match=r"tale returns .*object.* is not data"):
            await runtime.start(tale)
        run = await runtime.start(parent)
        with pytest.raises(hf.RunError, match=r"tale returns .*object.* is not data"):
            await run.result(timeout=20)
        assert "ChildSpawned" not in await kinds_of(run)
