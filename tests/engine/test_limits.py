"""A limited step waits for its slot, and whatever ends it gives the slot back."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.limit import Limit
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Lease, LimitRow, Queued, Turn
from tests.engine import holder
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, seen, soon

ROOT = Path(__file__).resolve().parents[2]
ONE = hf.Limit("one", at_once=1)


class Heard(SqliteStore):
    """A store that tells when somebody has to wait."""

    queued: asyncio.Event

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        """Answer, and say so if there is no slot."""
        turn = await super().acquire(lease, step, limit)
        if isinstance(turn, Queued):
            self.queued.set()
        return turn


@asynccontextmanager
async def opened(stage: Stage, *parts: Any) -> AsyncIterator[tuple[hf.Runtime, Heard]]:
    """Open the stage's store so that waiting is heard of."""
    store = Heard(str(stage.path), clock=stage.clock, synchronous="FULL")
    store.queued = asyncio.Event()
    async with hf.open(store, hf.App(*parts)) as runtime:
        yield runtime, store


async def stands(store: SqliteStore) -> LimitRow:
    """Return how the only limit stands."""
    [row] = await store.limits()
    return row


async def test_a_limit_is_never_exceeded_and_is_used_to_the_full(stage: Stage) -> None:
    """Fifty runs that want the same: at most five at once, and five at once where five can."""
    limit, at_work, most, full = hf.Limit("five", at_once=5), 0, 0, asyncio.Event()

    async def work(number: int) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        if at_work == 5:
            full.set()
        await soon(full.wait())
        for _ in range(5):
            await asyncio.sleep(0)
        at_work -= 1
        return number

    @hf.durable
    async def tale(ctx: hf.Context, number: int) -> int:
        return await ctx.step(work, number, limit=limit) + await ctx.step(work, number, limit=limit)

    async with stage.open(tale) as runtime:
        runs = [await runtime.start(tale, number) for number in range(50)]
        assert [await run.result(timeout=60) for run in runs] == [2 * number for number in range(50)]
    assert most == 5
    assert stage.execute("SELECT count(*) FROM hf_tickets") == [(0,)]


@pytest.mark.parametrize(
    "how", ["result", "error", "timeout", "cancel", "doubt", "retry", "transaction", "rolled back"]
)
async def test_whatever_ends_a_step_gives_its_slot_back(stage: Stage, how: str) -> None:
    """The next in the queue goes on with the commit that records the ending, however the step ended."""
    hurdle, after, performed = Hurdle(), Hurdle(), list[str]()

    async def first() -> str:
        performed.append("first")
        await hurdle()
        if how in ("error", "doubt"):
            raise ConnectionError("down")
        if how == "retry" and len(performed) == 1:
            raise ConnectionError("down once")
        return "done"

    def write(transaction: hf.Transaction) -> str:
        performed.append("first")
        if how == "rolled back":
            raise ConnectionError("down")
        return "done"

    async def second() -> str:
        performed.append("second")
        return "second"

    said: dict[str, dict[str, Any]] = {
        "timeout": {"timeout": 0.05},
        "doubt": {"effect": "once"},
        "retry": {"retry": hf.Retry(attempts=2, first=0.2)},
    }

    @hf.durable
    async def one(ctx: hf.Context) -> str:
        word = "went on"
        with contextlib.suppress(hf.StepError, TimeoutError):
            if how in ("transaction", "rolled back"):
                await ctx.step(hold, limit=ONE)
                word = await ctx.step(write, limit=ONE)
            else:
                async with asyncio.timeout(0.05 if how == "cancel" else None):
                    word = await ctx.step(first, limit=ONE, **said.get(how, {}))
        # The run goes on: not its ending gives the slot back.
        await ctx.step(after)
        return word

    async def hold() -> None:
        await hurdle()

    @hf.durable
    async def two(ctx: hf.Context) -> str:
        return await ctx.step(second, limit=ONE)

    async with opened(stage, one, two) as (runtime, store):
        run = await runtime.start(one)
        await soon(hurdle.reached.wait())
        other = await runtime.start(two)
        if how not in ("timeout", "cancel"):
            await soon(store.queued.wait())
            hurdle.open.set()
        assert await other.result(timeout=20) == "second"
        await soon(after.reached.wait())
        assert await stands(store) == LimitRow(name="one", at_once=1, starts=None, span=0, held=0, queued=0)
        after.open.set()
        assert await run.result(timeout=20) == ("done" if how in ("result", "retry", "transaction") else "went on")
        assert performed.count("second") == 1


async def test_a_step_cancelled_in_the_queue_never_happened_and_leaves_its_place(stage: Stage) -> None:
    """The run goes another way, on replay too; a `once` step is not doubted, since it had not begun."""
    hurdle, later, performed = Hurdle(), Hurdle(), list[str]()

    async def pay() -> str:
        performed.append("paid")
        return "paid"

    @hf.durable
    async def one(ctx: hf.Context) -> None:
        await ctx.step(hurdle, limit=ONE)

    @hf.durable
    async def two(ctx: hf.Context) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                return await ctx.step(pay, effect="once", limit=ONE)
        await ctx.step(later)
        return "went another way"

    async with opened(stage, one, two) as (runtime, store):
        await runtime.start(one)
        await soon(hurdle.reached.wait())
        run = await runtime.start(two)
        await soon(later.reached.wait())
        await seen(run, lambda entry: isinstance(entry, events.StepFailed))
        assert (await stands(store)).queued == 0
    later.open.set()
    async with stage.open(two) as runtime:
        again = await runtime.get(run.id)
        assert await again.result(timeout=20) == "went another way"
        [failed] = [entry for entry in await entries_of(again) if isinstance(entry, events.StepFailed)]
    assert failed.cancelled
    assert performed == []


