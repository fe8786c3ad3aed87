"""A worker drives what is due, takes over from the dead, and sets aside what it cannot drive."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast import events
from holdfast.core import limits
from holdfast.core.checksum import checksum
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import RunId, WorkerId, id_bytes
from holdfast.runtime import Opening
from holdfast.store.answer import Answer
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Busy, Commit, Created, Existing, KeyTaken, Lease, NewRun, Outcome
from holdfast.testing.contract.story import Pen, a_lease
from tests.engine import driver
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, seen, soon

ROOT = Path(__file__).resolve().parents[2]
Driver = subprocess.Popen[str]


@pytest.fixture
def started(stage: Stage) -> Iterator[Driver]:
    """Another process that drives a run and stands in its second step."""
    command = [sys.executable, "-m", "tests.engine.driver", str(stage.path)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for word in ("first", "reached"):
        line = process.stdout.readline().strip()
        assert line == word, process.stderr.read() if process.stderr is not None else line
    yield process
    process.kill()
    process.communicate(timeout=30)


@hf.durable(name="tale")
async def quick(ctx: hf.Context) -> list[str]:
    """The same steps as the other process's, without its hurdle."""

    def wait_for_word() -> str:
        return "here"

    first = await ctx.step(driver.say, "first")
    waited = await ctx.step(wait_for_word)
    return [first, waited, await ctx.step(driver.say, "last")]


async def test_a_killed_workers_run_goes_on_at_once(stage: Stage, started: Driver) -> None:
    """Whoever can take its lock knows that it is dead: no lease has to run out, and nothing is repeated."""
    started.send_signal(signal.SIGKILL)
    started.wait(timeout=30)
    async with asyncio.timeout(limits.LEASE_SECONDS / 2), hf.open(f"sqlite:///{stage.path}", hf.App(quick)) as runtime:
        run = await runtime.get(key="k", of=quick)
        assert await run.result() == ["first", "here", "last"]
        assert (await run.info()).attempt == 2
        resumed = [entry for entry in await entries_of(run) if isinstance(entry, events.RunResumed)]
    assert [entry.fence for entry in resumed] == [2]
    assert not Path(f"{stage.path}-workers").exists()


async def test_a_worker_that_is_there_takes_over_when_another_dies(stage: Stage, started: Driver) -> None:
    """A running process notices a death beside it, in about a second."""
    async with hf.open(f"sqlite:///{stage.path}", hf.App(quick)) as runtime:
        run = await runtime.get(key="k", of=quick)
        assert (await run.info()).status is hf.Status.RUNNING
        started.send_signal(signal.SIGKILL)
        started.wait(timeout=30)
        assert await run.result(timeout=limits.LEASE_SECONDS / 2) == ["first", "here", "last"]


async def test_a_living_workers_run_is_left_alone(stage: Stage, started: Driver) -> None:
    """However slow its step, a worker that holds its lock keeps its runs."""
    async with hf.open(f"sqlite:///{stage.path}", hf.App(quick)) as runtime:
        run = await runtime.get(key="k")
        others = [worker for worker in await runtime.client.workers() if worker.runs]
        assert [list(worker.runs) for worker in others] == [[run.id]]
        assert (await run.info()).attempt == 1
        assert started.stdin is not None
        started.stdin.write("there\n")
        started.stdin.flush()
        assert await run.result(timeout=20) == ["first", "there", "last"]
        assert (await run.info()).attempt == 1
        assert "RunResumed" not in await kinds_of(run)


