"""Where an error was raised is kept with it: the frames of the user's code, bounded, without secrets."""

import functools
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from tests.engine.stage import Stage, entries_of, soon


def deepest(text: str) -> None:
    raise KeyError(text)


async def act(text: str) -> None:
    deepest(text)


@hf.durable
async def tale(ctx: hf.Context, text: str) -> None:
    """Fail in a step, pass over it, and fail outside of one."""
    try:
        await ctx.step(act, text)
    except hf.StepError:
        deepest(text)


async def failed(stage: Stage, *args: Any, app: Any = tale) -> tuple[hf.RunError, list[Any]]:
    """Return what the caller of a run that fails is told, and its entries."""
    async with stage.open(app) as runtime:
        run = await runtime.start(app, *args)
        with pytest.raises(hf.RunError) as error:
            await soon(run.result())
        return error.value, await entries_of(run)


async def test_an_error_is_kept_with_the_places_of_the_users_code_that_it_came_through(stage: Stage) -> None:
    """Of a step and of the run alike, the innermost last, and none of them ours."""
    told, entries = await failed(stage, "lost")
    (step,) = [entry for entry in entries if isinstance(entry, events.StepFailed)]
    (ending,) = [entry for entry in entries if isinstance(entry, events.RunFinished)]
    assert ending.error is not None
    for trace, outermost in ((step.error.traceback, "act"), (ending.error.traceback, "tale")):
        assert trace is not None
        frames = [line.rpartition(" in ")[2] for line in trace.splitlines() if line.startswith("  File ")]
        assert frames == [outermost, "deepest"]
        assert trace.endswith("KeyError: 'lost'")
    assert str(ending.error.traceback) in told.__notes__[0]


async def test_the_places_of_an_error_hold_no_secret_and_are_bounded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cut off is the outer end: the innermost place is the one to look at."""
    monkeypatch.setenv("TOKEN", "hush-hush")

    async def fall(depth: int) -> None:
        await (fall(depth - 1) if depth else deep("hush-hush" + "x" * 2 * limits.TRACE_BYTES))

    async def deep(text: str) -> None:
        raise ValueError(text)

    @hf.durable
    async def sink(ctx: hf.Context) -> None:
        await ctx.step(functools.partial(fall, 300), key="fall")

    async with stage.open(sink, secrets=["TOKEN"]) as runtime:
        run = await runtime.start(sink)
        with pytest.raises(hf.RunError):
            await soon(run.result())
        (step,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepFailed)]
    trace = step.error.traceback
    assert trace is not None
    assert "hush" not in trace
    assert "in deep" in trace
    assert len(trace.encode()) <= limits.TRACE_BYTES


async def test_a_run_that_fails_is_logged_with_its_error(stage: Stage, capfd: pytest.CaptureFixture[str]) -> None:
    """Whoever runs a worker sees it, though nobody waits for the result."""
    await failed(stage, "lost")
    logged = capfd.readouterr().err
    assert "the run fails" in logged
    assert "in deepest" in logged
