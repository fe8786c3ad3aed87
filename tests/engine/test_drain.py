"""A worker that is told to leave hands its runs over: nothing is lost, repeated, doubted or charged."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import holdfast as hf
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending
from holdfast.store.value import Commit, Lease, Outcome
from tests.engine.stage import Hurdle, Stage, kinds_of, soon


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Keeps a thread of a step busy until the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_run_is_handed_over_at_its_next_entry(stage: Stage) -> None:
    """The step under way is finished and recorded; the one behind it is another worker's."""
    hurdle, performed = Hurdle(), list[str]()

    async def act(word: str) -> str:
        performed.append(word)
        await hurdle()
        return word

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(act, "a") + await ctx.step(act, "b")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        async with stage.open(tale) as other:
            hurdle.open.set()
            await soon(draining)
            assert await (await other.get(run.id)).result(timeout=20) == "ab"
            assert (await (await other.get(run.id)).info()).attempt == 2
            assert [worker.runs for worker in await other.client.workers()] == [[]]
        assert await kinds_of(run) == ["RunStarted", "StepCompleted", "RunResumed", "StepCompleted", "RunFinished"]
    assert performed == ["a", "b"]


@pytest.mark.parametrize("effect", ["once", "keyed"])
async def test_an_effect_under_way_is_waited_for_and_none_is_begun(stage: Stage, effect: str) -> None:
    """A deploy leaves no step in doubt that had time to finish: the hand-over is never between intent and outcome."""
    hurdle, performed = Hurdle(), list[str]()

    async def pay(word: str) -> str:
        performed.append(word)
        await hurdle()
        return word

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        one = await ctx.step(pay, "a", effect=effect)  # type: ignore[call-overload]
        two = await ctx.step(pay, "b", effect=effect)  # type: ignore[call-overload]
        return str(one + two)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        hurdle.open.set()
        await soon(draining)
        assert await kinds_of(run) == ["RunStarted", "StepStarted", "StepCompleted"]
        assert (await run.info()).status is hf.Status.QUEUED
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "ab"
    assert performed == ["a", "b"]


async def test_no_effect_is_begun_by_a_worker_that_leaves(stage: Stage) -> None:
    """Code that comes to its next effect without an entry before it is left there: the effect is another's."""
    hurdle, performed = Hurdle(), list[str]()

    async def pay() -> str:
        performed.append(where)
        return where

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await hurdle()
        return await ctx.step(pay, effect="once")

    where = "old"
    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        hurdle.open.set()
        await soon(draining)
        assert await kinds_of(run) == ["RunStarted"]
    where = "new"
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "new"
    assert performed == ["new"]


class Slow(MemoryStore):
    """A store that takes its time with intents."""

    def __init__(self) -> None:
        super().__init__()
        self.intent = Hurdle()

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Write, but for an intent only when it is let through."""
        if any(entry.kind == "StepStarted" for entry in change.entries):
            return asyncio.ensure_future(self._later(lease, change))
        return super().commit(lease, change)

    async def _later(self, lease: Lease, change: Commit) -> Outcome:
        await self.intent()
        return await super().commit(lease, change)


async def test_an_effect_whose_intent_is_being_written_is_performed() -> None:
    """Once the intent is on disk, leaving without the effect would leave a doubt."""
    store, performed = Slow(), list[str]()

    async def pay() -> str:
        performed.append("paid")
        return "paid"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(pay, effect="once")

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.intent.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        await asyncio.sleep(0)  # it begins
        store.intent.open.set()
        await soon(draining)
        assert await kinds_of(run) == ["RunStarted", "StepStarted", "StepCompleted"]
    assert performed == ["paid"]


async def test_what_has_no_entry_when_the_grace_is_over_is_interrupted_and_not_charged(
    stage: Stage, stuck: threading.Event
) -> None:
    """However long a step hangs, the worker leaves; the run is due at once and nobody counts it as a death."""
    reached, loop, lives = asyncio.Event(), asyncio.get_running_loop(), list[int]()

    def hang() -> str:
        lives.append(1)
        loop.call_soon_threadsafe(reached.set)
        if len(lives) == 1:
            stuck.wait(20)
        return "hung"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(hang)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(reached.wait())
        await soon(runtime.drain(0.05))
        assert stage.execute("SELECT owner, stalls FROM hf_runs") == [(None, 0)]
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "hung"


async def test_a_run_that_is_handed_over_does_not_wait_for_its_neighbours(stage: Stage) -> None:
    """While one hangs through the grace, the others go on elsewhere."""
    quick, hangs = Hurdle(), Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context, which: str) -> str:
        await ctx.step(quick if which == "quick" else hangs, name="wait")
        return which

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, "quick")
        await runtime.start(tale, "hangs")
        await soon(quick.reached.wait())
        await soon(hangs.reached.wait())
        draining = asyncio.create_task(runtime.drain(600))
        await asyncio.sleep(0)  # it begins
        quick.open.set()
        async with stage.open(tale) as other:
            assert await (await other.get(run.id)).result(timeout=20) == "quick"
        assert not draining.done()
        hangs.open.set()
        await soon(draining)


async def test_a_run_that_comes_to_its_end_is_finished(stage: Stage) -> None:
    """Only what would go on is handed over."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await hurdle()
        return "finished here"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        hurdle.open.set()
        await soon(draining)
        assert await run.result(timeout=20) == "finished here"


async def test_a_worker_that_drains_claims_nothing_more(stage: Stage) -> None:
    """What is started meanwhile is written for others, and taken by them."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context, waits: bool) -> str:
        if waits:
            await ctx.step(hurdle)
        return "done"

    async with stage.open(tale) as runtime:
        await runtime.start(tale, True)
        await soon(hurdle.reached.wait())
        draining = asyncio.create_task(runtime.drain(20))
        await asyncio.sleep(0)  # it begins
        late = await runtime.start(tale, False)
        assert (await late.info()).status is hf.Status.QUEUED
        hurdle.open.set()
        await soon(draining)
        assert (await late.info()).status is hf.Status.QUEUED
        async with stage.open(tale) as other:
            assert await (await other.get(late.id)).result(timeout=20) == "done"


async def test_a_worker_without_runs_leaves_at_once(stage: Stage) -> None:
    """Draining twice, or closing behind it, is nothing more."""
    async with stage.open() as runtime:
        await soon(runtime.drain())
        await soon(runtime.drain())
        assert await runtime.client.workers() == []


async def test_a_grace_is_a_length_of_time(stage: Stage) -> None:
    """What is not is refused, and nothing is drained."""
    async with stage.open() as runtime:
        with pytest.raises(hf.HoldfastError):
            await runtime.drain(-1)
        assert len(await runtime.client.workers()) == 1
