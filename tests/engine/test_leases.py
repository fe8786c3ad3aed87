"""A worker drives what it owns and owns what it drives, whatever answers are lost on the way."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import RunId, WorkerId
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Busy, Created, Existing, KeyTaken, Lease, NewRun
from tests.engine.stage import Hurdle, Stage, kinds_of, soon


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease short enough to wait for."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.6)


async def test_a_worker_whose_row_is_gone_works_on_under_another_id(stage: Stage) -> None:
    """Declared dead by another process, it leaves its runs and comes back: nobody has to restart it."""
    hurdle, left = Hurdle(), asyncio.Event()

    @hf.durable
    async def tale(ctx: hf.Context, waits: bool) -> str:
        if waits:
            try:
                await ctx.step(hurdle)
            finally:
                left.set()
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, True)
        await soon(hurdle.reached.wait())
        assert runtime._worker is not None
        was = runtime._worker.id
        await stage.declare_dead()
        await soon(left.wait())
        assert await soon(runtime.run(tale, False)) == "done"
        hurdle.open.set()
        assert await run.result(timeout=20) == "done"
        assert runtime._worker.id != was
        assert [worker.id for worker in await runtime.client.workers()] == [runtime._worker.id]
        assert await kinds_of(run) == ["RunStarted", "RunResumed", "StepCompleted", "RunFinished"]


async def test_code_that_swallows_its_cancellation_acts_no_more(stage: Stage) -> None:
    """However stubborn, code whose lease is gone can neither write nor keep its run from being driven again."""
    hurdle, stubborn, tried = Hurdle(), Hurdle(), list[str]()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(hurdle)
        except asyncio.CancelledError:
            await stubborn()
            try:
                await ctx.emit("a word from the dead")
            except BaseException as error:
                tried.append(type(error).__name__)
                raise
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await stage.declare_dead()
        await soon(stubborn.reached.wait())
        hurdle.open.set()
        assert await run.result(timeout=20) == "done"
        stubborn.open.set()
        assert "Emitted" not in await kinds_of(run)
    assert tried == ["Lost"]


@pytest.mark.usefixtures("short_lease")
async def test_one_lost_lease_ends_that_runs_code_and_no_others(stage: Stage) -> None:
    """In the middle of a long step the code of a run that is somebody else's is left; its neighbour goes on."""
    mine, theirs, left = Hurdle(), Hurdle(), asyncio.Event()

    @hf.durable
    async def tale(ctx: hf.Context, which: str) -> str:
        try:
            await ctx.step(mine if which == "mine" else theirs, name="wait")
        except asyncio.CancelledError:
            left.set()
            raise
        return which

    async with stage.open(tale) as runtime:
        kept, lost = await runtime.start(tale, "mine"), await runtime.start(tale, "theirs", key="k")
        await soon(mine.reached.wait())
        await soon(theirs.reached.wait())
        # As if another worker had taken it and given it back: the fence is what counts.
        other = await SqliteStore.open(str(stage.path), clock=stage.clock)
        stage.execute("UPDATE hf_runs SET owner = 99 WHERE key = 'k'")
        await other.workers()
        await other.close()
        await soon(left.wait())
        theirs.open.set()
        assert await lost.result(timeout=20) == "theirs"
        mine.open.set()
        assert await kept.result(timeout=20) == "mine"
        assert "RunResumed" in await kinds_of(lost)
        assert "RunResumed" not in await kinds_of(kept)


class Forgetful(MemoryStore):
    """A store whose answers get lost after it has done what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_claim = self.lose_create = False

    async def claim(
        self, worker: WorkerId, serves: Mapping[str, str], *, limit: int, runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:  # fmt: skip
        """Claim, and perhaps lose the reply."""
        leases = await super().claim(worker, serves, limit=limit, runs=runs, suspects=suspects)
        if self.lose_claim and leases:
            self.lose_claim = False
            raise StoreUnavailable("the line was cut")
        return leases

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Busy | Created | Existing | KeyTaken:
        """Create, and perhaps lose the reply."""
        created = await super().create(new, worker=worker)
        if self.lose_create:
            self.lose_create = False
            raise StoreUnavailable("the line was cut")
        return created


@hf.durable
async def short(ctx: hf.Context) -> str:
    """Be done."""
    return "done"


async def test_what_a_claim_took_whose_reply_was_lost_is_driven() -> None:
    """The store has leased the run to this worker, who does not know it: it is given up and claimed again."""
    store = Forgetful()
    async with hf.open(store, work=False) as runtime:
        run = await runtime.start(short)
    store.lose_claim = True
    async with hf.open(store, hf.App(short)) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"
    assert not store.lose_claim
    row = await store.get(run.id)
    assert row is not None
    assert row.fence == 2


async def test_a_start_whose_answer_was_lost_is_driven_all_the_same() -> None:
    """The caller is told that nothing is known; the run is there, and its worker finds it."""
    store = Forgetful()
    async with hf.open(store, hf.App(short)) as runtime:
        store.lose_create = True
        with pytest.raises(StoreUnavailable):
            await runtime.start(short, key="k")
        run = await runtime.get(key="k")
        assert await run.result(timeout=20) == "done"


async def test_a_neighbour_that_is_driven_keeps_its_lease_while_the_rest_is_given_up() -> None:
    """Giving up what is not driven touches nothing that is."""
    store, hurdle = Forgetful(), Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(hurdle)
        return "slow"

    async with hf.open(store, hf.App(short, tale)) as runtime:
        slow = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        store.lose_create = True
        with pytest.raises(StoreUnavailable):
            await runtime.start(short, key="k")
        assert await (await runtime.get(key="k")).result(timeout=20) == "done"
        hurdle.open.set()
        assert await slow.result(timeout=20) == "slow"
        assert "RunResumed" not in await kinds_of(slow)
