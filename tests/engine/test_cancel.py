"""A step cancelled by the run's own code is recorded as such, and replays as such."""

import asyncio
import contextlib
import threading
from typing import Any

import anyio
import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.entry import Entry
from holdfast.core.errors import StoreUnavailable
from holdfast.store.answer import Answer
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending
from holdfast.store.value import Commit, Lease, Outcome
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, seen, soon, until


def cancelled_steps(entries: list[Entry]) -> list[str]:
    """Return the steps that the code cancelled."""
    return [entry.step for entry in entries if isinstance(entry, events.StepFailed) and entry.cancelled]


@pytest.mark.parametrize("kind", ["async", "plain", "keyed", "in an anyio scope"])
async def test_a_timeout_around_a_step_is_recorded_and_comes_again(stage: Stage, kind: str) -> None:
    """On replay the step performs nothing and waits to be cancelled again: the code takes the same path."""
    performed: list[str] = []
    hurdle, never, thread_may_end = Hurdle(), asyncio.Event(), threading.Event()

    async def slow() -> str:
        performed.append("slow")
        await never.wait()
        return "never"

    def slow_plain() -> str:
        performed.append("slow")
        thread_may_end.wait(20)
        return "too late"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        if kind == "in an anyio scope":
            with anyio.move_on_after(0.05):
                return await ctx.step(slow)
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    if kind == "plain":
                        return await ctx.step(slow_plain)
                    return await ctx.step(slow, effect="keyed" if kind == "keyed" else "repeat")
        await ctx.step(hurdle)
        return "went another way"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
        cut = await seen(run, lambda entry: isinstance(entry, events.StepFailed))
        assert isinstance(cut, events.StepFailed)
        step = "0/slow_plain#1" if kind == "plain" else "0/slow#1"
        assert (cut.cancelled, cut.step) == (True, step)
    thread_may_end.set()
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.get(key="k", of=tale)
        assert await run.result(timeout=20) == "went another way"
        assert (await kinds_of(run)).count("StepFailed") == 1
    assert performed == ["slow"]


async def test_a_once_step_cancelled_by_the_code_is_in_doubt(stage: Stage) -> None:
    """Its request may have been sent: that is visible, and it is not sent again."""
    performed: list[str] = []
    hurdle = Hurdle()

    limit = asyncio.timeout(None)

    async def pay() -> str:
        performed.append("pay")
        limit.reschedule(0)
        await asyncio.Event().wait()
        return "never"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        nonlocal limit
        try:
            async with asyncio.timeout(None if not performed else 0) as limit:
                return await ctx.step(pay, effect="once")
        except TimeoutError:
            await ctx.step(hurdle)
            return "gave up"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.get(key="k")
        assert await run.result(timeout=20) == "gave up"
        (doubt,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepDoubted)]
    assert (doubt.step, doubt.why) == ("0/pay#1", "cancelled")
    assert performed == ["pay"]