OURS = "(SELECT number FROM hf_runs WHERE key = 'k0')"
DAMAGE: dict[str, str] = {
    "an altered entry": f"UPDATE hf_entries SET body = replace(body, 'word', 'lie!') WHERE run = {OURS} AND seq = 2",
    "a missing entry": f"DELETE FROM hf_entries WHERE run = {OURS} AND seq = 1",
    "a cut tail": f"DELETE FROM hf_entries WHERE run = {OURS} AND seq = 2",
    "an altered row": f"UPDATE hf_runs SET last_seq = last_seq - 1 WHERE number = {OURS}",
    "another start": f"UPDATE hf_entries SET body = replace(body, 'default', 'another') WHERE run = {OURS} AND seq = 1",
    "a row of wrong types": f"UPDATE hf_runs SET head = 'text', labels = 7 WHERE number = {OURS}",
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_run_is_set_aside_and_the_others_go_on(stage: Stage, damage: str) -> None:
    """Damage stops the run it is in, before any effect, with the reason; its neighbours finish."""
    hurdle, performed = Hurdle(), list[str]()

    async def act(word: str) -> str:
        performed.append(word)
        return word

    @hf.durable
    async def tale(ctx: hf.Context, word: str) -> str:
        await ctx.step(act, word)
        await ctx.step(hurdle)
        return await ctx.step(act, word.upper())

    async with stage.open(tale) as runtime:
        runs = [await runtime.start(tale, f"word {n}", key=f"k{n}") for n in range(3)]
        for run in runs:
            await seen(run, lambda entry: isinstance(entry, events.StepCompleted))
    performed.clear()
    hurdle.open.set()
    stage.execute(DAMAGE[damage])
    async with stage.open(tale) as runtime:
        for n in (1, 2):
            assert await (await runtime.get(runs[n].id)).result(timeout=20) == f"WORD {n}"
        (summary,) = [run for run in await runtime.runs() if run.id == runs[0].id]
        with pytest.raises(hf.RunError, match="damaged"):
            await (await runtime.get(runs[0].id)).result(timeout=20)
        assert summary.status is hf.Status.QUARANTINED
        findings = [finding async for finding in runtime.client.verify()]
        assert {finding.run for finding in findings} == {runs[0].id}
        # Later starts are not held up either.
        assert await soon(runtime.run(tale, "late")) == "LATE"
    assert sorted(performed) == ["LATE", "WORD 1", "WORD 2", "late"]


async def test_an_entry_of_a_newer_version_waits_for_code_that_can_read_it(stage: Stage) -> None:
    """A run written by a newer Holdfast is left alone by this one: waiting, with the reason, untouched."""

    @hf.durable
    async def story(ctx: hf.Context) -> str:
        raise AssertionError("its code was started")

    store = await SqliteStore.open(str(stage.path), clock=stage.clock)
    pen = Pen(store, await a_lease(store))
    run, commit = pen.lease.row.run, pen.next("new")
    row = commit.entries[0]
    made = checksum(id_bytes(run), row.seq, row.at, 9, "RunTeleported", 0, commit.previous, b"{}")
    commit = replace(commit, entries=[row._replace(kind="RunTeleported", version=9, body=b"{}", checksum=made)])
    await store.commit(pen.lease, commit)
    await store.void(pen.lease.worker, why="test")
    await store.close()
    async with stage.open(story, version="1") as runtime:
        handle = await runtime.get(run)
        with pytest.raises(hf.RunError, match=r"unknown_entry: .*RunTeleported"):
            await handle.result(timeout=20)
        info = await handle.info()
        assert (info.status, info.last_seq) == (hf.Status.WAITING, 2)


@pytest.mark.parametrize("keyed", [False, True])
async def test_no_more_runs_are_driven_at_once_than_allowed(every: Stage, keyed: bool) -> None:
    """`concurrency` bounds a process, however many starts are under way; the rest waits, and nothing is forgotten."""
    now, most = 0, 0
    three = asyncio.Barrier(3)

    async def act() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await three.wait()
        now -= 1

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(act)

    async with every.open(tale, concurrency=3) as runtime:
        # A key is looked up before there is a lease: all twelve ask before the first has one.
        await soon(asyncio.gather(*(runtime.run(tale, key=f"k{n}" if keyed else None) for n in range(12))))
    assert most == 3


class Slow(MemoryStore):
    """A store whose first claim that brings something is answered when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def claim(self, *args: Any, **rest: Any) -> Sequence[Lease]:
        leases = await super().claim(*args, **rest)
        if leases and not self.asked.is_set():
            self.asked.set()
            await self.answered.wait()
        return leases


async def test_what_is_started_while_a_claim_is_under_way_finds_no_place_that_the_claim_fills() -> None:
    """The claim was promised the only place: the run that is started meanwhile waits for its turn."""
    now, most = 0, 0
    hurdle = Hurdle()

    async def act() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await hurdle()
        now -= 1

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(act)

    store = Slow()
    async with hf.open(store, hf.App(tale), work=False) as runtime:
        first = await runtime.start(tale)
        async with hf.open(store, hf.App(tale), concurrency=1) as worker:
            await soon(store.asked.wait())
            second = asyncio.create_task(worker.start(tale))
            await asyncio.sleep(0)
            store.answered.set()
            await soon(hurdle.reached.wait())
            run = await soon(second)
            hurdle.open.set()
            await soon(first.result())
            await soon(run.result())
    assert most == 1


async def test_a_start_does_not_wait_for_a_claim_that_is_not_answered() -> None:
    """It is created for whoever has a place, and driven when there is one."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    store = Slow()
    async with hf.open(store, hf.App(tale), work=False) as runtime:
        await runtime.start(tale)
        async with hf.open(store, hf.App(tale), concurrency=1) as worker:
            await soon(store.asked.wait())
            run = await soon(worker.start(tale))
            assert (await run.info()).status is hf.Status.QUEUED
            store.answered.set()
            assert await soon(run.result()) == "done"


async def test_a_retry_that_is_due_later_frees_its_place(stage: Stage) -> None:
    """A durable wait parks the run: with room for one, another run gets through meanwhile."""
    healthy = asyncio.Event()

    async def flaky() -> str:
        if not healthy.is_set():
            raise ConnectionError("down")
        return "up"

    @hf.durable
    async def tale(ctx: hf.Context, patient: bool) -> str:
        if not patient:
            return "quick"
        return await ctx.step(flaky, retry=hf.Retry(attempts=3, first=100.0, most=100.0))

    began = stage.clock()
    async with stage.open(tale, concurrency=1) as runtime:
        patient = await runtime.start(tale, True)
        assert await soon(runtime.run(tale, False)) == "quick"
        (rest,) = [entry for entry in await entries_of(patient) if isinstance(entry, events.RunParked)]
        assert rest.due_at is not None
        assert 50_000_000 <= rest.due_at - began <= 100_000_000
        healthy.set()
        stage.clock.advance(100)
        assert await patient.result(timeout=20) == "up"


async def test_a_delayed_run_starts_when_the_stores_clock_says_so(stage: Stage) -> None:
    """Timers follow the store's clock, across openings."""
    started = asyncio.Event()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        started.set()
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, delay=3600)
        assert await soon(runtime.run(tale)) == "done"
        assert (await run.info()).status is hf.Status.QUEUED
    stage.clock.advance(3600)
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"


