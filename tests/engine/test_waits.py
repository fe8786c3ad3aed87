"""Sleeping: durable, off the worker, with a time that does not slide."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.status import Status
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, soon, until
from tests.engine.test_cancel import Unhurried
from tests.rigs import waiting

GO = hf.Signal("go", str)


@hf.durable
async def naps(ctx: hf.Context, seconds: float) -> str:
    """Sleep once."""
    await ctx.sleep(seconds)
    return "awake"


def due_times(entries: list[Any]) -> set[int | None]:
    """Return every time that a wait or a rest of these entries is due at."""
    waits = {entry.due_at for entry in entries if isinstance(entry, events.StepStarted)}
    return waits | {entry.due_at for entry in entries if isinstance(entry, events.RunParked)}


async def test_a_sleep_parks_the_run_until_its_time(every: Stage) -> None:
    """Before its time nothing wakes it, and then it goes on; the result says that it was recorded once."""
    async with every.open(naps) as runtime:
        run = await runtime.start(naps, 60.0)
        info = await parked(run, "sleep")
        assert info.waiting_for == "sleep"
        every.clock.advance(59)
        other = await runtime.start(naps, 60.0)
        await parked(other, "sleep")
        assert (await run.info()).status is Status.WAITING
        every.clock.advance(1)
        assert await run.result(timeout=20) == "awake"
        assert await kinds_of(run) == [
            "RunStarted", "StepStarted", "RunParked", "RunResumed", "StepCompleted", "RunFinished",
        ]  # fmt: skip


async def test_a_short_sleep_is_waited_for_without_a_rest(every: Stage) -> None:
    """What is over in a moment costs no park and no claim."""
    async with every.open(naps) as runtime:
        run = await runtime.start(naps, 0.5)
        await seen(run, lambda entry: isinstance(entry, events.StepStarted))
        every.clock.advance(0.5)
        assert await run.result(timeout=20) == "awake"
        assert await kinds_of(run) == ["RunStarted", "StepStarted", "StepCompleted", "RunFinished"]


@pytest.mark.parametrize(
    "duration",
    [0, timedelta(0), -1, -1e12, timedelta(days=-1)],
    ids=["seconds", "timedelta", "past", "long past", "yesterday"],
)
async def test_a_sleep_of_nothing_is_over_at_once(every: Stage, duration: Any) -> None:
    """It is recorded like any other."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.sleep(duration)
        return "awake"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == "awake"
        assert "RunParked" not in await kinds_of(run)


async def test_a_deadline_does_not_slide_when_its_worker_dies(every: Stage) -> None:
    """It was written when the wait began: half the time later another worker waits for the other half."""
    async with every.open(naps) as runtime:
        run = await runtime.start(naps, 60.0)
        await parked(run, "sleep")
        began = every.clock()
        # Woken before its time, for nothing, by one worker after the other.
        for _ in range(3):
            every.clock.advance(15)
            before = (await run.info()).attempt
            await run.resume()
            await parked_again(run, before)
        every.clock.advance(15)
        assert await run.result(timeout=20) == "awake"
        entries = await entries_of(run)
    assert due_times(entries) == {began + 60_000_000}


async def parked_again(run: hf.Run[Any], attempt: int) -> None:
    """Wait until a run was claimed after an attempt, and has parked again."""
    resumed = 0

    def rests(entry: Any) -> bool:
        nonlocal resumed
        if isinstance(entry, events.RunResumed):
            resumed = entry.attempt
        return isinstance(entry, events.RunParked) and resumed > attempt

    await seen(run, rests)


@pytest.mark.parametrize("verb", ["receive", "ask"])
async def test_the_time_of_a_receive_and_of_a_question_does_not_slide_either(every: Stage, verb: str) -> None:
    """Through a restart of the whole program the same time is waited for."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        if verb == "receive":
            return str(await ctx.receive(GO, timeout=60))
        return str((await ctx.ask("May I?", expires=60)).expired)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal" if verb == "receive" else "ask")
    every.clock.advance(45)
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id, of=tale)
        before = (await run.info()).attempt
        await run.resume()
        await parked_again(run, before)
        every.clock.advance(15)
        assert await run.result(timeout=20) == ("None" if verb == "receive" else "True")


async def test_many_sleeping_runs_hold_no_place(every: Stage) -> None:
    """P8: a worker with two places has a hundred sleepers, and drives another run beside them."""
    async with every.open(naps, concurrency=2) as runtime:
        runs = [await runtime.start(naps, 3600.0) for _ in range(100)]
        for run in runs:
            await parked(run, "sleep")
        assert await soon(runtime.run(naps, 0.0)) == "awake"
        every.clock.advance(3600)
        for run in runs:
            assert await run.result(timeout=60) == "awake"


async def test_a_delayed_start_begins_at_its_time(every: Stage) -> None:
    """Its code is not called before."""
    called = list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        called.append("tale")
        return "done"

    async with every.open(tale, naps) as runtime:
        run = await runtime.start(tale, delay=timedelta(hours=1))
        every.clock.advance(3599)
        assert await soon(runtime.run(naps, 0.0)) == "awake"
        assert ((await run.info()).status, called) == (Status.QUEUED, [])
        every.clock.advance(1)
        assert await run.result(timeout=20) == "done"


@pytest.mark.parametrize("verb", ["sleep", "receive", "ask"])
async def test_a_timeout_of_the_codes_own_around_a_wait_is_recorded_and_comes_again(every: Stage, verb: str) -> None:
    """While something else keeps the run awake its own timeout may cut a wait short: a replay takes the same path."""
    busy, hurdle = Hurdle(), Hurdle()

    async def waits(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                if verb == "sleep":
                    await ctx.sleep(3600)
                elif verb == "receive":
                    await ctx.receive(GO)
                else:
                    await ctx.ask("May I?")
        except TimeoutError:
            await ctx.step(hurdle)
            return "cut short"
        return "waited"

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return list(await ctx.gather(ctx.step(busy), waits(ctx)))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        cut = await seen(run, lambda entry: isinstance(entry, events.StepFailed))
        assert isinstance(cut, events.StepFailed)
        assert (cut.cancelled, cut.step) == (True, f"0/gather#1.2/{verb}#1")
        assert not await run.questions()
    busy.open.set()
    hurdle.open.set()
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id)
        await run.signal(GO, "too late")
        assert await run.result(timeout=20) == [None, "cut short"]
        assert (await kinds_of(run)).count("StepFailed") == 1


async def test_a_drain_hands_over_runs_that_wait_in_process(every: Stage) -> None:
    """A run that is kept for a moment is given back at once, without a charge, and goes on elsewhere."""
    async with every.open(naps) as runtime:
        run = await runtime.start(naps, 0.9)
        await seen(run, lambda entry: isinstance(entry, events.StepStarted))
        await soon(runtime.drain(3600))
        assert (await run.info()).status is Status.QUEUED
        async with every.open(naps) as other:
            every.clock.advance(1)
            assert await (await other.get(run.id)).result(timeout=20) == "awake"
        assert "StepFailed" not in await kinds_of(run)


async def test_a_drain_waits_for_the_step_beside_a_wait(stage: Stage) -> None:
    """One branch sleeps, the other is in a step: the step's result is kept before the run is handed over."""
    hurdle = Hurdle()

    async def act() -> str:
        await hurdle()
        return "acted"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        _, acted = await ctx.gather(ctx.sleep(60), ctx.step(act))
        return acted

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        draining = asyncio.ensure_future(runtime.drain(3600))
        hurdle.open.set()
        await soon(draining)
        assert (await kinds_of(run)).count("StepCompleted") == 1
    stage.clock.advance(60)
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == "acted"
        assert (await kinds_of(run)).count("StepCompleted") == 2