async def test_a_shutdown_records_nothing(stage: Stage) -> None:
    """A deploy in the middle of a step is not a cancellation by the code: the step is simply performed again."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(hurdle)
        except asyncio.CancelledError:
            return "swallowed the shutdown"
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(work=False) as runtime:
        assert await kinds_of(await runtime.get(run.id)) == ["RunStarted"]
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"


async def test_a_finally_block_acts_in_no_shutdown(stage: Stage) -> None:
    """Code that unwinds because its worker stops performs nothing, so that its next life replays cleanly."""
    hurdle, performed = Hurdle(), list[str]()

    async def clean_up() -> None:
        performed.append("cleaned up")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(hurdle)
        finally:
            await ctx.step(clean_up)
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    assert performed == []
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"
    assert performed == ["cleaned up"]


async def test_a_finally_block_acts_in_no_park(stage: Stage) -> None:
    """A run that only rests has not left its `try` block for good."""
    performed: list[str] = []
    healthy = asyncio.Event()

    async def flaky() -> str:
        performed.append("flaky")
        if not healthy.is_set():
            raise ConnectionError("down")
        return "up"

    async def clean_up() -> None:
        performed.append("cleaned up")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(flaky, retry=hf.Retry(attempts=5, first=60.0))
        except Exception:
            await ctx.step(clean_up)
            raise
        finally:
            await ctx.step(clean_up)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await seen(run, lambda entry: isinstance(entry, events.RunParked))
        assert performed == ["flaky"]
        healthy.set()
        stage.clock.advance(60)
        assert await run.result(timeout=20) == "up"
    assert performed == ["flaky", "flaky", "cleaned up"]


async def test_a_timeout_during_a_retrys_wait_is_recorded(stage: Stage) -> None:
    """The code went on without the step: a replay must not perform another attempt."""
    performed: list[str] = []
    hurdle = Hurdle()

    async def flaky() -> str:
        performed.append("flaky")
        raise ConnectionError("down")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step(flaky, retry=hf.Retry(attempts=5, first=1.0))
        except TimeoutError:
            pass
        await ctx.step(hurdle)
        return "went on"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    stage.clock.advance(100)
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == "went on"
    assert performed == ["flaky"]


class Unhurried(MemoryStore):
    """A store that writes at once and acknowledges when told to, so that a test can come between."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Answer, Outcome]] = []
        self.asked = asyncio.Event()
        self.slow = False

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Write, and keep the answer back."""
        done = super().commit(lease, change)
        if not self.slow:
            return done
        answer = Answer()
        self.waiting.append((answer, done.result()))
        self.asked.set()
        return answer

    def acknowledge(self) -> None:
        """Give all answers, now and from now on."""
        self.slow = False
        for answer, outcome in self.waiting:
            answer.set_result(outcome)
        self.waiting.clear()

    def fail(self) -> None:
        """Answer that nothing is known of what was written, and from now on as ever."""
        self.slow = False
        for answer, _ in self.waiting:
            answer.set_exception(StoreUnavailable("the disk is gone"))
        self.waiting.clear()


@pytest.mark.parametrize("within", [True, False], ids=["another step follows", "the block ends"])
async def test_a_timeout_that_comes_while_a_result_is_written_is_kept_for_the_next_step(within: bool) -> None:
    """The written step counts; the next step of the same block is cancelled, and one outside of it is not."""
    store, performed, limits = Unhurried(), list[str](), list[asyncio.Timeout]()

    async def first() -> str:
        store.slow = True
        return "first"

    async def second() -> str:
        performed.append("second")
        await asyncio.sleep(0)
        return "second"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                kept = await ctx.step(first)
                if within:
                    await ctx.step(second)
        except TimeoutError:
            return "timed out"
        return kept + await ctx.step(second)

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.asked.wait())
        loop = asyncio.get_running_loop()
        limits[0].reschedule(loop.time())
        came = asyncio.Event()
        loop.call_later(0, loop.call_soon, came.set)
        await soon(came.wait())
        assert limits[0].expired()
        store.acknowledge()
        assert await run.result(timeout=20) == ("timed out" if within else "firstsecond")
        entries = await entries_of(run)
    assert cancelled_steps(entries) == (["0/second#1"] if within else [])
    assert performed == ([] if within else ["second"])


async def test_a_store_that_fails_while_a_cancellation_comes_does_not_fail_the_run() -> None:
    """What the store could not do is nothing that the run's code may see: the run goes on when it is claimed again."""
    store, limits, caught = Unhurried(), list[asyncio.Timeout](), list[Exception]()

    async def first() -> str:
        store.slow = True
        return "first"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            try:
                return await ctx.step(first)
            except Exception as error:
                caught.append(error)
                raise

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.asked.wait())
        loop = asyncio.get_running_loop()
        limits[0].reschedule(loop.time())
        came = asyncio.Event()
        loop.call_later(0, loop.call_soon, came.set)
        await soon(came.wait())
        assert limits[0].expired()
        store.fail()
        assert await run.result(timeout=20) == "first"
    assert caught == []


WORD = hf.Signal("word", str)
_BEGINNINGS = (events.StepStarted, events.QuestionAsked, events.StepFailed)


