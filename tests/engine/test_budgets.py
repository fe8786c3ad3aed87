"""Budgets: steps are paid for in the commit that records them, and a run without any left rests until it is raised."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.budget import Account
from holdfast.core.entry import BudgetMove
from holdfast.core.errors import InvalidInput
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId, new_worker_id
from holdfast.core.post import Raise
from holdfast.core.status import Status
from holdfast.engine.budget import raise_post
from holdfast.engine.family import cancel_post
from holdfast.journal.journal import Journal, load
from holdfast.store.fork import RETRY
from holdfast.store.memory import MemoryStore
from holdfast.store.value import BaseMoved, Created, Existing, NewFork
from tests.engine.stage import Hurdle, Stage, ending_of, entries_of, kinds_of, seen, soon

DONE: list[int] = []
"""What was performed, in order."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    """Forget what was performed before."""
    DONE.clear()


async def act(item: int) -> int:
    """Be performed."""
    DONE.append(item)
    return item


@hf.durable
async def works(ctx: hf.Context, times: int) -> int:
    """Take so many steps."""
    for item in range(times):
        await ctx.step(act, item)
    return times


async def exhausted(run: hf.Run[Any]) -> str:
    """Return why a run is out of its budget, once it is."""
    with pytest.raises(hf.BudgetExceeded) as refused:
        await run.result(timeout=20)
    assert (await run.info()).status is Status.EXHAUSTED
    return refused.value.reason


async def steps_of(runtime: hf.Runtime, run: hf.Run[Any]) -> tuple[int, int, int, int]:
    """Return total, free, reserved and spent of a run's steps, having checked that its journal says the same."""
    await conserved(runtime, run.id)
    budget = (await run.info()).budget
    assert budget is not None
    steps = budget["steps"]
    return steps["total"], steps["free"], steps["reserved"], steps["spent"]


async def conserved(runtime: hf.Runtime, run: str) -> None:
    """Check that a run's accounts are what its journal gave and spent, and add up."""
    assert [finding async for finding in runtime.client.verify(RunId(run))] == []


async def test_each_step_costs_one_and_the_next_is_not_performed(every: Stage) -> None:
    """With none left the run rests before it acts, under the channel's name; raised, it goes on there."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 5, budget=hf.Budget(steps=3))
        assert await exhausted(run) == "steps: 1 wanted, 0 left of 3"
        assert DONE == [0, 1, 2]
        assert await steps_of(runtime, run) == (3, 0, 0, 3)
        assert await run.raise_budget(steps=4, by="ann", reason="it was close")
        assert await run.result(timeout=20) == 5
        assert DONE == [0, 1, 2, 3, 4]
        assert await steps_of(runtime, run) == (7, 2, 0, 5)
        (raised,) = [entry for entry in await entries_of(run) if isinstance(entry, events.BudgetChanged)]
        assert (raised.by, raised.why) == ("ann", "raised: it was close")
        assert not await run.raise_budget(steps=1)


async def test_a_run_without_a_budget_records_nothing_of_one(every: Stage) -> None:
    """It has no accounts, its entries carry no cost, and there is nothing to raise."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 2)
        await run.result(timeout=20)
        assert (await run.info()).budget is None
        for entry in await entries_of(run):
            assert getattr(entry, "usage", None) is None
            assert getattr(entry, "budget", None) is None
        with pytest.raises(hf.Conflict, match="no limit of steps"):
            await run.raise_budget(steps=1)


async def test_replays_and_further_attempts_cost_nothing(every: Stage) -> None:
    """A step is paid once: not for its retries, and not again by whoever goes on with the run."""
    tries: list[int] = []
    hurdle = Hurdle()

    async def shaky(item: int) -> int:
        tries.append(item)
        if len(tries) % 3:
            raise OSError("not yet")
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(act, 1, effect="once")
        await ctx.step(shaky, 2, retry=hf.Retry(attempts=3, first=0))
        await ctx.step(shaky, 3, retry=hf.Retry(attempts=3, first=0), effect="keyed")
        await ctx.step(hurdle.__call__, key="hurdle")
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=4))
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with every.open(tale) as runtime:
        run = await runtime.get(run.id, of=tale)
        assert await run.result(timeout=20) == "done"
        assert await steps_of(runtime, run) == (4, 0, 0, 4)
    assert len(tries) == 6