@pytest.mark.parametrize("effect", ["keyed", "once"])
async def test_no_intent_is_written_before_there_is_a_slot(stage: Stage, effect: Literal["keyed", "once"]) -> None:
    """A crash in the queue leaves no doubt: what waits for its turn has not begun."""
    hurdle = Hurdle()

    async def pay() -> str:
        return "paid"

    @hf.durable
    async def one(ctx: hf.Context) -> None:
        await ctx.step(hurdle, limit=ONE)

    @hf.durable
    async def two(ctx: hf.Context) -> str:
        return await ctx.step(pay, effect=effect, limit=ONE)

    async with opened(stage, one, two) as (runtime, store):
        await runtime.start(one)
        await soon(hurdle.reached.wait())
        run = await runtime.start(two)
        await soon(store.queued.wait())
        assert await kinds_of(run) == ["RunStarted"]
        hurdle.open.set()
        assert await run.result(timeout=20) == "paid"
        assert await kinds_of(run) == ["RunStarted", "StepStarted", "StepCompleted", "RunFinished"]


async def test_a_replayed_step_takes_no_slot(stage: Stage) -> None:
    """What is recorded is not done again, so it needs no leave: the limit may be full for ever."""
    hurdle, held = Hurdle(), Hurdle()

    async def work() -> str:
        return "work"

    @hf.step(limit=ONE)
    async def declared() -> str:
        return "declared"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        words = await ctx.step(work, limit=ONE), await ctx.step(declared)
        await ctx.step(hurdle)
        return " ".join(words)

    @hf.durable
    async def full(ctx: hf.Context) -> None:
        await ctx.step(held, limit=ONE)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(full, work=False):
        pass
    async with stage.open(full) as runtime:
        await runtime.start(full)
        await soon(held.reached.wait())
        async with stage.open(tale) as other:
            assert await (await other.get(run.id)).result(timeout=20) == "work declared"


async def test_a_step_starts_when_the_rate_lets_it(stage: Stage) -> None:
    """The store's clock says when: not before the span is over, and then without being asked for."""
    limit, started, both = hf.Limit("rate", rate=2, per=0.1), list[int](), asyncio.Event()

    async def work() -> None:
        started.append(stage.clock())
        if len(started) == 2:
            both.set()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(work, limit=limit)

    async with opened(stage, tale) as (runtime, store):
        runs = [await runtime.start(tale) for _ in range(3)]
        await soon(store.queued.wait())
        await soon(both.wait())
        began = stage.clock()
        stage.clock.advance(0.1)
        for run in runs:
            await run.result(timeout=20)
    assert [at - began for at in started] == [0, 0, 100_000]


async def test_the_run_of_higher_priority_goes_first(stage: Stage) -> None:
    """Urgent work overtakes what waits, in whichever order they came."""
    hurdle, performed = Hurdle(), list[int]()

    async def work(priority: int) -> None:
        performed.append(priority)

    @hf.durable
    async def one(ctx: hf.Context) -> None:
        await ctx.step(hurdle, limit=ONE)

    @hf.durable
    async def tale(ctx: hf.Context, priority: int) -> None:
        await ctx.step(work, priority, limit=ONE.with_priority(priority))

    async with opened(stage, one, tale) as (runtime, store):
        await runtime.start(one)
        await soon(hurdle.reached.wait())
        runs = []
        for priority in (0, 5, -5, 9):
            store.queued.clear()
            runs.append(await runtime.start(tale, priority))
            await soon(store.queued.wait())
        hurdle.open.set()
        for run in runs:
            await run.result(timeout=20)
    assert performed == [9, 5, 0, -5]


async def test_a_run_that_waits_for_a_slot_is_handed_over(stage: Stage) -> None:
    """A worker that leaves does not wait for the whole queue: nothing was begun, so another can go on."""
    hurdle = Hurdle()

    async def work() -> str:
        return where

    @hf.durable
    async def one(ctx: hf.Context) -> None:
        await ctx.step(hurdle, limit=ONE)

    @hf.durable
    async def two(ctx: hf.Context) -> str:
        return await ctx.step(work, limit=ONE)

    where = "old"
    async with stage.open(one) as holding:
        await holding.start(one)
        await soon(hurdle.reached.wait())
        async with opened(stage, two) as (runtime, store):
            run = await runtime.start(two)
            await soon(store.queued.wait())
            await soon(runtime.drain(19))
            assert (await run.info()).status is hf.Status.QUEUED
        where = "new"
        async with stage.open(two) as runtime:
            hurdle.open.set()
            assert await (await runtime.get(run.id)).result(timeout=20) == "new"


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes can open."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_store"))
    return f"sqlite:///{tmp_path / 'a.db'}"


@pytest.fixture
def holding(address: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process that has the only slot in hand."""
    command = [sys.executable, "-m", "tests.engine.holder", address]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


async def test_the_slot_of_a_killed_process_is_free_for_the_next(
    address: str, holding: "subprocess.Popen[str]"
) -> None:
    """A process that dies with a slot in hand holds nobody up: whoever takes over its runs lets the next one in."""

    async def work() -> str:
        return "mine"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(work, limit=holder.LIMIT)

    async with hf.open(address, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(TimeoutError):
            await run.result(timeout=0.5)
        holding.kill()
        assert await run.result(timeout=limits.LEASE_SECONDS / 2) == "mine"


@pytest.mark.parametrize("wrong", ["arxiv", 5, hf.Retry(), hf.Limit])
def test_what_is_no_limit_is_refused_where_it_is_declared(wrong: Any) -> None:
    """A wrong word fails at import, not in production."""
    with pytest.raises(InvalidInput, match=r"limit= is an hf\.Limit"):
        hf.step(limit=wrong)