async def test_a_run_whose_branches_all_wait_rests_for_the_soonest(every: Stage) -> None:
    """It is woken for each in its turn, and waits for the others with the times that they began with."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        received = ctx.receive(GO, timeout=120)
        return list(await ctx.gather(ctx.sleep(60), received, ctx.sleep(30)))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        began = every.clock()
        rest: Any = await seen(run, lambda entry: isinstance(entry, events.RunParked))
        assert rest.due_at == began + 30_000_000
        assert sorted(wait.kind for wait in rest.waits) == ["signal", "sleep", "sleep"]
        every.clock.advance(30)
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.due_at == began + 60_000_000)
        every.clock.advance(30)
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.due_at == began + 120_000_000)
        await run.signal(GO, "went")
        assert await run.result(timeout=20) == [None, "went", None]


async def test_a_wait_that_is_called_off_by_the_codes_own_hand_leaves_its_signal_to_the_next(stage: Stage) -> None:
    """A signal that was taken for a wait which was cancelled at that moment is not lost."""
    busy = Hurdle()

    async def impatient(ctx: hf.Context) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                return await ctx.receive(GO)
        busy.open.set()
        return "second " + await ctx.receive(GO)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        _, got = await ctx.gather(ctx.step(busy), impatient(ctx))
        return got

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.signal(GO, "went")
        assert await run.result(timeout=20) == "second went"


@pytest.mark.parametrize("verb", ["sleep", "receive", "ask", "retry"])
async def test_a_timeout_that_comes_while_a_wait_is_being_written_ends_the_wait(verb: str) -> None:
    """The wait has begun on disk, and nothing will cancel it again: what was passed over then must end it."""
    store, limits = Unhurried(), list[asyncio.Timeout]()

    async def flaky() -> None:
        store.slow = True
        raise ConnectionError("down")

    async def wait(ctx: hf.Context) -> None:
        store.slow = verb != "retry"
        match verb:
            case "sleep":
                await ctx.sleep(3600)
            case "receive":
                await ctx.receive(GO)
            case "ask":
                await ctx.ask("May I?")
            case _:
                await ctx.step(flaky, retry=hf.Retry(attempts=2, first=3600.0))

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await wait(ctx)
        except TimeoutError:
            return "timed out"
        return "waited"

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.asked.wait())
        limits[0].reschedule(asyncio.get_running_loop().time())
        await until(limits[0].expired)
        store.acknowledge()
        assert await run.result(timeout=20) == "timed out"
        entries = await entries_of(run)
    assert [entry.cancelled for entry in entries if isinstance(entry, events.StepFailed)][-1]


async def test_a_run_that_is_woken_before_its_code_has_left_is_driven_when_it_has(every: Stage) -> None:
    """A post may come as soon as the run is parked: its claim is not given back, and its code never runs twice."""
    leaving, may_leave, inside = asyncio.Event(), asyncio.Event(), 0

    @hf.durable
    async def lingers(ctx: hf.Context) -> str:
        nonlocal inside
        inside += 1
        assert inside == 1
        try:
            return await ctx.receive(GO)
        finally:
            leaving.set()
            await may_leave.wait()
            inside -= 1

    async with every.open(lingers) as runtime:
        run = await runtime.start(lingers)
        await soon(leaving.wait())
        await run.signal(GO, "now")
        await waiting.until(lambda: _is_claimed(run), what="another claim")
        may_leave.set()
        assert await run.result(timeout=20) == "now"
        assert (await run.info()).attempt == 2


async def _is_claimed(run: hf.Run[Any]) -> bool:
    return (await run.info()).attempt >= 2
