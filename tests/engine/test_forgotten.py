"""A verb that was called and never awaited did nothing; its run says so, with the line."""

import asyncio
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

import holdfast as hf
from tests.engine.stage import Stage

NAME = "a verb was called and never awaited"


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Capturing logs configures structlog for good, and whoever did that gets our lines his way."""
    yield
    structlog.reset_defaults()


async def double(number: int) -> int:
    """A step."""
    return number * 2


@hf.durable
async def leaf(ctx: hf.Context) -> int:
    """A child."""
    return 1


def line_of(text: str, nth: int = 1) -> str:
    """Return where the nth line of this file stands that holds a text, as the log names it."""
    lines = [number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if text in line]
    return f"{__file__}:{lines[nth - 1]}"


async def told(stage: Stage, tale: Any, *parts: Any) -> list[dict[str, Any]]:
    """Return the warnings that a run of a tale gives; Python itself must give none."""
    with capture_logs() as lines, warnings.catch_warnings():
        warnings.simplefilter("error")
        async with stage.open(tale, *parts) as runtime:
            run = await runtime.start(tale)
            with suppress(hf.RunError):
                await run.result(timeout=20)
    warned = [dict(line) for line in lines if str(line["event"]).startswith(NAME)]
    assert all(line["run"] == run.id and line["log_level"] == "warning" for line in warned)
    return warned


async def test_a_bare_step_is_named_with_its_line(stage: Stage) -> None:
    """The commonest slip: the author sees which step did not happen, and where it stands."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        ctx.step(double, 1)  # type: ignore[unused-coroutine]  # forgotten: bare
        return await ctx.step(double, 2)

    (line,) = await told(stage, tale)
    assert line["verb"] == "step(double)"
    assert line["line"] == line_of("# forgotten: bare")


async def test_one_kept_in_a_variable_is_named_where_it_was_called(stage: Stage) -> None:
    """Python's own warning names the line where the variable died, which is in our code."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        late = ctx.step(partial(double, number=7))  # forgotten: kept
        assert late is not None
        return await ctx.step(double, 2)

    (line,) = await told(stage, tale)
    assert (line["verb"], line["line"]) == ("step(double)", line_of("# forgotten: kept"))


async def test_every_verb_is_told_of(stage: Stage) -> None:
    """None of them does anything before it is awaited."""
    paid = hf.Signal("paid", int)

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        child = await ctx.spawn(leaf)
        callback = await ctx.callback(paid, expires=60)
        calls: list[Callable[[], Any]] = [
            lambda: ctx.sleep(5), lambda: ctx.receive(paid), lambda: ctx.ask("sure?"), lambda: ctx.spawn(leaf),
            lambda: ctx.run(leaf), lambda: ctx.emit(1), lambda: ctx.map(double, [1]), lambda: ctx.gather(),
            lambda: ctx.callback(paid), lambda: ctx.continue_as(), child.result, lambda: child.signal(paid, 1),
            child.cancel, callback.result,
        ]  # fmt: skip
        for call in calls:
            call()
        return await child.result()

    lines = await told(stage, tale, leaf)
    assert [line["verb"] for line in lines] == [
        "sleep", "receive", "ask", "spawn(leaf)", "run(leaf)", "emit", "map(double)", "gather", "callback(paid)",
        "continue_as", "result", "signal", "cancel", "result",
    ]  # fmt: skip


async def test_it_is_told_of_a_run_that_fails(stage: Stage) -> None:
    """A failure may well be what came of the slip."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        ctx.step(double, 1)  # type: ignore[unused-coroutine]
        raise ValueError("nothing was doubled")

    assert len(await told(stage, tale)) == 1


async def test_code_that_awaits_what_it_calls_is_not_told_of(stage: Stage) -> None:
    """Branches are called long before they begin, and many at once; none of them is forgotten."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        later = ctx.step(double, 1)
        await asyncio.sleep(0)
        await later
        await ctx.gather(*(ctx.step(double, number) for number in range(200)))
        await ctx.map(double, list(range(200)))
        return await ctx.run(leaf)

    assert await told(stage, tale, leaf) == []
