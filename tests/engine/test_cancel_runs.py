"""Cancel: wherever a run stands, it ends as cancelled, once, and its code may clean up with one step."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.cursor import Cursor
from holdfast.core.ids import RunId, new_worker_id
from holdfast.core.status import Status
from holdfast.engine.family import cancel_post
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Page
from tests.engine.stage import (
    Hurdle,
    Stage,
    ending_of,
    entries_of,
    hear_cancel_and_die,
    kinds_of,
    parked,
    paused,
    seen,
    soon,
    until,
)
from tests.engine.test_cancel import Unhurried

GO = hf.Signal("go", str)
CANCELLED = (Status.CANCELLED, "cancelled: enough")


@hf.durable
async def idle(ctx: hf.Context) -> None:
    """Wait for somebody who does not come."""
    await ctx.receive(hf.Signal("never"))


async def flaky() -> None:
    """Fail, worth another attempt after a while."""
    raise ConnectionError("down")


async def pay() -> str:
    """Leave nobody knowing whether it happened."""
    raise ConnectionError("no answer")


async def sleeps(ctx: hf.Context) -> Any:
    """Wait for a time."""
    await ctx.sleep(3600)


async def receives(ctx: hf.Context) -> Any:
    """Wait for a signal."""
    return await ctx.receive(GO)


async def asks(ctx: hf.Context) -> Any:
    """Wait for a person."""
    return await ctx.ask("May I?")


async def spawns(ctx: hf.Context) -> Any:
    """Wait for a child."""
    await ctx.run(idle)


async def retries(ctx: hf.Context) -> Any:
    """Wait for another attempt."""
    await ctx.step(flaky, retry=hf.Retry(attempts=3, first=3600.0))


async def doubts(ctx: hf.Context) -> Any:
    """Wait for a word about a step in doubt."""
    await ctx.step(pay, effect="once", in_doubt="wait")


RESTS: dict[str, Callable[[hf.Context], Awaitable[Any]]] = {
    "sleep": sleeps,
    "signal": receives,
    "ask": asks,
    "child": spawns,
    "retry": retries,
    "doubt": doubts,
}


class Tale:
    """A run that rests, and cleans up when it is told to end; it may be stopped after that, as if it had died."""

    def __init__(self, rest: Callable[[hf.Context], Awaitable[Any]]) -> None:
        self.cleaned = list[str]()
        self.dies = Hurdle()
        self.dies.open.set()

        async def clean_up() -> str:
            self.cleaned.append("cleaned up")
            return "clean"

        @hf.durable
        async def tale(ctx: hf.Context) -> Any:
            try:
                return await rest(ctx)
            finally:
                await ctx.step(clean_up)
                await self.dies()

        self.code = tale


def endings(entries: list[Any]) -> list[Status]:
    """Return the statuses of all endings."""
    return [entry.status for entry in entries if isinstance(entry, events.RunFinished)]


@pytest.mark.parametrize("rest", RESTS)
async def test_a_run_at_rest_is_cancelled_and_cleans_up(every: Stage, rest: str) -> None:
    """Whatever it rests for, its code is told there, and takes one step more."""
    tale = Tale(RESTS[rest])
    async with every.open(tale.code, idle) as runtime:
        run = await runtime.start(tale.code)
        await parked(run, rest)
        assert await run.cancel("enough", by="ann")
        assert await ending_of(run) == CANCELLED
        entries = await entries_of(run)
        (received,) = [entry for entry in entries if isinstance(entry, events.CancelReceived)]
        assert (received.by, received.reason) == ("ann", "cancelled: enough")
        assert not await run.questions()
    assert endings(entries) == [Status.CANCELLED]
    assert tale.cleaned == ["cleaned up"]


@pytest.mark.parametrize("rest", RESTS)
async def test_a_clean_up_is_not_repeated_when_the_worker_dies_before_the_ending(stage: Stage, rest: str) -> None:
    """Between the cancel and the ending lies a step with a result: another worker finds it, and ends the run."""
    tale = Tale(RESTS[rest])
    tale.dies.open.clear()
    async with stage.open(tale.code, idle) as runtime:
        run = await runtime.start(tale.code)
        await parked(run, rest)
        await run.cancel("enough")
        await soon(tale.dies.reached.wait())
    tale.dies.open.set()
    async with stage.open(tale.code, idle) as runtime:
        run = await runtime.get(run.id)
        assert await ending_of(run) == CANCELLED
        kinds = await kinds_of(run)
    assert (kinds.count("CancelReceived"), kinds.count("RunFinished")) == (1, 1)
    assert tale.cleaned == ["cleaned up"]


@pytest.mark.parametrize("rest", RESTS)
async def test_a_worker_that_dies_right_after_the_cancel_leaves_the_clean_up_to_the_next(
    stage: Stage, rest: str
) -> None:
    """The entry that the cancel became is enough: whoever takes the run up next tells the code."""
    tale = Tale(RESTS[rest])
    async with stage.open(tale.code, idle) as runtime:
        run = await runtime.start(tale.code)
        await parked(run, rest)
    await hear_cancel_and_die(stage, run.id, "tale")
    async with stage.open(tale.code, idle) as runtime:
        run = await runtime.get(run.id)
        assert await ending_of(run) == CANCELLED
        assert (await kinds_of(run)).count("CancelReceived") == 1
    assert tale.cleaned == ["cleaned up"]


async def test_a_run_that_never_began_ends_without_its_code(every: Stage) -> None:
    """There is nothing to clean up: the code is not called for that."""
    called = list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        called.append("tale")

    async with every.open(tale) as runtime:
        later = await runtime.start(tale, delay=3600)
        assert await later.cancel("enough")
        assert await ending_of(later) == CANCELLED
        assert await kinds_of(later) == ["RunStarted", "CancelReceived", "RunFinished"]
    async with every.open(work=False) as runtime:
        queued = await runtime.start(tale)
        assert await queued.cancel("enough")
    async with every.open(tale) as runtime:
        assert await ending_of(await runtime.get(queued.id)) == CANCELLED
    assert called == []


@pytest.mark.parametrize("kind", ["async", "thread", "keyed", "once", "own"])
async def test_a_run_under_way_is_cancelled_where_it_is(every: Stage, kind: str) -> None:
    """In a step of any kind, or between steps, its code is told at once; a `once` step is left in doubt."""
    hurdle, reached, may_end = Hurdle(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    cleaned = list[str]()

    def in_thread() -> None:
        loop.call_soon_threadsafe(reached.set)
        may_end.wait(20)

    async def clean_up() -> None:
        cleaned.append(kind)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            if kind == "thread":
                await ctx.step(in_thread)
            elif kind == "own":
                await hurdle()
            else:
                await ctx.step(hurdle, effect=hf.Effect("repeat" if kind == "async" else kind))
        finally:
            await ctx.step(clean_up)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon((reached if kind == "thread" else hurdle.reached).wait())
        assert await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
        entries = await entries_of(run)
    may_end.set()
    doubted = [entry.why for entry in entries if isinstance(entry, events.StepDoubted)]
    assert doubted == (["cancelled"] if kind == "once" else [])
    assert endings(entries) == [Status.CANCELLED]
    assert cleaned == [kind]


async def test_a_second_clean_up_step_is_refused(stage: Stage) -> None:
    """One step is enough to let go of something; a run that shall end does not go on working."""
    performed = list[str]()

    async def act(what: str) -> None:
        performed.append(what)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            try:
                await ctx.sleep(3600)
            finally:
                await ctx.step(act, "first")
        finally:
            await ctx.step(act, "second")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
        await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
    assert performed == ["first"]


async def test_code_that_swallows_the_cancel_ends_cancelled_all_the_same(every: Stage) -> None:
    """Whoever asked was told that it counts: what the code returns after it is not the run's result."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.sleep(3600)
        except asyncio.CancelledError:
            return "went on"
        return "slept"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
        await run.cancel("enough")
        assert await ending_of(run) == CANCELLED


