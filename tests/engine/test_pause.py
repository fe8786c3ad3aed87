"""Pause and resume: a run rests at its next entry until somebody lets it go on, through crashes and other posts."""

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.ids import new_worker_id
from holdfast.core.status import Status
from tests.engine.stage import Hurdle, Stage, ending_of, entries_of, kinds_of, parked, paused, seen, soon, until

GO = hf.Signal("go", str)


@hf.durable
async def receives(ctx: hf.Context) -> str:
    """Return what comes."""
    return await ctx.receive(GO)


async def claimed(run: hf.Run[Any], times: int) -> None:
    """Wait until a run was claimed so often, and is at rest again."""
    async with asyncio.timeout(20):
        while True:
            info = await run.info()
            if info.attempt >= times and info.status is not Status.RUNNING:
                return
            await asyncio.sleep(0)


async def heeded(runtime: hf.Runtime, run: hf.Run[Any]) -> None:
    """Wait until the run's worker has heard of the pause."""
    assert runtime._worker is not None
    drive = runtime._worker._driving[run.id][1]
    await until(lambda: drive is not None and drive.pausing is not None)


@pytest.mark.parametrize("effect", ["repeat", "once"])
async def test_a_run_under_way_is_paused_at_its_next_entry(every: Stage, effect: Any) -> None:
    """The step that is under way is not interrupted, its result is kept, and nothing after it is begun."""
    hurdle, performed = Hurdle(), list[str]()

    async def act(what: str) -> str:
        performed.append(what)
        if what == "first":
            await hurdle()
        return what

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        return [await ctx.step(act, "first", effect=effect), await ctx.step(act, "second", effect=effect)]

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        assert await run.pause("lunch", by="ann")
        await heeded(runtime, run)
        hurdle.open.set()
        info = await paused(run)
        assert info.reason == "paused: lunch"
        assert performed == ["first"]
        assert await run.resume()
        assert await run.result(timeout=20) == ["first", "second"]
        kinds = await kinds_of(run)
    assert performed == ["first", "second"]
    assert "StepDoubted" not in kinds


async def test_a_pause_that_comes_with_an_intent_is_heeded_before_the_effect(every: Stage) -> None:
    """A `once` effect that has not begun is not begun by a run that was asked to rest."""
    performed = list[str]()

    async def pay() -> str:
        performed.append("paid")
        return "paid"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        if not performed and not (await run.info()).reason:
            await run.pause()
        return await ctx.step(pay, effect="once")

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, delay=60)
        every.clock.advance(60)
        await paused(run)
        assert performed == []
        performed.append("not yet")
        await run.resume()
        assert await run.result(timeout=20) == "paid"


async def test_a_run_that_has_not_begun_is_paused_before_its_first_step(every: Stage) -> None:
    """Nothing was recorded, and nothing is performed before somebody lets it go on."""
    performed = list[str]()

    async def act() -> None:
        performed.append("acted")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(act)
        return "done"

    async with every.open(work=False) as runtime:
        run = await runtime.start(tale)
        assert await run.pause()
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id)
        await paused(run)
        assert performed == []
        await run.resume()
        assert await run.result(timeout=20) == "done"


async def test_a_question_is_not_put_by_a_run_that_was_asked_to_rest(every: Stage) -> None:
    """Nobody is bothered for a run that is paused before it asked."""

    @hf.durable
    async def tale(ctx: hf.Context) -> bool:
        return bool(await ctx.ask("May I?"))

    async with every.open(work=False) as runtime:
        run = await runtime.start(tale)
        await run.pause()
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id)
        await paused(run)
        assert not await run.questions()
        await run.resume()
        await parked(run, "ask")


async def test_a_resume_before_the_pause_took_effect_calls_it_off(every: Stage) -> None:
    """The branch that had left already goes on where it was, as if nobody had asked."""
    slow, quick = Hurdle(), Hurdle()
    quick.open.set()

    async def act(what: str) -> str:
        await (slow() if what == "slow" else quick())
        return what

    async def goes(ctx: hf.Context, what: str) -> list[str]:
        return [await ctx.step(act, what), await ctx.step(act, f"{what} again")]

    @hf.durable
    async def tale(ctx: hf.Context) -> list[list[str]]:
        return list(await ctx.gather(goes(ctx, "slow"), goes(ctx, "quick")))

    async with every.open(tale) as runtime:
        quick.open.clear()
        run = await runtime.start(tale)
        await soon(slow.reached.wait())
        await soon(quick.reached.wait())
        await run.pause()
        # The quick branch leaves at its next entry, and waits there for the slow one.
        await heeded(runtime, run)
        quick.open.set()
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted))
        await run.resume()
        slow.open.set()
        assert await run.result(timeout=20) == [["slow", "slow again"], ["quick", "quick again"]]
        assert "RunParked" not in await kinds_of(run)


