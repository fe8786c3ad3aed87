"""Whose code cleans up after a cancel, where workers of two versions stand side by side."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.ids import new_worker_id
from holdfast.core.status import Status
from holdfast.core.version import Served
from holdfast.engine.function import Durable
from holdfast.engine.presence import introduce
from tests.engine.stage import Hurdle, Stage, ending_of, kinds_of, parked, seen_often, soon

GO = hf.Signal("go", str)
CANCELLED = (Status.CANCELLED, "cancelled: enough")
cleaned: list[str] = []


@pytest.fixture(autouse=True)
def nothing_cleaned() -> None:
    """Every test begins with a clean world."""
    cleaned.clear()


def tale_of(version: str) -> Durable[None, ...]:
    """Return a function of a version that notes who cleaned up after it."""

    async def clean() -> None:
        cleaned.append(version)

    @hf.durable(name="tale")
    async def tale(ctx: hf.Context) -> None:
        await ctx.receive(hf.Signal("first", str))
        try:
            await ctx.receive(GO)
        finally:
            await ctx.step(clean)

    return tale


async def begun(stage: Stage, *, by: str, had_by: str, pin: bool) -> hf.Run[Any]:
    """Return a run that was started with one version and is a version's now, which waits in the block to clean up."""
    tale = tale_of(by)
    async with stage.open(tale, version=by) as runtime:
        run = await runtime.start(tale, key="k", pin=pin)
        await parked(run, "signal")
    async with stage.open(work=False) as runtime:
        await (await runtime.get(key="k")).signal(hf.Signal("first", str), "x")
    async with stage.open(tale_of(had_by), version=had_by) as runtime:
        run = await runtime.get(key="k")
        await seen_often(run, hf.events.RunParked, 2)
    return run


@asynccontextmanager
async def busy(stage: Stage, version: str) -> AsyncIterator[Hurdle]:
    """Be a live worker of a version that has no place for another run until it is let go on."""
    hurdle = Hurdle()

    @hf.durable
    async def held(ctx: hf.Context) -> None:
        await ctx.step(hurdle)

    async with stage.open(tale_of(version), held, version=version, concurrency=1) as runtime:
        await runtime.start(held)
        await soon(hurdle.reached.wait())
        yield hurdle


KEPT = pytest.mark.parametrize(
    ("by", "had_by", "pin", "other", "why"),
    [("1", "1", True, "2", "pinned"), ("1", "2", False, "1", "outdated")],
    ids=["pinned", "of a later version"],
)


@KEPT
async def test_a_cancel_waits_for_the_live_worker_that_has_the_code_which_cleans_up(
    every: Stage, by: str, had_by: str, pin: bool, other: str, why: str
) -> None:
    """A worker that is quicker and may not drive the run leaves it to the one that may, however long that is busy."""
    await begun(every, by=by, had_by=had_by, pin=pin)
    tale = tale_of(other)
    async with busy(every, had_by) as hurdle, every.open(tale, version=other) as runtime:
        run = await runtime.get(key="k")
        assert await run.cancel("enough")
        await parked(run, why)
        before = await kinds_of(run)
        # It is not given what it has left, again and again: this one comes to its end meanwhile.
        beside = await runtime.start(tale)
        assert await beside.cancel("enough")
        assert await ending_of(beside) == CANCELLED
        assert await kinds_of(run) == before
        assert cleaned == []
        hurdle.open.set()
        assert await ending_of(run) == CANCELLED
    assert cleaned == [had_by]


@KEPT
async def test_a_cancel_that_was_left_to_a_worker_which_is_gone_ends_the_run_all_the_same(
    every: Stage, by: str, had_by: str, pin: bool, other: str, why: str
) -> None:
    """Nobody has its code any more, so whoever is there ends it, without its clean-up."""
    await begun(every, by=by, had_by=had_by, pin=pin)
    async with every.open(tale_of(other), version=other) as runtime:
        async with busy(every, had_by):
            run = await runtime.get(key="k")
            assert await run.cancel("enough")
            await parked(run, why)
        assert await ending_of(run) == CANCELLED
        assert (await kinds_of(run))[-2:] == ["CancelReceived", "RunFinished"]
    assert cleaned == []


async def test_a_cancel_that_was_left_is_ended_by_a_worker_of_another_name_once_nobody_serves_it(every: Stage) -> None:
    """What was left to code that is gone does not wait for a worker of its name."""

    @hf.durable
    async def stranger(ctx: hf.Context) -> None:
        """Do nothing."""

    await begun(every, by="1", had_by="1", pin=True)
    async with every.open(stranger, version="9") as runtime:
        run = await runtime.get(key="k")
        async with busy(every, "1"), every.open(tale_of("2"), version="2"):
            assert await run.cancel("enough")
            await parked(run, "pinned")
        await soon(anext(event async for event in run.events() if isinstance(event, hf.events.RunFinished)))
        assert (await run.info()).status is Status.CANCELLED
    assert cleaned == []


async def test_a_cancel_that_was_left_to_a_worker_which_dies_in_silence_ends_the_run_once_its_lease_is_over(
    every: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it may be alive and about to clean up; then it is known not to be."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 1.0)
    await begun(every, by="1", had_by="1", pin=True)
    store = await every.store()
    serves = introduce({"tale": Served("1", code="1", place=1)}, [], concurrency=1, version="1", narrowed=False)
    await store.register(new_worker_id(), lock=None, about=serves)
    async with every.open(tale_of("2"), version="2") as runtime:
        run = await runtime.get(key="k")
        assert await run.cancel("enough")
        await parked(run, "pinned")
        assert await ending_of(run) == CANCELLED
    await store.close()
    assert cleaned == []
