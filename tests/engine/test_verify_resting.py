"""A run whose worker died after it had been taken up from a rest is sound."""

import pytest

import holdfast as hf
from tests.engine.stage import Hurdle, Stage, parked


@pytest.mark.parametrize("rest", ["sleep", "pause"])
async def test_a_run_that_died_after_its_rest_is_not_called_damaged(stage: Stage, rest: str) -> None:
    """Its row still tells where it rested, and its journal that it was taken up."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.sleep(60)
        await ctx.step(hurdle)
        return 1

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
        if rest == "pause":
            await run.pause()
    stage.clock.advance(60)
    async with stage.open(tale) as runtime:
        await (await runtime.get(run.id)).resume()
        await hurdle.reached.wait()
        await stage.declare_dead()
    hurdle.open.set()
    async with stage.open(tale, work=False) as runtime:
        assert [finding async for finding in runtime.client.verify()] == []
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == 1
        assert [finding async for finding in runtime.client.verify()] == []