async def test_code_that_swallows_every_cancel_in_a_loop_neither_hangs_nor_lives_on(stage: Stage) -> None:
    """It holds nobody else up, and its run ends without it."""

    @hf.durable
    async def deaf(ctx: hf.Context) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await ctx.sleep(3600)

    async with stage.open(deaf, idle) as runtime:
        run = await runtime.start(deaf)
        await parked(run, "sleep")
        await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
        assert endings(await entries_of(run)) == [Status.CANCELLED]
        other = await runtime.start(idle)
        await parked(other, "signal")


async def test_an_error_of_the_clean_up_is_kept_with_the_ending(stage: Stage) -> None:
    """It does not turn the ending into a failure, but it can be seen."""

    async def clean_up() -> None:
        raise ConnectionError("down")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.sleep(3600)
        finally:
            await ctx.step(clean_up)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
        await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
        info = await run.info()
    assert info.error is not None
    assert "ConnectionError: down" in info.error["message"]


async def test_a_finished_run_cannot_be_cancelled(every: Stage) -> None:
    """The caller is told that it came too late, and the result stands."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == "done"
        assert not await run.cancel()
        assert await run.result(timeout=20) == "done"


async def test_cancelling_twice_is_cancelling_once(every: Stage) -> None:
    """The second asks for what the first was promised."""
    async with every.open(idle) as runtime:
        run = await runtime.start(idle)
        await parked(run, "signal")
        assert await run.cancel("enough")
        assert await run.cancel("more than enough")
        assert await ending_of(run) == CANCELLED
        assert (await kinds_of(run)).count("CancelReceived") == 1


async def test_a_cancel_that_was_accepted_before_the_ending_is_the_ending(every: Stage) -> None:
    """The code has returned already when the ending is refused: exactly one ending, and it is the promised one."""
    told = list[bool]()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        told.append(await run.cancel("enough"))
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, delay=60)
        every.clock.advance(60)
        assert await ending_of(run) == CANCELLED
        assert endings(await entries_of(run)) == [Status.CANCELLED]
    assert told == [True]


class Posting(MemoryStore):
    """A store to which somebody posts a cancel just when a worker that has claimed the run reads it."""

    armed = False

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = 512) -> Page:
        """Read; once, a cancel comes first."""
        if self.armed and self._rows[run].owner is not None and limit > 1:
            self.armed = False
            await self.post(cancel_post(run, "enough"))
        return await super().read(run, after, chunks=chunks, limit=limit)


async def test_a_cancel_that_comes_between_the_claim_and_the_load_counts() -> None:
    """What the row of the claim did not know, that of the load does: it is not taken for seen."""
    store, called = Posting(), list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        called.append("tale")
        return "done"

    async with hf.open(store, hf.App(), work=False) as runtime:
        run = await runtime.start(tale)
    store.armed = True
    async with hf.open(store, hf.App(tale)) as runtime:
        assert await ending_of(await runtime.get(run.id)) == CANCELLED
    assert called == []


@pytest.mark.parametrize("follows", ["step", "sleep"])
async def test_a_cancel_that_comes_while_a_result_is_written_leaves_the_clean_up_its_step(follows: str) -> None:
    """The written step counts, and the code is told at its next verb, which does not use up the step that is left."""
    store, performed = Unhurried(), list[str]()

    async def first() -> str:
        store.slow = True
        return "first"

    async def act(what: str) -> None:
        performed.append(what)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.step(first)
            await (ctx.step(act, "second") if follows == "step" else ctx.sleep(3600))
        finally:
            await ctx.step(act, "clean up")

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.asked.wait())
        await run.cancel("enough")
        assert runtime._worker is not None
        drive = runtime._worker._driving[run.id][1]
        assert drive is not None
        await until(lambda: len(store.waiting) == 2)
        answer, outcome = store.waiting.pop()  # that of the entry which the cancel became
        answer.set_result(outcome)
        await until(lambda: drive.cancelling.told)
        store.acknowledge()
        assert await ending_of(run) == CANCELLED
    assert performed == ["clean up"]


async def test_a_step_that_was_completed_after_the_cancel_is_replayed_as_completed(stage: Stage) -> None:
    """The code had its result before it was told: another worker gives it the result again, and tells it later."""
    hurdle, dies, cleaned = Hurdle(), Hurdle(), list[str]()

    async def stubborn() -> str:
        try:
            await hurdle()
        except asyncio.CancelledError:
            return "finished all the same"
        return "finished"

    async def clean_up(what: str) -> None:
        cleaned.append(what)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        got = "nothing"
        try:
            got = await ctx.step(stubborn)
            await ctx.sleep(3600)
        finally:
            await ctx.step(clean_up, got)
            await dies()

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await run.cancel("enough")
        await soon(dies.reached.wait())
        assert cleaned == ["finished all the same"]
    dies.open.set()
    async with stage.open(tale) as runtime:
        assert await ending_of(await runtime.get(run.id)) == CANCELLED
    assert cleaned == ["finished all the same"]


async def test_a_paused_run_is_cancelled(every: Stage) -> None:
    """A pause does not keep a run from its end, and its code cleans up."""
    tale = Tale(sleeps)
    async with every.open(tale.code) as runtime:
        run = await runtime.start(tale.code)
        await parked(run, "sleep")
        await run.pause()
        await paused(run)
        assert await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
    assert tale.cleaned == ["cleaned up"]


@pytest.mark.parametrize("order", ["pause, cancel", "cancel, pause"])
async def test_a_pause_beside_a_cancel_does_not_keep_the_run_from_its_end(every: Stage, order: str) -> None:
    """Nobody who asked for the end has to resume it first."""
    tale = Tale(sleeps)
    async with every.open(work=False) as runtime:
        run = await runtime.start(tale.code)
    async with every.open(tale.code) as runtime:
        run = await runtime.get(run.id)
        await parked(run, "sleep")
    async with every.open(work=False) as runtime:
        run = await runtime.get(run.id)
        for verb in order.split(", "):
            assert await (run.pause() if verb == "pause" else run.cancel("enough"))
    async with every.open(tale.code) as runtime:
        assert await ending_of(await runtime.get(run.id)) == CANCELLED
    assert tale.cleaned == ["cleaned up"]


async def test_a_diverged_run_is_cancelled(every: Stage) -> None:
    """Its code cannot be told, since it is not the code that the run was begun with; the run ends all the same."""

    async def act(what: str) -> str:
        return what

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(act, "one")
        await ctx.sleep(3600)

    @hf.durable(name="tale")
    async def changed(ctx: hf.Context) -> None:
        await ctx.step(act, "another")

    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale)
        await parked(run, "sleep")
    every.clock.advance(3600)
    async with every.open(changed, version="2") as runtime:
        run = await runtime.get(run.id)
        await parked(run, "diverged")
        assert await run.cancel("enough")
        await seen(run, lambda entry: isinstance(entry, events.RunFinished))
        assert (await run.info()).status is Status.CANCELLED


async def test_a_quarantined_run_is_cancelled_without_its_code(every: Stage) -> None:
    """What was set aside for what its code does is not ended by calling that again."""
    called = list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        called.append("tale")

    async with every.open(work=False) as runtime:
        run = await runtime.start(tale)
    store = await every.store()
    row = await store.get(run.id)
    assert row is not None
    for _ in range(limits.STALLS):
        worker = new_worker_id()
        await store.register(worker, lock=None)
        assert await store.claim(worker, {row.name: ""}, limit=1)
        await store.void(worker, why="test")
    await store.close()
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id)
        status, reason = await ending_of(run)
        assert (status, reason.partition(":")[0]) == (Status.QUARANTINED, "no_progress")
        assert await run.pause()
        assert await run.resume()
        assert await run.cancel("enough")
        await seen(run, lambda entry: isinstance(entry, events.RunFinished))
        assert (await run.info()).status is Status.CANCELLED
    assert called == []


async def test_no_branch_begins_an_effect_after_the_cancel_that_another_was_refused_for() -> None:
    """Two intents stand in line when the cancel comes: that the first was refused does not let the second pass."""
    store, performed = MemoryStore(), list[str]()

    async def pay(what: str) -> None:
        performed.append(what)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        store._post(cancel_post(RunId(ctx.run_id), "enough"))
        await ctx.gather(ctx.step(pay, "a", effect="once"), ctx.step(pay, "b", effect="once"))

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        assert await ending_of(run) == CANCELLED
        assert "StepStarted" not in await kinds_of(run)
    assert performed == []


async def test_a_run_that_is_pinned_to_code_which_is_not_here_is_cancelled(every: Stage) -> None:
    """The code that is here must not be called for it, and the run ends all the same."""
    called = list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.receive(GO)

    @hf.durable(name="tale")
    async def later(ctx: hf.Context) -> None:
        called.append("later")

    async with every.open(tale, version="1") as runtime:
        run = await runtime.start(tale, pin=True)
        await parked(run, "signal")
    async with every.open(later, version="2") as runtime:
        run = await runtime.get(run.id)
        assert await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
    assert called == []


async def test_a_cancel_of_a_run_that_was_cancelled_says_that_it_had_ended(stage: Stage) -> None:
    """Asking twice is asking once while it ends, and comes too late afterwards."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.sleep(60)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.cancel()
        with pytest.raises(hf.RunError, match="cancelled"):
            await run.result(timeout=20)
        assert not await run.cancel()


@pytest.mark.parametrize("nested", [False, True], ids=["one set", "a set in a set"])
async def test_a_run_whose_branches_wait_ends_when_it_is_cancelled(every: Stage, nested: bool) -> None:
    """Parked again on the way to its branches, it would have heard of its end and rest for good."""

    async def asks(ctx: hf.Context) -> bool:
        return bool(await ctx.ask("Ship it?"))

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        async def both() -> None:
            await ctx.gather(asks(ctx), ctx.sleep(86_400))

        await ctx.gather(both() if nested else asks(ctx), ctx.sleep(3600))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "ask")
        await run.cancel("enough")
        assert await ending_of(run) == (Status.CANCELLED, "cancelled: enough")
