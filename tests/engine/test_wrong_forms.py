"""Decorators and openings in a form that cannot work are refused with the form that does."""

from typing import Annotated, Any, Protocol

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput
from tests.engine.stage import Stage


async def swapped(n: int, ctx: hf.Context) -> None:
    """The context stands last."""


async def no_context(n: int) -> None:
    """There is no context."""


async def listed(ctx: list[int]) -> None:
    """The context is something else."""


async def quoted(n: "int") -> None:
    """There is no context, and the annotation is text."""


async def method(self: Any, ctx: hf.Context) -> None:
    """A method."""


async def of_class(cls, ctx):  # type: ignore[no-untyped-def]
    """A method of the class."""


async def twice(ctx: hf.Context, other: "hf.Context") -> None:
    """Two contexts."""


@pytest.mark.parametrize("function", [swapped, no_context, listed, quoted, method, of_class, twice])
def test_a_durable_function_whose_first_parameter_is_no_context_is_refused(function: Any) -> None:
    """When it is defined, with the form that is right; not when its run fails."""
    with pytest.raises(InvalidInput, match=rf"async def {function.__name__}\(ctx: hf.Context, \.\.\.\)"):
        hf.durable(function)


def test_a_method_is_told_what_to_do_instead() -> None:
    """A run has no object to call it on when it goes on elsewhere."""
    with pytest.raises(InvalidInput, match=r"method.*App\(deps=\)"):
        hf.durable(method)


class Fake(Protocol):
    """What a test gives for a context."""

    async def step(self, function: Any, *args: Any) -> Any:
        """Call it."""


async def bare(ctx):  # type: ignore[no-untyped-def]
    """Without an annotation."""


async def vague(ctx: Any, n: int) -> None:
    """Of any type."""


async def seen_elsewhere(ctx: "NeverImported.Context", n: int) -> None:  # type: ignore[name-defined]  # noqa: F821
    """By a name that only a type checker has."""


async def marked(ctx: Annotated[hf.Context, "mine"]) -> None:
    """With a mark."""


async def faked(ctx: Fake) -> None:
    """By what it needs."""


async def either(context: hf.Context | None) -> None:
    """With nothing as a stand-in."""


@pytest.mark.parametrize("function", [bare, vague, seen_elsewhere, marked, faked, either])
def test_a_context_may_be_annotated_in_many_ways(function: Any) -> None:
    """Only what is surely something else is refused."""
    assert hf.durable(function).name == function.__name__


async def test_a_step_may_be_declared_without_options(stage: Stage) -> None:
    """`@hf.step` alone is the same as `@hf.step()`."""

    @hf.step
    def double(number: int) -> int:
        return 2 * number

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.step(double, 4)

    assert double(3) == 6
    async with stage.open(tale) as runtime:
        assert await runtime.run(tale) == 8


@pytest.mark.parametrize("word", ["once", hf.Effect.ONCE])
def test_an_effect_without_its_name_is_told_the_right_form(word: Any) -> None:
    """`@hf.step("once")` is a slip that everybody makes."""
    with pytest.raises(InvalidInput, match=r"write @hf\.step\(effect='once'\)"):
        hf.step(word)
    with pytest.raises(InvalidInput, match=r"@hf\.step\(name='pay'\)"):
        hf.step("pay")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match=r"hf\.step wants a function, not 3"):
        hf.step(3)  # type: ignore[call-overload]


@pytest.mark.parametrize("name", ["start", "run", "get", "client", "answer", "wait"])
def test_an_opening_that_nobody_entered_says_so(name: str) -> None:
    """What it lacks belongs to the runtime that it gives."""
    opening = hf.open("memory://")
    with pytest.raises(AttributeError, match=r"enter it first: `async with hf\.open\(\.\.\.\) as runtime`"):
        getattr(opening, name)
    with pytest.raises(AttributeError, match="'Opening' object has no attribute 'begin'"):
        getattr(opening, "begin")  # noqa: B009 - mypy would refuse it
    assert not hasattr(opening, name)