async def failing(item: int) -> int:
    """Raise."""
    raise OSError("broken")


def in_transaction(transaction: hf.Transaction, item: int) -> int:
    """Be performed in the entry's transaction."""
    transaction.execute("SELECT 1")
    return item


async def once(ctx: hf.Context) -> None:
    await ctx.step(act, 1, effect="once")


async def keyed(ctx: hf.Context) -> None:
    await ctx.step(act, 1, effect="keyed")


async def fails(ctx: hf.Context) -> None:
    with pytest.raises(hf.StepError):
        await ctx.step(failing, 1)


async def fails_once(ctx: hf.Context) -> None:
    with pytest.raises(hf.InDoubt):
        await ctx.step(failing, 1, effect="once")


async def transacts(ctx: hf.Context) -> None:
    await ctx.step(in_transaction, 1)


async def transacts_and_fails(ctx: hf.Context) -> None:
    def wrong(transaction: hf.Transaction) -> None:
        raise OSError("broken")

    with pytest.raises(hf.StepError):
        await ctx.step(wrong)


async def leaves(ctx: hf.Context) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await ctx.step(asyncio.sleep, 60)


async def waits_in_line(ctx: hf.Context) -> None:
    await ctx.step(act, 1, limit=hf.Limit("narrow", at_once=1))


@pytest.mark.parametrize(
    "code", [once, keyed, fails, fails_once, transacts, transacts_and_fails, leaves, waits_in_line]
)  # fmt: skip
async def test_every_kind_of_step_costs_one(every: Stage, code: Callable[[hf.Context], Awaitable[None]]) -> None:
    """Whatever its effect and however it ends."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await code(ctx)
        await ctx.step(act, 2)
        return "done"

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=1))
        assert (await exhausted(run)).startswith("steps")
        assert await steps_of(runtime, run) == (1, 0, 0, 1)
        await run.raise_budget(steps=1)
        assert await run.result(timeout=20) == "done"
        assert await steps_of(runtime, run) == (2, 0, 0, 2)


@pytest.mark.parametrize("effect", ["once", "keyed"])
async def test_a_step_that_a_cancel_withheld_costs_nothing(effect: Any) -> None:
    """Its intent was refused, so that it was never begun: neither the run nor its parent is charged for it."""
    store = MemoryStore()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        store._post(cancel_post(RunId(ctx.run_id), "enough"))
        await ctx.step(act, 1, effect=effect)

    @hf.durable
    async def boss(ctx: hf.Context) -> str:
        try:
            await ctx.run(tale, budget=hf.Budget(steps=3))
        except hf.RunError as error:
            return error.status
        return "it went on"

    async with hf.open(store, hf.App(boss, tale)) as runtime:
        run = await runtime.start(boss, budget=hf.Budget(steps=4))
        assert await run.result(timeout=20) == "cancelled"
        (settled,) = [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSettled)]
        child = await runtime.get(settled.child)
        assert "StepStarted" not in await kinds_of(child)
        assert await steps_of(runtime, child) == (3, 3, 0, 0)
        assert await steps_of(runtime, run) == (4, 4, 0, 0)
    assert DONE == []


async def test_branches_share_what_is_left(every: Stage) -> None:
    """No more of them act than there are steps, and the run is exhausted when none of them can go on."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        return await ctx.map(act, range(6), at_once=4)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=3))
        await exhausted(run)
        assert len(DONE) == 3
        assert await steps_of(runtime, run) == (3, 0, 0, 3)
        await run.raise_budget(steps=3)
        assert await run.result(timeout=20) == list(range(6))
        assert sorted(DONE) == list(range(6))


async def test_a_branch_that_waits_for_something_else_keeps_the_run_from_being_exhausted(every: Stage) -> None:
    """It is when nothing can go on without more; until then the run waits for what may come."""
    go = hf.Signal("go", str)

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return list(await ctx.gather(works.function(ctx, 3), ctx.receive(go)))

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=2))
        rest = await seen(run, lambda entry: isinstance(entry, events.RunParked))
        assert isinstance(rest, events.RunParked)
        assert (rest.status, {wait.kind for wait in rest.waits}) == (Status.WAITING, {"budget", "signal"})
        await run.signal(go, "now")
        await exhausted(run)
        await run.raise_budget(steps=1)
        assert await run.result(timeout=20) == [3, "now"]