class Moody(MemoryStore):
    """A store that can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.refused = False, asyncio.Event()

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Write, unless it is down."""
        if not self.down:
            return super().commit(lease, change)
        self.refused.set()
        answer = Answer()
        answer.set_exception(StoreUnavailable("the disk is full"))
        return answer


@pytest.mark.parametrize("catches", [False, True], ids=["plain code", "code that catches everything"])
async def test_an_outage_of_the_store_fails_no_run(catches: bool) -> None:
    """A full disk is not the run's failure: it goes on when the store answers again, and nothing recorded repeats."""
    store, performed = Moody(), list[str]()

    async def act(word: str) -> str:
        performed.append(word)
        if word == "b" and performed.count("b") == 1:
            store.down = True
        return word

    async def compensate() -> None:
        performed.append("compensated")

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        words = [await ctx.step(act, "a")]
        try:
            words.append(await ctx.step(act, "b"))
        except Exception:
            if not catches:
                raise
            await ctx.step(compensate)
        return [*words, await ctx.step(act, "c")]

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.refused.wait())
        store.down = False
        assert await run.result(timeout=20) == ["a", "b", "c"]
        assert (await run.info()).status is hf.Status.COMPLETED
    assert performed == ["a", "b", "b", "c"]


class Interrupting(MemoryStore):
    """A store in which something happens between a creation and its answer."""

    between: Any = None

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Busy | Created | Existing | KeyTaken:
        """Create, let something happen, and answer."""
        created = await super().create(new, worker=worker)
        if self.between is not None:
            await self.between()
        return created


async def test_a_run_just_started_is_not_given_up_by_its_own_worker() -> None:
    """A worker that gives up what it owns and does not drive must not meet a start that is under way."""
    store = Interrupting()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    async with hf.open(store, hf.App(tale)) as runtime:
        worker = runtime._worker
        assert worker is not None
        store.between = worker.reap
        run = await runtime.start(tale, key="k")
        store.between = None
        assert await run.result(timeout=20) == "done"
        assert await kinds_of(run) == ["RunStarted", "RunFinished"]


