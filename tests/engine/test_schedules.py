"""A schedule's ticks have one run each, whoever was there and whoever was not."""

import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import TENANT, WorkerId
from holdfast.core.stepkey import join_key
from holdfast.engine.schedule import as_instant
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Busy, Created, Existing, KeyTaken, NewRun
from holdfast.testing import MovingClock
from tests.engine import ticker
from tests.engine.stage import Hurdle, Stage, soon
from tests.rigs.waiting import until

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@hf.durable
async def report(ctx: hf.Context, at: datetime) -> str:
    """Say which tick it is."""
    return at.isoformat()


def hourly(**options: Any) -> hf.App:
    """Return an app whose `report` runs at every full hour."""
    app = hf.App()
    app.schedule(report, "@hourly", **options)
    return app


def hours(*numbers: int) -> list[datetime]:
    """Return full hours since midnight."""
    return [MIDNIGHT + number * HOUR for number in numbers]


def hour(number: int) -> datetime:
    """Return one of them."""
    return MIDNIGHT + number * HOUR


def key_of(tick: datetime, name: str = "report") -> tuple[str, ...]:
    """Return the key of a tick's run, as the documentation says it."""
    return ("schedule", name, tick.strftime("%Y-%m-%dT%H:%M:%SZ"))


async def run_of(runtime: hf.Runtime, tick: datetime, name: str = "report") -> hf.Run[Any]:
    """Return the run of a tick, once it is there."""

    async def is_there() -> bool:
        return await runtime._store.find(TENANT, join_key(key_of(tick, name))) is not None

    await until(is_there, what=f"the run of {tick}")
    return await runtime.get(key=key_of(tick, name))


async def seen_first(runtime: hf.Runtime, count: int = 1) -> None:
    """Return when the store knows this many schedules."""

    async def are_known() -> bool:
        return len(await runtime.runs(name="holdfast:schedule", status="completed")) == count

    await until(are_known, what="the first look")


async def looked(runtime: hf.Runtime) -> None:
    """Return when every schedule was looked after up to now, by the store's clock."""
    scheduler = runtime._scheduler
    assert scheduler is not None

    async def is_done() -> bool:
        now = as_instant(runtime._store.now())
        return all(watch.next is not None and watch.next > now for watch in scheduler._watches)

    await until(is_done, what="a look at every schedule")


async def ticks_of(runtime: hf.Runtime, name: str = "report") -> list[datetime]:
    """Return the ticks that have a run, oldest first; a tick with two runs stands there twice."""
    runs = await runtime.runs(name="report", labels={"schedule": name}, limit=1000)
    return sorted(datetime.fromisoformat(run.labels["tick"]) for run in runs)


Opened = Callable[[hf.App], Any]


@pytest.fixture(params=["sqlite", "postgresql"])
def opened(request: pytest.FixtureRequest, stage: Stage, clock: MovingClock) -> Opened:
    """Open one store again and again, each time as a process of its own would."""
    address = request.getfixturevalue("postgres_store") if request.param == "postgresql" else None

    @asynccontextmanager
    async def open_app(app: hf.App) -> AsyncIterator[hf.Runtime]:
        store: Store
        if address is not None:
            store = await PostgresStore.open(address, clock=clock)
        else:
            store = await SqliteStore.open(str(stage.path), clock=clock)
        async with hf.open(store, app) as runtime:
            yield runtime

    return open_app


async def test_a_tick_starts_a_run_that_knows_it(opened: Opened, clock: MovingClock) -> None:
    """The function gets its tick, and whoever looks finds the run by key and by label."""
    async with opened(hourly()) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        run = await run_of(runtime, hour(1))
        assert await run.result(timeout=20) == "2026-01-01T01:00:00+00:00"
        assert (await run.info()).labels == {"schedule": "report", "tick": "2026-01-01T01:00:00Z"}
        assert await ticks_of(runtime) == hours(1)


async def test_three_workers_start_one_run_of_each_tick(opened: Opened, clock: MovingClock) -> None:
    """However the clock jumps and whoever is first, no tick has two runs and none has none."""
    apps = [hourly(missed="all") for _ in range(3)]
    async with opened(apps[0]) as one, opened(apps[1]) as two, opened(apps[2]) as three:
        await seen_first(one)
        for number in range(1, 25):
            clock.advance(HOUR)
            if number % 3 == 0:
                await run_of(two, hour(number))
        for runtime in (one, two, three):
            await looked(runtime)
        assert await ticks_of(one) == hours(*range(1, 25))