async def test_a_raise_that_comes_before_it_is_needed_counts(every: Stage) -> None:
    """While a step is under way, and while the run is paused or waits."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.step(hurdle.__call__, key="hurdle")
        return await ctx.step(act, 1)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=1))
        await soon(hurdle.reached.wait())
        await run.raise_budget(steps=1, key="more")
        await run.raise_budget(steps=1, key="more")
        hurdle.open.set()
        assert await run.result(timeout=20) == 1
        assert await steps_of(runtime, run) == (2, 0, 0, 2)


async def test_a_raise_is_written_down_wherever_the_run_rests(every: Stage) -> None:
    """A paused run stays paused, and has more when it goes on."""
    go = hf.Signal("go", str)

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        await ctx.receive(go)
        return await works.function(ctx, 2)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=1))
        await seen(run, lambda entry: isinstance(entry, events.StepStarted))
        await run.pause()
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.reason == "paused")
        await run.raise_budget(steps=1)
        await seen(run, lambda entry: isinstance(entry, events.BudgetChanged))
        await run.signal(go, "now")
        assert (await run.info()).status in (Status.PAUSED, Status.RUNNING)
        assert DONE == []
        await run.resume()
        assert await run.result(timeout=20) == 2


async def test_an_exhausted_run_is_paused_once_it_is_raised(every: Stage) -> None:
    """What was asked of it meanwhile is not forgotten: it rests on as paused, and goes on when resumed."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 2, budget=hf.Budget(steps=1))
        await exhausted(run)
        await run.pause()
        await exhausted(run)
        await run.raise_budget(steps=1)
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.reason == "paused")
        assert DONE == [0]
        await run.resume()
        assert await run.result(timeout=20) == 2


async def test_an_exhausted_run_can_be_cancelled_and_cleans_up(every: Stage) -> None:
    """It ends once; the one step that is left to its code then costs nothing."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await works.function(ctx, 2)
        finally:
            await ctx.step(act, 99)

    async with every.open(tale) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=1))
        await exhausted(run)
        with pytest.raises(hf.Conflict, match="has not ended"):
            await run.delete()
        with pytest.raises(hf.Conflict, match="used up its budget"):
            await run.retry()
        await run.cancel("enough")
        assert await ending_of(run) == (Status.CANCELLED, "cancelled: enough")
        assert DONE == [0, 99]
        assert (await kinds_of(run)).count("RunFinished") == 1
        assert await steps_of(runtime, run) == (1, 0, 0, 1)
        assert await run.delete()


async def test_a_raise_needs_no_code(every: Stage) -> None:
    """A worker that does not know the run's function writes it down; who does goes on with the run."""

    @hf.durable
    async def other(ctx: hf.Context) -> None:
        """Be something else."""

    async with every.open(works) as runtime:
        run = await runtime.start(works, 2, budget=hf.Budget(steps=1))
        await exhausted(run)
    async with every.open(other) as runtime:
        run = await runtime.get(run.id, of=works)
        await run.pause()
        await run.resume()
        await run.raise_budget(steps=1)
        await seen(run, lambda entry: isinstance(entry, events.RunParked) and entry.reason == "raised")
        assert (await run.info()).status is Status.WAITING
        assert await steps_of(runtime, run) == (2, 1, 0, 1)
    async with every.open(works) as runtime:
        assert await (await runtime.get(run.id, of=works)).result(timeout=20) == 2