@pytest.mark.parametrize("kind", ["ask", "signal", "sleep", "step", "keyed", "retry", "slot"])
async def test_a_store_that_fails_beside_a_branch_does_not_cancel_what_that_waits_for(kind: str) -> None:
    """It is we who leave it then: recorded as the code's own doing it would be waited for in vain, for ever."""
    store, begun, held, tried = Unhurried(), asyncio.Event(), asyncio.Event(), list[str]()
    one = hf.Limit("one", at_once=1)

    async def act() -> str:
        await begun.wait()
        store.slow = True
        return "acted"

    async def slow() -> str:
        tried.append("slow")
        if len(tried) == 1:
            await held.wait()
        return "slow"

    async def flaky() -> str:
        tried.append("flaky")
        if len(tried) == 1:
            raise ConnectionError
        return "flaky"

    async def beside(ctx: hf.Context) -> Any:
        match kind:
            case "ask":
                return (await ctx.ask("Go on?")).yes
            case "signal":
                return await ctx.receive(WORD)
            case "sleep":
                return await ctx.sleep(0.2)
            case "step":
                return await ctx.step(slow)
            case "keyed":
                return await ctx.step(slow, effect="keyed")
            case "retry":
                return await ctx.step(flaky, retry=hf.Retry(attempts=2, first=0.2))
            case "slot":
                return await ctx.step(slow, limit=one)

    @hf.durable
    async def hold(ctx: hf.Context) -> str:
        return await ctx.step(keep, limit=one)

    async def keep() -> str:
        await held.wait()
        return "kept"

    @hf.durable
    async def tale(ctx: hf.Context) -> tuple[Any, ...]:
        return await ctx.gather(beside(ctx), ctx.step(act))

    async with hf.open(store, hf.App(tale, hold)) as runtime:
        if kind == "slot":
            await runtime.start(hold)
            await until(lambda: [row.held for row in store._tickets.rows()] == [1])
        run = await runtime.start(tale)
        match kind:
            case "step" | "keyed":
                await until(lambda: bool(tried))
            case "slot":
                await until(lambda: [row.queued for row in store._tickets.rows()] == [1])
            case _:
                await seen(run, lambda entry: isinstance(entry, _BEGINNINGS))
        begun.set()
        await soon(store.asked.wait())
        store.fail()
        held.set()
        if kind == "ask":
            [question] = await runtime.questions()
            await runtime.answer(question, True)
        elif kind == "signal":
            await run.signal(WORD, "go")
        assert (await run.result(timeout=20))[1] == "acted"
        entries = await entries_of(run)
    assert cancelled_steps(entries) == []
    assert not [entry for entry in entries if isinstance(entry, events.StepDoubted) and entry.why == "cancelled"]


async def test_a_cancellation_that_nobody_asked_for_is_the_steps_failure(stage: Stage) -> None:
    """Awaiting something that was cancelled raises in the step; the run neither hangs nor vanishes."""

    async def awaits_a_cancelled_task() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(awaits_a_cancelled_task)
        except hf.StepError as error:
            return error.type
        return "never"

    @hf.durable
    async def careless(ctx: hf.Context) -> None:
        await awaits_a_cancelled_task()

    async with stage.open(tale, careless) as runtime:
        assert await soon(runtime.run(tale)) == "CancelledError"
        with pytest.raises(hf.RunError, match="CancelledError"):
            await soon(runtime.run(careless))


async def test_signals_pass_through_except_exception(stage: Stage) -> None:
    """Parked and lost are not exceptions: code that catches everything cannot keep a run from resting."""
    caught: list[BaseException] = []
    healthy = asyncio.Event()

    async def flaky() -> str:
        if not healthy.is_set():
            raise ConnectionError("down")
        return "up"

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        while True:
            try:
                return await ctx.step(flaky, retry=hf.Retry(attempts=9, first=60.0), key="flaky")
            except Exception as error:
                caught.append(error)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await seen(run, lambda entry: isinstance(entry, events.RunParked))
        healthy.set()
        stage.clock.advance(60)
        assert await run.result(timeout=20) == "up"
    assert caught == []


async def test_a_run_taken_by_another_worker_ends_here_without_a_trace(stage: Stage) -> None:
    """A worker that lost its lease records nothing more, whatever its code catches."""
    hurdle, after = Hurdle(), list[str]()

    async def act() -> None:
        after.append("acted")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(hurdle)
        except BaseException:
            await ctx.step(act)
            raise
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await stage.declare_dead()
        hurdle.open.set()
        # The same process may not claim again as a dead worker; another one does.
        async with stage.open(tale) as other:
            assert await (await other.get(run.id)).result(timeout=20) == "done"
            assert (await kinds_of(await other.get(run.id))).count("StepCompleted") == 1
    assert after == []