async def test_a_run_that_nobody_serves_waits_for_somebody_who_does(stage: Stage) -> None:
    """A process that does not know the code leaves the run to one that does."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return "done"

    @hf.durable
    async def other(ctx: hf.Context) -> str:
        return "other"

    async with stage.open(tale, work=False) as runtime:
        run = await runtime.start(tale)
    async with stage.open(other) as runtime:
        assert await soon(runtime.run(other)) == "other"
        assert (await (await runtime.get(run.id)).info()).status is hf.Status.QUEUED
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "done"


async def test_a_run_whose_worker_dies_before_each_entry_is_quarantined_and_its_neighbour_is_not(stage: Stage) -> None:
    """Poison is counted in the row before anything is loaded; whoever makes progress is not charged."""
    poison, hurdle = Hurdle(), Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context, bad: bool) -> str:
        if bad:
            await poison()
        for n in range(20):
            await ctx.step(asyncio.sleep, 0, key=str(n))
            if n == life:
                await hurdle()
        return "done"

    life = 0
    async with stage.open(tale, work=False) as runtime:
        bad, good = await runtime.start(tale, True), await runtime.start(tale, False)
    for life in range(limits.STALLS):  # noqa: B007 - read by the run's code
        poison.reached.clear()
        hurdle.reached.clear()
        async with stage.open(tale):
            await soon(poison.reached.wait())
            await soon(hurdle.reached.wait())
            await stage.declare_dead()
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(good.id)).result(timeout=20) == "done"
        with pytest.raises(hf.RunError, match="no_progress: 5 workers died") as aside:
            await (await runtime.get(bad.id)).result(timeout=20)
        assert aside.value.status == "quarantined"


async def test_a_suspect_that_only_wrote_another_intent_is_driven_alone(stage: Stage) -> None:
    """Another intent of the step that kills is no progress: whoever was driven beside it would be charged with it."""
    step, waiting = Hurdle(), Hurdle()

    @hf.durable
    async def bad(ctx: hf.Context) -> None:
        await ctx.step(step, effect="keyed", name="kills", key="kills")

    @hf.durable
    async def good(ctx: hf.Context) -> None:
        await waiting()

    @hf.durable
    async def fresh(ctx: hf.Context) -> str:
        return "done"

    async with stage.open(bad, good, fresh, work=False) as runtime:
        poison, neighbour = await runtime.start(bad), await runtime.start(good)
    for _ in range(2):
        step.reached.clear()
        waiting.reached.clear()
        async with stage.open(bad, good, fresh):
            await soon(step.reached.wait())
            await soon(waiting.reached.wait())
            await stage.declare_dead()
    step.reached.clear()
    async with stage.open(work=False) as runtime:
        # A worker that was declared dead may have come back as another before it was closed.
        before = (await runtime.client.info(neighbour.id)).attempt, (await runtime.client.info(poison.id)).attempt
    async with stage.open(bad, good, fresh) as runtime:
        await soon(step.reached.wait())
        # Each of these is found by another claim, which would have taken the other suspect too.
        for _ in range(3):
            assert await soon(runtime.run(fresh)) == "done"
            await claimed(runtime)
        after = (await runtime.client.info(neighbour.id)).attempt, (await runtime.client.info(poison.id)).attempt
    assert after == (before[0], before[1] + 1)


async def claimed(runtime: hf.Runtime) -> None:
    """Return when the worker has claimed what was due at the moment."""
    worker = runtime._worker
    assert worker is not None
    await soon(worker._claim())


async def test_a_worker_for_one_run_takes_it_again_after_losing_its_lease() -> None:
    """A lease lost to a store that was away must not leave `hf.run` waiting for a run that nobody drives."""
    store, hurdle = MemoryStore(), Hurdle()

    async def stand() -> str:
        await hurdle()
        return "stood"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(stand)

    async with Opening(store, hf.App(tale), work=True, concurrency=4, only=set()) as runtime:
        worker = runtime._worker
        assert worker is not None
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        assert await store.release(worker.id) == 1
        hurdle.open.set()
        assert await run.result(timeout=20) == "stood"


class Unkind(SqliteStore):
    """A store that is out of reach when its worker says goodbye."""

    async def release(self, worker: WorkerId, *, keep: Sequence[RunId] = ()) -> int:
        """Fail."""
        raise StoreUnavailable("the disk is full")


async def test_a_worker_whose_goodbye_was_not_heard_is_known_to_be_dead_at_once(stage: Stage) -> None:
    """It leaves its lock behind, free: the next process takes its runs over without waiting for a lease to lapse."""

    async def stand() -> str:
        await asyncio.Event().wait()
        return "never"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(stand)

    runtime = await hf.open(await Unkind.open(str(stage.path)), hf.App(tale))
    run = await runtime.start(tale)
    worker = runtime._worker
    assert worker is not None
    await runtime.close()
    async with stage.open(work=False) as looking:
        assert (await (await looking.get(run.id)).info()).status is hf.Status.RUNNING
    async with stage.open():
        store = await SqliteStore.open(str(stage.path))
        assert worker.id not in [row.worker for row in await store.workers()]
        await store.close()