@pytest.mark.parametrize("rest", ["sleep", "signal", "ask"])
async def test_a_run_at_rest_is_paused_and_goes_on_waiting(every: Stage, rest: str) -> None:
    """Time that comes and posts that come do not wake it; once it is let go on, they count."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        match rest:
            case "sleep":
                await ctx.sleep(60)
                return "slept"
            case "signal":
                return await ctx.receive(GO)
            case _:
                return "yes" if await ctx.ask("May I?") else "no"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, rest)
        await run.pause()
        await paused(run)
        every.clock.advance(3600)
        if rest == "signal":
            assert await run.signal(GO, "went")
        if rest == "ask":
            (question,) = await runtime.questions()
            await runtime.answer(question, True)
        other = await runtime.start(receives)  # whoever claims looks at all that is due
        await parked(other, "signal")
        assert (await run.info()).status is Status.PAUSED
        await run.resume()
        assert await run.result(timeout=20) == {"sleep": "slept", "signal": "went", "ask": "yes"}[rest]


async def test_a_pause_survives_the_worker_that_should_have_heeded_it(stage: Stage) -> None:
    """It waits in the inbox: whoever takes the run up next heeds it, and performs nothing new."""
    hurdle, performed = Hurdle(), list[str]()

    async def act(what: str) -> None:
        performed.append(what)
        if what == "first":
            await hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(act, "first")
        await ctx.step(act, "second")
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await run.pause()
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        await paused(run)
        assert performed == ["first"]
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert (await run.info()).status is Status.PAUSED
        await run.resume()
        assert await run.result(timeout=20) == "done"
    assert performed == ["first", "first", "second"]


async def test_pausing_a_paused_run_does_not_let_it_go_on(every: Stage) -> None:
    """However often it was paused and resumed before: the last word counts."""
    performed = list[str]()

    async def act() -> None:
        performed.append("acted")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.receive(GO)
        await ctx.step(act)
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.pause()
        await paused(run)
        await run.resume()
        await seen_parks(run, "signal", 2)
        await run.pause("again")
        await seen_parks(run, "paused", 2)
        before = (await run.info()).attempt
        await run.signal(GO, "go")
        await run.pause("once more")
        await claimed(run, before + 1)
        info = await run.info()
        assert (info.status, performed) == (Status.PAUSED, [])
        await run.resume()
        assert await run.result(timeout=20) == "done"


async def seen_parks(run: hf.Run[Any], reason: str, times: int) -> None:
    """Wait until a run has rested so often for a reason."""
    met = 0

    def count(entry: Any) -> bool:
        nonlocal met
        met += isinstance(entry, events.RunParked) and entry.reason == reason
        return met == times

    await seen(run, count)


async def test_a_run_that_was_resumed_goes_on_after_a_crash(stage: Stage) -> None:
    """The resume counts even if the worker that heard of it died of the next step."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.receive(GO)
        await ctx.step(hurdle)
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.pause()
        await paused(run)
        await run.signal(GO, "go")
        await run.resume()
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"


async def test_resuming_a_run_that_is_not_paused_changes_nothing(every: Stage) -> None:
    """A resume that nobody needed does not end a later pause."""
    async with every.open(receives) as runtime:
        run = await runtime.start(receives)
        await parked(run, "signal")
        before = (await run.info()).attempt
        await run.resume()
        await claimed(run, before + 1)
        assert (await run.info()).status is Status.WAITING
        await run.pause()
        await paused(run)
        await run.signal(GO, "went")
        await run.resume()
        assert await run.result(timeout=20) == "went"


async def test_a_finished_run_can_be_neither_paused_nor_resumed(every: Stage) -> None:
    """The caller is told."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await run.result(timeout=20)
        assert not await run.pause()
        assert not await run.resume()


async def test_a_pause_that_a_diverged_run_could_not_heed_is_heeded_when_it_can_go_on(every: Stage) -> None:
    """It was accepted: code that fits, when it comes, does not run past it."""
    performed = list[str]()

    async def act(what: str) -> None:
        performed.append(what)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(act, "first")
        await ctx.sleep(60)
        await ctx.step(act, "second")
        return "done"

    @hf.durable(name="tale")
    async def changed(ctx: hf.Context) -> str:
        await ctx.step(act, "another")
        return "done"

    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
    every.clock.advance(60)
    async with every.open(changed, version="2") as runtime:
        run = await runtime.get(run.id)
        await parked(run, "diverged")
        before = (await run.info()).attempt
        await run.pause()
        await claimed(run, before + 1)
    async with every.open(tale, version="1") as runtime:
        run = await runtime.get(run.id)
        await paused(run)
        assert performed == ["first"]
        await run.resume()
        assert await run.result(timeout=20) == "done"


async def test_a_run_that_kills_its_workers_is_set_aside_although_it_was_resumed(every: Stage) -> None:
    """P5: that somebody asked something of it does not let it kill for ever."""
    async with every.open(receives) as runtime:
        run = await runtime.start(receives)
        await parked(run, "signal")
        await run.pause()
        await paused(run)
    async with every.open(work=False) as runtime:
        await (await runtime.get(run.id)).resume()
    store = await every.store()
    for _ in range(limits.STALLS):
        worker = new_worker_id()
        await store.register(worker, lock=None)
        assert await store.claim(worker, {"receives": ""}, limit=1)
        await store.void(worker, why="test")
    await store.close()
    async with every.open(receives) as runtime:
        run = await runtime.get(run.id)
        status, reason = await ending_of(run)
        assert (status, reason.partition(":")[0]) == (Status.QUARANTINED, "no_progress")
        assert (await entries_of(run))[-1].type == "RunParked"
        assert await run.cancel("enough")
        await seen(run, lambda entry: isinstance(entry, events.RunFinished))