async def test_who_dies_after_he_wrote_down_a_raise_has_not_lost_it(every: Stage) -> None:
    """The post is used up by then: what is left tells whether the run may go on."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 2, budget=hf.Budget(steps=1))
        await exhausted(run)
    await raise_and_die(every, RunId(run.id))
    async with every.open(works) as runtime:
        assert await (await runtime.get(run.id, of=works)).result(timeout=20) == 2


async def raise_and_die(stage: Stage, run: RunId) -> None:
    """Be a worker that dies as soon as a raise has become an entry."""
    store, worker = await stage.store(), new_worker_id()
    await store.register(worker, lock=None)
    await store.post(raise_post(run, Raise(steps=1), "test"))
    (lease,) = await store.claim(worker, {"works": ""}, limit=1, runs=[run])
    journal = Journal(store, lease, await load(store, run, lambda entry: None))
    (post,) = await store.inbox(run)
    moves = [BudgetMove("steps", total=1)]
    await journal.append(events.BudgetChanged(moves=moves, why="raised"), consumed=(post.seq,), budget=moves)
    await store.void(worker, why="test")
    await store.close()


# Children


@hf.durable
async def parent(ctx: hf.Context, given: int, used: int) -> int:
    """Give a child steps of one's own, and take one more."""
    await ctx.run(works, used, budget=hf.Budget(steps=given))
    return await ctx.step(act, 100)


async def test_what_a_child_does_not_spend_comes_back(every: Stage) -> None:
    """Its steps are set aside while it goes on; when it has ended, what it spent is spent and the rest is free."""
    async with every.open(parent, works) as runtime:
        run = await runtime.start(parent, 4, 3, budget=hf.Budget(steps=5))
        assert await run.result(timeout=20) == 100
        assert await steps_of(runtime, run) == (5, 1, 0, 4)
        (settled,) = [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSettled)]
        assert settled.spent == {"steps": 3}
        assert await steps_of(runtime, await runtime.get(settled.child)) == (4, 1, 0, 3)


async def test_a_child_that_cannot_be_given_its_steps_is_not_started(every: Stage) -> None:
    """The run rests as exhausted before it, and starts it when it has as many."""
    async with every.open(parent, works) as runtime:
        run = await runtime.start(parent, 4, 3, budget=hf.Budget(steps=3))
        assert await exhausted(run) == "steps: 4 wanted, 3 left of 3"
        assert "ChildSpawned" not in await kinds_of(run)
        await run.raise_budget(steps=2)
        assert await run.result(timeout=20) == 100


async def test_an_exhausted_child_is_raised_by_itself(every: Stage) -> None:
    """Its parent waits; of what it spends beyond its grant the parent pays nothing."""
    async with every.open(parent, works) as runtime:
        run = await runtime.start(parent, 2, 5, budget=hf.Budget(steps=3))
        spawned = await seen(run, lambda entry: isinstance(entry, events.ChildSpawned))
        assert isinstance(spawned, events.ChildSpawned)
        child = await runtime.get(spawned.child)
        await exhausted(child)
        assert await steps_of(runtime, run) == (3, 1, 2, 0)
        await child.raise_budget(steps=10)
        assert await run.result(timeout=20) == 100
        assert await steps_of(runtime, run) == (3, 0, 0, 3)
        assert await steps_of(runtime, child) == (12, 7, 0, 5)


async def test_a_child_without_a_budget_is_not_counted(every: Stage) -> None:
    """Its steps are its own affair; one that is given some by a parent without any has them from nowhere."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.run(works, 3)

    async with every.open(tale, parent, works) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=1))
        assert await run.result(timeout=20) == 3
        assert await steps_of(runtime, run) == (1, 1, 0, 0)
        free = await runtime.start(parent, 2, 2)
        assert await free.result(timeout=20) == 100
        assert (await free.info()).budget is None


async def test_a_parent_that_ends_is_charged_what_its_children_hold(every: Stage) -> None:
    """Nobody knows what they will have spent: it is charged in full, in the commit that ends it."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.spawn(works, 0, budget=hf.Budget(steps=4))
        return "left"

    async with every.open(tale, works) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=5))
        assert await run.result(timeout=20) == "left"
        assert await steps_of(runtime, run) == (5, 1, 0, 4)


class Family:
    """A parent that gives its child 40 of its steps; the child takes two, and fails until things are well."""

    def __init__(self) -> None:
        self.broken = True

        @hf.durable
        async def child(ctx: hf.Context) -> str:
            await ctx.step(act, 1)
            await ctx.step(self.call)
            await ctx.step(act, 2)
            return "done"

        @hf.durable
        async def boss(ctx: hf.Context) -> str:
            return await ctx.run(child, budget=hf.Budget(steps=40))

        self.child, self.boss = child, boss

    async def call(self) -> None:
        """Fail while things are not well."""
        if self.broken:
            raise ConnectionError("no answer")


