"""Calls that cannot work are refused in the words of whoever wrote them: the verb, what is wrong, and what to write."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput
from tests.engine.stage import Stage, kinds_of, parked


def double(number: int) -> int:
    """A plain step."""
    return 2 * number


def add(one: int, other: int, third: int = 0) -> int:
    """A step of two arguments."""
    return one + other + third


async def plain(ctx: hf.Context, number: int) -> int:
    """A function that nobody made durable."""
    return number


@hf.durable
async def child(ctx: hf.Context, number: int, other: int = 0) -> int:
    """A child."""
    return number + other


@hf.durable
async def pair(ctx: hf.Context, one: int, other: int) -> int:
    """A child of two arguments."""
    return one + other


Verb = Callable[[Any], Awaitable[Any]]
WRONG: dict[str, tuple[Verb, str]] = {
    "a durable function as a step": (
        lambda ctx: ctx.step(child, 3),
        "child is a durable function, whose run is of its own: use ctx.run, not ctx.step",
    ),
    "a plain function run": (lambda ctx: ctx.run(plain, 3), "ctx.run wants a durable function, not .*plain"),
    "a plain function spawned": (lambda ctx: ctx.spawn(plain, 3), "ctx.spawn wants a durable function, not .*plain"),
    "a keyword of a run": (lambda ctx: ctx.run(child, number=3), r"ctx.run takes no number=.*ctx.run\(child, \.\.\.\)"),
    "a keyword of a child": (lambda ctx: ctx.spawn(child, number=3), "ctx.spawn takes no number="),
    "a moment to sleep for": (
        lambda ctx: ctx.sleep(datetime(2026, 1, 1, tzinfo=UTC)),
        r"ctx.sleep is .* a timedelta, not .*; to wait until a moment: ctx.sleep\(moment - ctx.now\(\)\)",
    ),
    "a list of changes": (lambda ctx: ctx.ask("Shall I?", args=[1, 2]), "args= is a mapping.*not list"),
    "a list behind a token": (lambda ctx: ctx.callback("Shall I?", args=[1]), "args= is a mapping.*not list"),
    "a number of items": (lambda ctx: ctx.map(double, 5), "ctx.map wants items that can be gone through, not 5"),
    "items without an end in sight": (lambda ctx: ctx.map(double, _later()), "ctx.map wants items .*async_generator"),
    "items first": (lambda ctx: ctx.map([1], double), r"the function first: ctx.map\(double, items\)"),
    "items without a function": (lambda ctx: ctx.map([1], [2]), r"ctx.map wants a function, not \[1\]"),
    "pairs for a step": (
        lambda ctx: ctx.map(add, [(1, 2)]),
        r"ctx.map gives add one item as its one argument.*add\(one: int, other: int, third: int = 0\)",
    ),
    "pairs for a child": (lambda ctx: ctx.map(pair, [(1, 2)]), "ctx.map gives pair one item as its one argument"),
    "items for a function without arguments": (
        lambda ctx: ctx.map(hf.step(name="none")(lambda: 1), [1]),
        "ctx.map gives none one item as its one argument",
    ),
}


async def _later() -> Any:
    yield 1


@pytest.mark.parametrize("what", WRONG)
async def test_a_call_of_a_verb_that_cannot_work_is_refused(stage: Stage, what: str) -> None:
    """With one of our own errors, before anything is recorded of it."""
    verb, words = WRONG[what]
    caught: list[BaseException] = []

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await verb(ctx)
        except BaseException as error:
            caught.append(error)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await run.result(timeout=20)
        assert await kinds_of(run) == ["RunStarted", "RunFinished"]
    with pytest.raises(InvalidInput, match=words):
        raise caught[0]


async def test_an_item_may_be_one_argument_of_several(stage: Stage) -> None:
    """Those with a default are left out, and a tuple is an argument like any other."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return [await ctx.map(child, [1, 2]), await ctx.map(_first, [(3, 4)]), await ctx.map(str, [5], name="str")]

    async with stage.open(tale, child) as runtime:
        assert await runtime.run(tale) == [[1, 2], [3], ["5"]]


def _first(both: tuple[int, int]) -> int:
    return both[0]


async def test_a_step_that_calls_the_context_is_told_where_to(stage: Stage) -> None:
    """It is not told to fan out, which is not what it wants."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        async def outer() -> None:
            await ctx.step(double, 1)

        def plainly() -> Any:
            return ctx.step(double, 1)

        async def slept() -> None:
            await ctx.sleep(0)

        async def dated() -> str:
            return str(ctx.now())

        told = []
        for inner in (outer, plainly, slept, dated):
            with pytest.raises(hf.StepError) as found:
                await ctx.step(inner)
            told.append(found.value.message)
        return told

    async with stage.open(tale) as runtime:
        for message in await runtime.run(tale):
            assert message.startswith("a step cannot call the context: call it in the durable function")


async def test_a_runtime_names_the_verb_that_was_called(stage: Stage) -> None:
    """`runtime.run` is not `start`, and what takes no keywords of the function says so."""
    wrong: Any = plain
    right: Any = child
    async with stage.open() as runtime:
        with pytest.raises(InvalidInput, match=r"runtime.run wants a durable function.*@hf.durable"):
            await runtime.run(wrong, 3)
        with pytest.raises(InvalidInput, match=r"runtime.start wants a durable function.*@hf.durable"):
            await runtime.start(wrong, 3)
        with pytest.raises(InvalidInput, match=r"runtime.run takes no number="):
            await runtime.run(right, number=3)  # type: ignore[call-arg]
        with pytest.raises(InvalidInput, match=r"runtime.start takes no number=.*by place"):
            await runtime.start(right, number=3)  # type: ignore[call-arg]


def test_a_plain_run_takes_no_keywords_of_the_function() -> None:
    """They are Holdfast's."""
    right: Any = child
    with pytest.raises(InvalidInput, match=r"hf.run takes no number=, other=.*hf.run\(child, \.\.\.\)"):
        hf.run(right, number=3, other=4)  # type: ignore[call-arg]


def test_an_app_takes_its_functions_one_by_one() -> None:
    """A list of them is not decorated."""
    functions: Any = [child, pair]
    with pytest.raises(InvalidInput, match=r"one by one: hf\.App\(\*functions\)"):
        hf.App(functions)
    with pytest.raises(InvalidInput, match="decorate it with"):
        hf.App(plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"hf\.App takes durable functions, not 3$"):
        hf.App(3)  # type: ignore[arg-type]


@hf.durable
async def asks(ctx: hf.Context) -> bool:
    """Ask, and return the decision."""
    return bool(await ctx.ask("Refund?", args={"cents": 500}))


async def test_changes_to_a_question_are_named(stage: Stage) -> None:
    """A list of them is refused, and the question stays open."""
    changes: Any = [1]
    async with stage.open(asks) as runtime:
        run = await runtime.start(asks)
        await parked(run, "ask")
        (question,) = await runtime.questions()
        with pytest.raises(InvalidInput, match="args= is a mapping of names to values, not list"):
            await runtime.answer(question, True, args=changes)
        await runtime.answer(question, True, args={"cents": 400})
        assert await run.result(timeout=20) is True


async def test_a_context_verb_in_a_task_of_its_own_is_told_of_gather(stage: Stage) -> None:
    """That advice stays where it is right."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await asyncio.gather(ctx.step(double, 1), ctx.step(double, 2))

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match=r"Use ctx\.gather or ctx\.map"):
            await runtime.run(tale)