@pytest.mark.parametrize(
    ("missed", "wanted"),
    [("skip", [1, 10]), ("last", [1, 10]), ("all", [1, *range(2, 11)])],
)
async def test_after_hours_away_a_worker_does_what_was_declared(
    opened: Opened, clock: MovingClock, missed: str, wanted: list[int]
) -> None:
    """Skipped, one run, or all of them; a tick that is only late is never lost."""
    async with opened(hourly(missed=missed)) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        await run_of(runtime, hour(1))
    clock.advance(9 * HOUR + timedelta(seconds=limits.LATE_SECONDS))
    async with opened(hourly(missed=missed)) as runtime:
        await run_of(runtime, hour(10))
        await looked(runtime)
        assert await ticks_of(runtime) == hours(*wanted)


@pytest.mark.parametrize(("missed", "wanted"), [("skip", [1]), ("last", [1, 10]), ("all", [1, *range(2, 11)])])
async def test_a_tick_older_than_late_is_missed(
    opened: Opened, clock: MovingClock, missed: str, wanted: list[int]
) -> None:
    """A second more than late is missed, and then the declaration decides about the latest tick too."""
    async with opened(hourly(missed=missed)) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        await run_of(runtime, hour(1))
    clock.advance(9 * HOUR + timedelta(seconds=limits.LATE_SECONDS + 1))
    async with opened(hourly(missed=missed)) as runtime:
        await looked(runtime)
        assert await ticks_of(runtime) == hours(*wanted)


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
async def test_a_schedule_has_no_ticks_before_it_was_first_seen(stage: Stage, clock: MovingClock, missed: str) -> None:
    """Whoever deploys a schedule a minute after its hour does not start it at once."""
    clock.advance(HOUR + timedelta(minutes=1))
    async with _on(stage, hourly(missed=missed)) as runtime:
        await looked(runtime)
        assert await ticks_of(runtime) == []
        clock.advance(timedelta(minutes=59))
        await run_of(runtime, hour(2))
        assert await ticks_of(runtime) == hours(2)


@asynccontextmanager
async def _on(stage: Stage, app: hf.App, store: Store | None = None) -> AsyncIterator[hf.Runtime]:
    store = store or await SqliteStore.open(str(stage.path), clock=stage.clock)
    async with hf.open(store, app) as runtime:
        yield runtime


async def test_a_changed_expression_begins_anew(stage: Stage, clock: MovingClock) -> None:
    """Ticks that the new expression would have had before it was declared were not missed."""
    async with _on(stage, hourly(missed="all")) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        await run_of(runtime, hour(1))
    clock.advance(3 * HOUR)
    changed = hf.App()
    changed.schedule(report, "30 * * * *", missed="all")
    async with _on(stage, changed) as runtime:
        await looked(runtime)
        assert await ticks_of(runtime) == hours(1)
        clock.advance(timedelta(minutes=30))
        await run_of(runtime, MIDNIGHT + 4.5 * HOUR)
        assert await ticks_of(runtime) == [*hours(1), MIDNIGHT + 4.5 * HOUR]


async def test_what_was_skipped_is_not_made_up_for_later(stage: Stage, clock: MovingClock) -> None:
    """Missed are ticks since the last that has a run: what lies before it was decided about."""
    for app, wanted in ((hourly(), []), (hourly(), [10]), (hourly(missed="all"), [10, 11, 12])):
        async with _on(stage, app) as runtime:
            await looked(runtime)
            assert await ticks_of(runtime) == hours(*wanted)
        clock.advance(10 * HOUR if not wanted else 2 * HOUR)


