"""Schedules in a test: no tick is passed over on the way to what a run waits for, and none is made up."""

import asyncio
from datetime import datetime, timedelta
from typing import Literal

import pytest

import holdfast as hf
from holdfast.testing import MovingClock

GO = hf.Signal("go", str)


@hf.durable
async def report(ctx: hf.Context, tick: datetime) -> str:
    """Say which day it is of."""
    await ctx.sleep(timedelta(hours=1))
    return f"{tick:%d %B}, written at {ctx.now():%H:%M}"


@hf.durable
async def dreamer(ctx: hf.Context, days: int) -> str:
    """Sleep."""
    await ctx.sleep(timedelta(days=days))
    return f"{ctx.now():%d %B}"


def nightly(missed: Literal["skip", "all"] = "skip") -> hf.App:
    """Return an app whose report is written every night."""
    app = hf.App(dreamer)
    app.schedule(report, "0 2 * * *", missed=missed)
    return app


async def results(runtime: hf.Runtime) -> list[str]:
    """Return what every report says, the oldest first."""
    rows = await runtime.runs(name="report", limit=1000)
    return [await (await runtime.get(row.id, of=report)).result(timeout=20) for row in reversed(rows)]


async def test_a_jump_passes_over_no_tick() -> None:
    """A sleep of seventy days has seventy nights, each with its run, driven at its own hour."""
    async with hf.testing.open(nightly()) as runtime:
        assert await runtime.run(dreamer, 70) == "12 March"
        rows = await runtime.runs(name="report", limit=1000)
        assert {row.status for row in rows} == {hf.Status.COMPLETED}
        told = await results(runtime)
        assert (len(told), told[0], told[-1]) == (70, "01 January, written at 03:00", "11 March, written at 03:00")


async def test_a_schedule_is_known_as_soon_as_the_runtime_is_open() -> None:
    """What comes after that it can miss, and what came before it cannot, whoever is quicker."""
    async with hf.testing.open(nightly()) as runtime:
        (known,) = await runtime.runs(name="holdfast:schedule")
        assert known.created_at == datetime.fromisoformat("2026-01-01T00:00:00Z")


async def test_ticks_that_were_missed_have_their_runs_when_the_runtime_is_open_again(tmp_path: object) -> None:
    """Nobody has to wait for the scheduler's first look."""
    clock, store = MovingClock(), f"sqlite:///{tmp_path}/runs.db"
    async with hf.testing.open(nightly("all"), store=store, clock=clock):
        clock.advance(timedelta(hours=1))
    clock.advance(timedelta(days=3))
    async with hf.testing.open(nightly("all"), store=store, clock=clock) as runtime:
        assert [f"{row.labels['tick'][:10]}" for row in reversed(await runtime.runs(name="report"))] == [
            "2026-01-01", "2026-01-02", "2026-01-03",
        ]  # fmt: skip


async def test_ticks_that_were_missed_are_made_up_for_after_a_clean_up(tmp_path: object) -> None:
    """What says since when the schedule is known is not swept away, whose id would tell the time of another clock."""
    clock, store = MovingClock(), f"sqlite:///{tmp_path}/runs.db"
    async with hf.testing.open(nightly("all"), store=store, clock=clock) as runtime:
        await runtime.run(dreamer, 2)
        assert (await runtime.gc(0)).deleted == 2
    clock.advance(timedelta(days=2))
    async with hf.testing.open(nightly("all"), store=store, clock=clock) as runtime:
        ticks = sorted(row.labels["tick"] for row in await runtime.runs(name="report"))
        assert ticks == ["2026-01-03T02:00:00Z", "2026-01-04T02:00:00Z"]


async def test_ticks_alone_do_not_move_the_clock() -> None:
    """There is always another: a run that waits for somebody is waited for on the day that it is."""

    @hf.durable
    async def receives(ctx: hf.Context) -> str:
        return await ctx.receive(GO)

    app = nightly()
    app.add(receives)
    async with hf.testing.open(app) as runtime:
        run = await runtime.start(receives)
        waiting = asyncio.ensure_future(run.result(timeout=20))
        await anext(event async for event in run.events() if isinstance(event, hf.events.RunParked))
        for _ in range(100):
            await asyncio.sleep(0)
        before = runtime.clock()
        await run.signal(GO, "x")
        assert await waiting == "x"
        assert runtime.clock() == before == MovingClock()()


async def test_a_program_with_a_schedule_survives_every_crash() -> None:
    """Its own ticks come while it sleeps, whenever it is killed, and the run that never ends is still told of."""
    survived = await hf.testing.every_crash(dreamer, 2, app=nightly())
    assert survived.unbroken.result == "03 January"

    @hf.durable
    async def receives(ctx: hf.Context) -> str:
        return await ctx.receive(GO)

    with pytest.raises(hf.testing.NotSurvived, match="does not end by itself"):
        await hf.testing.every_crash(receives, app=nightly())
