"""A run that was set aside can be tried again by a person, and by nobody else."""

import pytest

import holdfast as hf
from holdfast.core import limits
from tests.engine.stage import Hurdle, Stage


async def die(stage: Stage, tale: object, hurdle: Hurdle) -> None:
    """Let a worker claim what is due and die before it makes progress."""
    hurdle.reached.clear()
    async with stage.open(tale):
        await hurdle.reached.wait()
        await stage.declare_dead()


@pytest.mark.parametrize("healed", [True, False], ids=["once the cause is gone", "while it is not"])
async def test_a_quarantined_run_is_tried_again_when_somebody_asks(stage: Stage, healed: bool) -> None:
    """It ends if it can; if it kills its workers again it is set aside again, after as many claims."""
    hurdle = Hurdle()
    calls = 0

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        nonlocal calls
        calls += 1
        await ctx.step(hurdle)
        return "well"

    async with stage.open(work=False) as runtime:
        run = await runtime.start(tale)
    for _ in range(limits.STALLS):
        await die(stage, tale, hurdle)
    async with stage.open(tale) as runtime:
        handle = await runtime.get(run.id)
        with pytest.raises(hf.RunError, match="no_progress"):
            await handle.result(timeout=20)
        assert calls == limits.STALLS
    async with stage.open(work=False) as runtime:
        await (await runtime.get(run.id)).retry(by="ann")
    if healed:
        hurdle.open.set()
        async with stage.open(tale) as runtime:
            assert await (await runtime.get(run.id)).result(timeout=20) == "well"
        return
    for _ in range(limits.STALLS):
        await die(stage, tale, hurdle)
    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="no_progress"):
            await (await runtime.get(run.id)).result(timeout=20)
        assert calls == 2 * limits.STALLS


async def test_a_run_that_goes_on_or_has_ended_is_not_tried_again(stage: Stage) -> None:
    """There is nothing to be done for it, and whoever asks is told."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.sleep(60)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.Conflict, match="goes on by itself"):
            await run.retry()
        await run.cancel()
        with pytest.raises(hf.RunError, match="cancelled"):
            await run.result(timeout=20)
        with pytest.raises(hf.Conflict, match="had ended"):
            await run.retry()
