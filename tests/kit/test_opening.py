"""A runtime for tests: what is due in days is reached at once, and only when there is nothing else to do."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import events, testing
from holdfast.core import limits
from holdfast.core.errors import InvalidInput, StoreRefused
from holdfast.engine import worker
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import MovingClock
from tests.engine.stage import Hurdle, kinds_of, soon

DAYS = timedelta(days=3)
tries: list[str] = []


@pytest.fixture(autouse=True)
def nothing_tried() -> None:
    """Begin with no attempts."""
    tries.clear()


async def flaky(word: str) -> str:
    """Fail at first."""
    tries.append(word)
    if len(tries) % 3:
        raise ConnectionError("not yet")
    return word.upper()


@hf.durable
async def patient(ctx: hf.Context, word: str) -> tuple[str, datetime]:
    """Try every three days."""
    said = await ctx.step(flaky, word, retry=hf.Retry(attempts=9, first=DAYS, factor=1, most=DAYS))
    return said, ctx.now()


@hf.durable
async def hasty(ctx: hf.Context, word: str) -> str:
    """Try again within the second."""
    return await ctx.step(flaky, word, retry=hf.Retry(attempts=9, first=0.5, factor=1))


def started_at(clock: MovingClock) -> datetime:
    """Return the clock's time."""
    return datetime.fromtimestamp(clock() / 1e6, UTC)


async def test_a_retry_in_three_days_is_tried_at_once_and_the_clock_says_when() -> None:
    """Nothing sleeps: time is what the clock says, and it jumps to what is due."""
    async with testing.open(hf.App(patient)) as runtime:
        began = started_at(runtime.clock)
        said, at = await soon(runtime.run(patient, "a"))
    assert said == "A"
    assert len(tries) == 3
    # Half of the wait between two attempts is by chance.
    assert DAYS <= at - began <= 2 * DAYS


async def test_a_retry_within_the_second_waits_for_the_clock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In production a short wait is slept through in the process; here even that goes by the clock."""

    async def no_sleep(delay: float, result: object = None) -> object:
        assert delay == 0, "somebody sleeps"
        return result

    monkeypatch.setattr(asyncio, "sleep", no_sleep)
    async with testing.open(hf.App(hasty)) as runtime:
        began = runtime.clock()
        assert await soon(runtime.run(hasty, "a")) == "A"
        assert 500_000 <= runtime.clock() - began <= 1_000_000


async def test_a_delayed_run_is_reached_only_when_somebody_waits_for_it() -> None:
    """Time stands while the test looks around, and passes while it waits for a result."""
    async with testing.open(hf.App(patient)) as runtime:
        began = runtime.clock()
        run = await runtime.start(patient, "a", delay=DAYS)
        other = await runtime.start(patient, "b")
        async for event in other.events():
            if isinstance(event, events.RunParked):
                break
        await _turns()
        assert (await run.info()).status == hf.Status.QUEUED
        assert runtime.clock() == began
        await soon(run.result())
        assert runtime.clock() - began >= DAYS.total_seconds() * 1e6


async def test_runs_that_are_due_come_in_the_order_of_their_times() -> None:
    """The clock goes to the next time that anything is due, and passes over none."""

    @hf.durable
    async def wake(ctx: hf.Context) -> datetime:
        return ctx.now()

    async with testing.open(hf.App(wake)) as runtime:
        began = started_at(runtime.clock)
        runs = [await runtime.start(wake, delay=timedelta(days=days)) for days in (3, 1, 2)]
        woken = await soon(asyncio.gather(*(run.result() for run in runs)))
    assert [at - began for at in woken] == [timedelta(days=days) for days in (3, 1, 2)]


async def test_who_waits_is_told_of_the_jump_and_does_not_have_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that polls would find the run in the end; one that is rung finds it at once."""
    monkeypatch.setattr(worker, "_POLL_SECONDS", 1e6)
    monkeypatch.setattr(worker, "_REAP_SECONDS", 1e6)
    monkeypatch.setattr(limits, "LEASE_SECONDS", 1e7)
    async with testing.open(hf.App(patient)) as runtime:
        run = await runtime.start(patient, "a", delay=DAYS)
        await _turns()
        assert (await soon(run.result()))[0] == "A"