async def test_no_more_than_the_limit_is_made_up_for(
    stage: Stage, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a long time away the latest missed ticks run, and the flood is bounded."""
    monkeypatch.setattr(limits, "MISSED_TICKS", 5)
    async with _on(stage, hourly(missed="all")) as runtime:
        await seen_first(runtime)
    clock.advance(100 * HOUR)
    async with _on(stage, hourly(missed="all")) as runtime:
        await looked(runtime)
        assert await ticks_of(runtime) == hours(*range(96, 101))


async def test_a_deleted_run_is_not_run_again(stage: Stage, clock: MovingClock) -> None:
    """Keys outlive their runs, the one that says since when the schedule is known too."""
    async with _on(stage, hourly(missed="all")) as runtime:
        await seen_first(runtime)
        for number in range(1, 4):
            clock.advance(HOUR)
            await (await run_of(runtime, hour(number))).result(timeout=20)
    for table in ("hf_entries", "hf_runs"):
        stage.execute(f"DELETE FROM {table}")
    async with _on(stage, hourly(missed="all")) as runtime:
        await looked(runtime)
        assert await ticks_of(runtime) == []
        clock.advance(HOUR)
        await run_of(runtime, hour(4))
        assert await ticks_of(runtime) == hours(4)


async def test_arguments_that_changed_do_not_stop_a_schedule(stage: Stage, clock: MovingClock) -> None:
    """In a rolling deploy the tick of an old worker is the tick, whatever a new worker would have said."""

    @hf.durable
    async def send(ctx: hf.Context, team: str) -> str:
        return team

    def app(team: str) -> hf.App:
        made = hf.App()
        made.schedule(send, "@hourly", args=(team,))
        return made

    async with _on(stage, app("old")) as old, _on(stage, app("new")) as new:
        await seen_first(old)
        for number in (1, 2):
            clock.advance(HOUR)
            run = await run_of(new, hour(number), name="send")
            assert await run.result(timeout=20) in ("old", "new")
            await looked(old)
            await looked(new)
        assert len(await new.runs(name="send")) == 2


async def test_a_run_that_is_open_holds_back_the_next_ticks(stage: Stage, clock: MovingClock) -> None:
    """With overlap="skip" a tick that comes while the last run is open has none; the first after it has one."""
    hurdle, app = Hurdle(), hf.App()

    @hf.durable
    async def slow(ctx: hf.Context, at: datetime) -> None:
        await ctx.step(hurdle)

    app.schedule(slow, "@hourly", overlap="skip", name="report", missed="all")
    async with _on(stage, app) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        run = await run_of(runtime, hour(1))
        await soon(hurdle.reached.wait())
        for _ in range(3):
            clock.advance(HOUR)
            await looked(runtime)
        clock.advance(HOUR / 2)
        hurdle.open.set()
        await run.result(timeout=20)
        clock.advance(HOUR / 2)
        await (await run_of(runtime, hour(5))).result(timeout=20)
        made = await runtime.runs(name="slow")
        assert sorted(run.labels["tick"][11:13] for run in made) == ["01", "05"]


async def test_another_process_agrees_on_which_ticks_were_held_back(stage: Stage, clock: MovingClock) -> None:
    """A restart does not make up for a tick that came while the last run was open: that was no missed one."""
    hurdle, app = Hurdle(), hf.App()

    @hf.durable
    async def slow(ctx: hf.Context, at: datetime) -> None:
        await ctx.step(hurdle)

    app.schedule(slow, "@hourly", overlap="skip", name="report", missed="all")
    async with _on(stage, app) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        await run_of(runtime, hour(1))
        await soon(hurdle.reached.wait())
        clock.advance(2.5 * HOUR)
        hurdle.open.set()
        await (await run_of(runtime, hour(1))).result(timeout=20)
    async with _on(stage, app) as runtime:
        await looked(runtime)
        assert [run.labels["tick"][11:13] for run in await runtime.runs(name="slow")] == ["01"]
        clock.advance(HOUR / 2)
        await run_of(runtime, hour(4))


async def test_overlap_is_allowed_unless_it_is_said_otherwise(stage: Stage, clock: MovingClock) -> None:
    """Each tick has its run though the one before is still open."""
    hurdle, app = Hurdle(), hf.App()

    @hf.durable
    async def slow(ctx: hf.Context) -> None:
        await ctx.step(hurdle)

    app.schedule(slow, "@hourly", name="report")
    async with _on(stage, app) as runtime:
        await seen_first(runtime)
        for number in (1, 2):
            clock.advance(HOUR)
            await run_of(runtime, hour(number))
        assert [run.status for run in await runtime.runs(name="slow")] == ["running", "running"]
        hurdle.open.set()


async def test_a_run_that_is_open_for_longer_than_is_looked_back_still_holds(
    stage: Stage, clock: MovingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the walk over keys ends, the labels tell."""
    monkeypatch.setattr(limits, "MISSED_TICKS", 3)
    hurdle, app = Hurdle(), hf.App()

    @hf.durable
    async def slow(ctx: hf.Context) -> None:
        await ctx.step(hurdle)

    app.schedule(slow, "@hourly", name="report", overlap="skip")
    async with _on(stage, app) as runtime:
        await seen_first(runtime)
        clock.advance(HOUR)
        await run_of(runtime, hour(1))
        await soon(hurdle.reached.wait())
    clock.advance(20 * HOUR)
    async with _on(stage, app) as runtime:
        await looked(runtime)
        assert len(await runtime.runs(name="slow")) == 1


async def test_a_worker_that_drains_starts_none(stage: Stage, clock: MovingClock) -> None:
    """Who is about to leave leaves the tick to others."""
    async with _on(stage, hourly()) as leaving:
        await seen_first(leaving)
        await leaving.drain()
        clock.advance(HOUR)
        assert leaving._scheduler is not None
        assert leaving._scheduler._task is not None
        assert leaving._scheduler._task.done()
        assert await ticks_of(leaving) == []
        async with _on(stage, hourly()) as staying:
            await run_of(staying, hour(1))


async def test_a_runtime_that_does_not_work_starts_none(stage: Stage, clock: MovingClock) -> None:
    """Looking at a store starts nothing."""
    store = await SqliteStore.open(str(stage.path), clock=clock)
    async with hf.open(store, hourly(), work=False) as runtime:
        assert runtime._scheduler is None


class Failing(MemoryStore):
    """A store that is away for a while, and whose answers may be lost."""

    def __init__(self, clock: MovingClock) -> None:
        super().__init__(clock=clock)
        self.fail: list[Callable[[NewRun], Awaitable[None]]] = []

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Busy | Created | Existing | KeyTaken:
        """Fail, or create and lose the reply, as long as that is asked for."""
        if self.fail and new.row.name == "report":
            await self.fail.pop(0)(new)
        return await super().create(new, worker=worker)

    async def be_away(self, new: NewRun) -> None:
        """Do not answer."""
        raise StoreUnavailable("the store is away")

    async def lose_reply(self, new: NewRun) -> None:
        """Do it, and let nobody know."""
        await super().create(new)
        raise StoreUnavailable("the line was cut")


@pytest.mark.parametrize("how", ["be_away", "lose_reply"])
async def test_a_tick_that_the_store_did_not_take_is_tried_again(
    clock: MovingClock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A store that fails costs no tick, and a reply that was lost makes no second run."""
    monkeypatch.setattr("holdfast.engine.scheduler._BACK_OFF_SECONDS", 0.01)
    store = Failing(clock)
    async with hf.open(store, hourly()) as runtime:
        await seen_first(runtime)
        store.fail += [getattr(store, how)] * 2
        clock.advance(HOUR)
        run = await run_of(runtime, hour(1))
        assert await run.result(timeout=20) == "2026-01-01T01:00:00+00:00"
        await looked(runtime)
        assert (store.fail, await ticks_of(runtime)) == ([], hours(1))


async def test_one_schedule_that_cannot_be_started_holds_up_no_other(clock: MovingClock) -> None:
    """Each schedule is looked after by itself."""

    @hf.durable
    async def other(ctx: hf.Context) -> None:
        pass

    store, app = Failing(clock), hourly()
    app.schedule(other, "@hourly")
    async with hf.open(store, app) as runtime:
        await seen_first(runtime, 2)
        store.fail += [store.be_away] * 1000
        clock.advance(HOUR)
        await (await run_of(runtime, hour(1), name="other")).result(timeout=20)
        assert await ticks_of(runtime) == []


async def test_a_loop_that_was_blocked_starts_its_ticks_late(clock: MovingClock, stage: Stage) -> None:
    """Ticks that passed between two looks are started at the next."""
    app = hf.App()
    app.schedule(report, "* * * * *")
    async with _on(stage, app) as runtime:
        await seen_first(runtime)
        clock.advance(timedelta(minutes=4))
        await run_of(runtime, MIDNIGHT + timedelta(minutes=4))
        ticks = await ticks_of(runtime)
        assert len(ticks) == 4
        assert all(later - earlier == timedelta(minutes=1) for earlier, later in pairwise(ticks))


def kill_at_the_tick(path: str, now: int) -> None:
    """Let a process come to where it starts the run of the first hour, and kill it there."""
    command = [sys.executable, "-m", "tests.engine.ticker", path, str(now)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "seen\n"
        process.stdin.write("3600\n")
        process.stdin.flush()
        assert process.stdout.readline() == "about to start\n"
        process.kill()
        assert process.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
async def test_a_kill_between_tick_and_run_loses_no_tick(stage: Stage, clock: MovingClock, missed: str) -> None:
    """A process that dies by SIGKILL when it is about to start a tick's run leaves the tick to the next one."""
    kill_at_the_tick(str(stage.path), clock())
    clock.advance(HOUR + timedelta(seconds=20))
    async with _on(stage, ticker.hourly(missed)) as runtime:
        assert await (await run_of(runtime, hour(1))).result(timeout=20) == "done"
        assert await ticks_of(runtime) == hours(1)