async def spawned_by(run: hf.Run[Any]) -> list[events.ChildSpawned]:
    """Return the children that a journal has, its base's before its own."""
    return [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)]


async def test_a_retry_gives_its_child_what_came_back_of_it_and_pays_for_it(every: Stage) -> None:
    """A child that had settled is funded by the new run's budget, once, however often it is tried."""
    family = Family()
    async with every.open(family.boss, family.child) as runtime:
        run = await runtime.start(family.boss, budget=hf.Budget(steps=50))
        assert (await ending_of(run))[0] is Status.FAILED
        assert await steps_of(runtime, run) == (50, 48, 0, 2)
        again = await run.retry()
        assert (await ending_of(again))[0] is Status.FAILED
        given = [entry.grant for entry in await spawned_by(again)]
        assert given == [{"steps": 40}, {"steps": 38}]
        assert await steps_of(runtime, again) == (48, 48, 0, 0)
        family.broken = False
        third = await again.retry()
        assert await third.result(timeout=20) == "done"
        assert await steps_of(runtime, third) == (48, 47, 0, 1)
        child = await runtime.get((await spawned_by(third))[-1].child)
        assert await steps_of(runtime, child) == (38, 37, 0, 1)


class Stopping(MemoryStore):
    """A store that makes the fork of a child, and does not answer whoever asked for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.hurdle = Hurdle()

    async def fork(self, new: NewFork) -> Created | Existing | BaseMoved:
        """Make it; once, keep the answer back."""
        made = await super().fork(new)
        if new.word != RETRY and not self.hurdle.reached.is_set():
            await self.hurdle()
        return made


async def test_a_child_that_a_dead_process_took_up_is_paid_for_by_the_next_one() -> None:
    """It was forked and not yet recorded: whoever goes on finds the same child, and gives it as much."""
    family, store = Family(), Stopping()
    async with hf.open(store, hf.App(family.boss, family.child)) as runtime:
        run = await runtime.start(family.boss, budget=hf.Budget(steps=50))
        assert (await ending_of(run))[0] is Status.FAILED
        family.broken = False
        again = await run.retry()
        await soon(store.hurdle.reached.wait())
        assert len(await spawned_by(again)) == 1
    async with hf.open(store, hf.App(family.boss, family.child)) as runtime:
        again = await runtime.get(again.id)
        assert await again.result(timeout=20) == "done"
        assert [entry.grant for entry in await spawned_by(again)] == [{"steps": 40}, {"steps": 38}]
        assert await steps_of(runtime, again) == (48, 47, 0, 1)
        assert len(await runtime.runs()) == 4


async def test_a_child_that_was_raised_beyond_its_grant_takes_no_more_of_a_retry(every: Stage) -> None:
    """What it was raised by never was its parent's: the new run gives what came back, and is not short of it."""
    family, hurdle = Family(), Hurdle()

    async def wait_and_fail() -> None:
        await hurdle()
        await family.call()

    @hf.durable
    async def child(ctx: hf.Context) -> str:
        await ctx.step(wait_and_fail)
        return "done"

    @hf.durable
    async def boss(ctx: hf.Context) -> str:
        return await ctx.run(child, budget=hf.Budget(steps=4))

    async with every.open(boss, child) as runtime:
        run = await runtime.start(boss, budget=hf.Budget(steps=4))
        await soon(hurdle.reached.wait())
        (spawned,) = await spawned_by(run)
        assert await (await runtime.get(spawned.child)).raise_budget(steps=100)
        hurdle.open.set()
        assert (await ending_of(run))[0] is Status.FAILED
        family.broken = False
        again = await run.retry()
        assert await again.result(timeout=20) == "done"
        assert [entry.grant for entry in await spawned_by(again)] == [{"steps": 4}, {"steps": 3}]
        assert await steps_of(runtime, again) == (3, 3, 0, 0)