async def test_the_clock_stands_while_a_step_is_under_way() -> None:
    """A step takes the time that it takes: nothing is due behind its back."""
    hurdle = Hurdle()

    @hf.durable
    async def busy(ctx: hf.Context) -> None:
        await ctx.step(hurdle.__call__, name="hurdle")

    async with testing.open(hf.App(busy, patient)) as runtime:
        began = runtime.clock()
        slow = await runtime.start(busy)
        waiting = asyncio.ensure_future((await runtime.start(patient, "a", delay=DAYS)).result())
        await soon(hurdle.reached.wait())
        await _turns()
        assert runtime.clock() == began
        assert not waiting.done()
        hurdle.open.set()
        await soon(waiting)
        await soon(slow.result())


async def _turns() -> None:
    """Let the loop turn often enough for whatever would come by itself."""
    for _ in range(200):
        await asyncio.sleep(0)


async def test_without_jumps_the_clock_moves_by_hand_only() -> None:
    """A test that is about time itself says when it passes."""
    async with testing.open(hf.App(patient), jumps=False) as runtime:
        run = await runtime.start(patient, "a", delay=DAYS)
        waiting = asyncio.ensure_future(run.result())
        await _turns()
        assert (await run.info()).status == hf.Status.QUEUED
        runtime.clock.advance(DAYS)
        async for event in run.events():
            if isinstance(event, events.RunParked):
                break
        assert len(tries) == 1
        runtime.clock.advance(2 * DAYS)
        while len(tries) < 2:
            await _turns()
        runtime.clock.advance(2 * DAYS)
        assert (await soon(waiting))[0] == "A"


def test_plain_code_has_the_same_runtime() -> None:
    """A test need not be async."""
    with testing.open(hf.App(patient)) as runtime:
        assert runtime.wait(runtime.run(patient, "a"))[0] == "A"
        run = runtime.wait(runtime.start(patient, "b", delay=DAYS))
        runtime.clock.advance(DAYS)
        assert runtime.wait(run.result(timeout=20))[0] == "B"


async def test_it_can_be_awaited_and_closed_by_hand() -> None:
    """As `hf.open`, it is awaitable too."""
    runtime = await testing.open(hf.App(patient))
    assert (await soon(runtime.run(patient, "a")))[0] == "A"
    await runtime.close()


async def test_a_store_on_disk_can_be_had_with_a_clock_that_moves(tmp_path: Path) -> None:
    """What the memory store does, the file does."""
    clock = MovingClock()
    async with testing.open(hf.App(patient), store=f"sqlite:///{tmp_path}/s.db", clock=clock) as runtime:
        assert (await soon(runtime.run(patient, "a")))[0] == "A"
        assert runtime.clock is clock


async def test_an_open_store_brings_its_clock() -> None:
    """The runtime's clock is the store's, since timers follow the store."""
    clock = MovingClock()
    async with testing.open(store=MemoryStore(clock=clock)) as runtime:
        assert runtime.clock is clock
        run = await runtime.start(patient, "a")
        assert (await soon(run.result()))[0] == "A"
        assert "RunParked" in await kinds_of(run)


async def _system_store(tmp_path: Path) -> SqliteStore:
    return await SqliteStore.open(str(tmp_path / "s.db"))


async def test_a_store_whose_clock_is_not_known_is_refused(tmp_path: Path) -> None:
    """A runtime that could not move its time would wait for days."""
    store = await _system_store(tmp_path)
    with pytest.raises(InvalidInput, match="give clock="):
        await testing.open(store=store)
    await store.close()


@pytest.mark.parametrize("address", ["postgresql://localhost/app", "sqlite:///", "holdfast.db"])
async def test_an_address_whose_clock_cannot_be_moved_is_refused(address: str) -> None:
    """A server's clock is its own."""
    with pytest.raises(StoreRefused, match="whose clock moves"):
        await testing.open(store=address)


def test_who_listens_to_a_clock_is_told_until_he_stops() -> None:
    """What follows a clock hears of every move."""
    clock, heard = MovingClock(1), list[int]()
    deaf = clock.listen(lambda: heard.append(clock()))
    clock.advance_to(5)
    deaf()
    clock.advance_to(7)
    assert heard == [5]
