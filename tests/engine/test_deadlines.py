"""Deadlines: a run that is not done in time is stopped wherever it is, and goes on when it is given more time."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.errors import InvalidInput
from holdfast.core.status import Status
from tests.engine.stage import Hurdle, Stage, ending_of, entries_of, kinds_of, parked, seen, soon
from tests.engine.test_budgets import conserved, exhausted

HOUR = timedelta(hours=1)
GO = hf.Signal("go", str)


@hf.durable
async def waits(ctx: hf.Context) -> str:
    """Wait for a signal, however long it takes."""
    return await ctx.receive(GO)


def as_time(micros: int) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


@pytest.mark.parametrize("form", ["seconds", "timedelta", "time"])
async def test_a_run_that_waits_is_woken_for_its_deadline(every: Stage, form: str) -> None:
    """No process need be there meanwhile; its code is not called, and it says when the time was."""
    begins = as_time(every.clock())
    deadline: Any = {"seconds": 3600.0, "timedelta": HOUR, "time": begins + HOUR}[form]
    async with every.open(waits) as runtime:
        run = await runtime.start(waits, budget=hf.Budget(deadline=deadline))
        await parked(run, "signal")
        assert (await run.info()).budget == {"deadline": begins + HOUR}
        every.clock.advance(3599)
        await run.pause()
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.reason == "paused")
        await run.resume()
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.seq > 5)
        every.clock.advance(1)
        assert await exhausted(run) == f"deadline: it was {(begins + HOUR).isoformat(timespec='seconds')}"
        await conserved(runtime, run.id)


async def test_more_time_lets_it_go_on_where_it_was(every: Stage) -> None:
    """What came meanwhile has waited for it; the new time is counted from when it was asked for."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits, budget=hf.Budget(deadline=HOUR))
        await parked(run, "signal")
        every.clock.advance(7200)
        await exhausted(run)
        await run.signal(GO, "late")
        await exhausted(run)
        await run.raise_budget(deadline=HOUR)
        assert await run.result(timeout=20) == "late"
        info = await run.info()
        assert info.budget == {"deadline": as_time(every.clock()) + HOUR}
        await conserved(runtime, run.id)


async def test_more_time_is_enough_for_a_run_that_needs_no_more_steps(every: Stage) -> None:
    """It has used up both, and rests for the one that it needs; more of the other does not wake it."""

    async def act() -> None:
        """Be performed."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(act)
        return await ctx.receive(GO)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(deadline=HOUR, steps=1))
        await parked(run, "signal")
        every.clock.advance(3600)
        await exhausted(run)
        await run.signal(GO, "now")
        await run.raise_budget(steps=1)
        assert (await exhausted(run)).startswith("deadline")
        await run.raise_budget(deadline=HOUR)
        assert await run.result(timeout=20) == "now"
        await conserved(runtime, run.id)


async def test_a_deadline_is_never_brought_forward(every: Stage) -> None:
    """A raise to an earlier time than it has changes nothing."""
    async with every.open(waits) as runtime:
        run = await runtime.start(waits, budget=hf.Budget(deadline=HOUR))
        await parked(run, "signal")
        before = (await run.info()).budget
        await run.raise_budget(deadline=60)
        await run.signal(GO, "now")
        assert await run.result(timeout=20) == "now"
        assert (await run.info()).budget == before
        assert "BudgetChanged" not in await kinds_of(run)


async def test_code_under_way_is_stopped_and_does_not_see_it(every: Stage) -> None:
    """Neither its `except` nor its `finally` can act; nothing is recorded of the step, which is performed again."""
    begun, acted = asyncio.Event(), list[str]()

    async def slow() -> str:
        begun.set()
        if not acted:
            await asyncio.Event().wait()
        return "done"

    async def act(word: str) -> None:
        acted.append(word)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(slow)
        except BaseException:
            await ctx.step(act, "saw it")
            return "saw it"
        finally:
            if not acted:
                await ctx.step(act, "cleaned up")

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(deadline=60))
        await soon(begun.wait())
        every.clock.advance(60)
        assert (await exhausted(run)).startswith("deadline")
        assert acted == []
        assert await kinds_of(run) == ["RunStarted", "RunParked"]
        acted.append("ready")
        await run.raise_budget(deadline=60)
        assert await run.result(timeout=20) == "done"
        await conserved(runtime, run.id)


async def test_a_step_that_may_happen_once_is_in_doubt_by_the_usual_rule(every: Stage) -> None:
    """It was stopped under way, so that nobody knows: it is not performed again when there is more time."""
    begun, times = asyncio.Event(), list[int]()

    async def pay() -> None:
        times.append(1)
        begun.set()
        await asyncio.Event().wait()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(pay, effect="once")
        except hf.InDoubt:
            return "in doubt"
        return "paid"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(deadline=60, steps=5))
        await soon(begun.wait())
        every.clock.advance(60)
        await exhausted(run)
        await run.raise_budget(deadline=60)
        assert await run.result(timeout=20) == "in doubt"
        assert times == [1]
        await conserved(runtime, run.id)


async def test_branches_under_way_are_stopped_together(every: Stage) -> None:
    """Some wait and some act; all of them go on with more time."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return list(await ctx.gather(ctx.receive(GO), ctx.step(hurdle.__call__, key="hurdle"), ctx.sleep(10)))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(deadline=60))
        await soon(hurdle.reached.wait())
        every.clock.advance(60)
        await exhausted(run)
        hurdle.open.set()
        await run.signal(GO, "now")
        await run.raise_budget(deadline=60)
        assert await run.result(timeout=20) == ["now", None, None]