async def test_two_branches_wait_for_what_a_child_gives_back(every: Stage) -> None:
    """A run whose child holds what it needs is not exhausted: it waits, and goes on with what comes back."""
    hurdle = Hurdle()

    @hf.durable
    async def slow(ctx: hf.Context) -> str:
        await ctx.step(hurdle.__call__, key="hurdle")
        return "child"

    @hf.durable
    async def tale(ctx: hf.Context) -> list[Any]:
        return list(await ctx.gather(ctx.run(slow, budget=hf.Budget(steps=3)), works.function(ctx, 3)))

    async with every.open(tale, slow) as runtime:
        run = await runtime.start(tale, budget=hf.Budget(steps=4))
        await seen(run, lambda entry: isinstance(entry, events.RunParked))
        assert (await run.info()).status is Status.WAITING
        hurdle.open.set()
        assert await run.result(timeout=20) == ["child", 3]
        assert await steps_of(runtime, run) == (4, 0, 0, 4)


# Conservation


async def test_accounts_that_are_not_what_the_journal_spent_are_found(every: Stage) -> None:
    """The check that every test here relies on sees a step that was paid twice, or never."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 3, budget=hf.Budget(steps=2))
        await exhausted(run)
        store = runtime._store
        state = RunState()
        for entry in await entries_of(run):
            state = fold(state, entry)
        assert state.accounts == {"steps": Account(total=2, spent=2)} == await store.budget(RunId(run.id))
        await forge(every, store, run.id)
        (finding,) = [found async for found in runtime.client.verify(RunId(run.id))]
        assert "accounts" in finding.what


async def forge(stage: Stage, store: Any, run: str) -> None:
    """Let a step be paid for that nobody performed."""
    if hasattr(store, "_budgets"):
        store._budgets[run, "steps"] = Account(total=2, spent=1)
    elif hasattr(store, "_reader") and stage.path.name:
        stage.execute("UPDATE hf_budgets SET spent = 1")
    else:
        await store._reader.rows("UPDATE hf_budgets SET spent = 1")


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"steps": 0}, {"steps": -1}, {"steps": True}, {"steps": 1.5}, {"steps": 10**10}, {"deadline": -1},
        {"deadline": "soon"}, {"deadline": float("nan")},
    ],
)  # fmt: skip
def test_what_is_no_budget_is_refused(wrong: dict[str, Any]) -> None:
    """Before there is a run that has it."""
    with pytest.raises(InvalidInput):
        hf.Budget(**wrong)


async def test_a_budget_that_is_none_is_refused(every: Stage) -> None:
    """Wherever one may be given."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.run(works, 1, budget={"steps": 1})  # type: ignore[arg-type]

    async with every.open(works, tale) as runtime:
        with pytest.raises(InvalidInput, match=r"hf\.Budget"):
            await runtime.start(works, 1, budget=3)  # type: ignore[arg-type]
        with pytest.raises(hf.RunError, match=r"hf\.Budget"):
            await (await runtime.start(tale)).result(timeout=20)
        run = await runtime.start(works, 2, budget=hf.Budget(steps=1))
        await exhausted(run)
        for wrong in ({}, {"steps": 0}, {"deadline": -1}):
            with pytest.raises((InvalidInput, hf.Conflict)):
                await run.raise_budget(**wrong)  # type: ignore[arg-type]


async def test_an_exported_run_is_replayed_wherever_it_rests(every: Stage, tmp_path: Any) -> None:
    """Exhausted or raised since: what it recorded is compared, and it stops where it would go on."""
    async with every.open(works) as runtime:
        run = await runtime.start(works, 2, budget=hf.Budget(steps=1))
        await exhausted(run)
        stopped, ended = tmp_path / "stopped", tmp_path / "ended"
        stopped.write_bytes(b"".join([line async for line in run.export()]))
        await run.raise_budget(steps=1)
        await run.result(timeout=20)
        ended.write_bytes(b"".join([line async for line in run.export()]))
    DONE.clear()
    (there,), (over,) = hf.testing.replay(works, stopped), hf.testing.replay(works, ended)
    assert (there.stopped_at, over.stopped_at, DONE) == ("0/act#2", None, [])
