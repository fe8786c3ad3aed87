"""A pinned run is driven by the version that it was started with, and by no other."""

import pytest

import holdfast as hf
from holdfast.engine.function import Durable
from tests.engine.stage import Hurdle, Stage, parked


async def test_other_code_leaves_a_pinned_run_alone_and_its_own_ends_it(stage: Stage) -> None:
    """The refusal names both; whoever has the version goes on as if nothing had been."""
    calls: list[str] = []

    def tale_of(version: str) -> Durable[list[str], []]:
        async def act() -> str:
            calls.append(version)
            return version

        @hf.durable(name="tale")
        async def tale(ctx: hf.Context) -> list[str]:
            first = await ctx.step(act, key="first")
            await ctx.sleep(60)
            return [first, await ctx.step(act, key="second")]

        return tale

    old, new = tale_of("1"), tale_of("2")
    async with stage.open(old, version="1") as runtime:
        run = await runtime.start(old, pin=True)
        await parked(run, "sleep")
    stage.clock.advance(60)
    async with stage.open(new, version="2") as runtime:
        again = await runtime.get(run.id)
        with pytest.raises(hf.RunError, match="started with version 1 and is pinned to it"):
            await again.result(timeout=20)
    assert calls == ["1"]
    async with stage.open(old, version="1") as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == ["1", "1"]


async def test_a_run_that_is_not_pinned_goes_on_with_other_code(stage: Stage) -> None:
    """The opposite, so that it is the pin that keeps the other away."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.step(hurdle)
        return 7

    async with stage.open(tale, version="1") as runtime:
        run = await runtime.start(tale)
        await hurdle.reached.wait()
    hurdle.open.set()
    async with stage.open(tale, version="2") as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == 7


def test_a_plain_call_drives_the_children_of_its_run(tmp_path: object) -> None:
    """`hf.run` drives its own tree, children included, though nobody named their functions."""

    async def double(number: int) -> int:
        return 2 * number

    @hf.durable
    async def leaf(ctx: hf.Context, number: int) -> int:
        return await ctx.step(double, number)

    @hf.durable
    async def branch(ctx: hf.Context, number: int) -> int:
        return sum(await ctx.map(leaf, [number, number + 1]))

    @hf.durable
    async def root(ctx: hf.Context) -> int:
        return await ctx.run(branch, 1)

    assert hf.run(root, store=f"sqlite:///{tmp_path}/h.db") == 6