async def test_a_run_that_nobody_drove_in_time_does_not_begin(every: Stage) -> None:
    """Its deadline counts from its creation, delays included."""
    async with every.open(waits, work=False) as runtime:
        late = await runtime.start(waits, budget=hf.Budget(deadline=60))
        delayed = await runtime.start(waits, delay=120, budget=hf.Budget(deadline=60))
    every.clock.advance(60)
    async with every.open(waits) as runtime:
        for one in (late, delayed):
            run = await runtime.get(one.id)
            await exhausted(run)
            assert "StepStarted" not in await kinds_of(run)


async def test_a_run_that_is_cancelled_cleans_up_however_late_it_is(every: Stage) -> None:
    """Who asked for its end is not kept waiting by a deadline: it ends once, as cancelled."""
    cleaning = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.receive(GO)
        finally:
            await ctx.step(cleaning.__call__, key="cleaning")

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(deadline=60))
        await parked(run, "signal")
        await run.cancel()
        await soon(cleaning.reached.wait())
        every.clock.advance(120)
        cleaning.open.set()
        assert await ending_of(run) == (Status.CANCELLED, "cancelled")
        late = await runtime.start(waits, budget=hf.Budget(deadline=60))
        await parked(late, "signal")
        every.clock.advance(60)
        await exhausted(late)
        await late.cancel()
        assert await ending_of(late) == (Status.CANCELLED, "cancelled")
        for one in (run, late):
            assert (await kinds_of(one)).count("RunFinished") == 1


# Families


@hf.durable
async def parent(ctx: hf.Context, seconds: float | None) -> str:
    """Wait for a child, which may have a deadline of its own."""
    return await ctx.run(waits, budget=hf.Budget(deadline=seconds) if seconds is not None else None)


async def child_of(runtime: hf.Runtime, run: hf.Run[Any]) -> hf.Run[Any]:
    """Return the run's child."""
    spawned = await seen(run, lambda entry: isinstance(entry, events.ChildSpawned))
    assert isinstance(spawned, events.ChildSpawned)
    return await runtime.get(spawned.child)


@pytest.mark.parametrize(("own", "counts"), [(None, 60), (10.0, 10), (600.0, 60)], ids=["none", "earlier", "later"])
async def test_a_child_has_its_parents_deadline_unless_its_own_is_earlier(
    every: Stage, own: float | None, counts: int
) -> None:
    """The earlier one counts."""
    begins = as_time(every.clock())
    async with every.open(parent, waits) as runtime:
        run = await runtime.start(parent, own, budget=hf.Budget(deadline=60))
        child = await child_of(runtime, run)
        assert (await child.info()).budget == {"deadline": begins + timedelta(seconds=counts)}
        await parked(child, "signal")
        every.clock.advance(counts)
        await exhausted(child)


async def test_more_time_for_a_parent_is_more_time_for_its_children(every: Stage) -> None:
    """Those that inherited its deadline; one that has its own keeps it."""

    @hf.durable
    async def family(ctx: hf.Context) -> list[str]:
        return list(await ctx.gather(ctx.run(waits), ctx.run(waits, budget=hf.Budget(deadline=30))))

    async with every.open(family, waits) as runtime:
        run = await runtime.start(family, budget=hf.Budget(deadline=60))
        await parked(run, "child")
        heir, own = [
            await runtime.get(entry.child)
            for entry in sorted(
                (entry for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)),
                key=lambda entry: entry.step,
            )
        ]
        every.clock.advance(60)
        for one in (run, heir, own):
            await exhausted(one)
        await run.raise_budget(deadline=60)
        await seen(heir, lambda entry: isinstance(entry, events.BudgetChanged))
        await exhausted(own)
        await own.raise_budget(deadline=60)
        for one in (heir, own):
            await one.signal(GO, "now")
        assert await run.result(timeout=20) == ["now", "now"]
        for one in (run, heir, own):
            await conserved(runtime, one.id)


def test_a_time_without_a_zone_is_no_deadline() -> None:
    """Nobody would know which time it is."""
    with pytest.raises(InvalidInput, match="zone"):
        hf.Budget(deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - that is what is refused
