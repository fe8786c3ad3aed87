"""What is old goes: by whose word, in which order, and never what somebody still needs."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.client.archive import read_archive
from holdfast.client.local import LocalClient
from holdfast.client.protocol import Collected, Retention
from holdfast.client.retention import Choice
from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId, new_run_id
from holdfast.core.status import TERMINAL, Status
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.value import Deleted, RowChange, RunFilter, RunRow
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import Pen, a_lease, a_run
from tests.engine.stage import Hurdle, Stage, soon
from tests.unit.endings import LARGE, an_ended_run

DAY = timedelta(days=1)


def told(text: str) -> str:
    """Say it."""
    return text


@hf.durable
async def say(ctx: hf.Context, text: str) -> str:
    """Say something once."""
    return await ctx.step(told, text)


# Deleting one


async def test_a_run_that_has_ended_is_deleted_by_its_handle(stage: Stage) -> None:
    """It is not found any more, by id or by key, and deleting it again does no harm."""
    async with stage.open(say) as runtime:
        run = await runtime.start(say, "hello", key="k")
        assert await soon(run.result()) == "hello"
        assert await run.delete() is True
        assert await run.delete() is False
        with pytest.raises(hf.NotFound):
            await run.info()
        with pytest.raises(hf.NotFound):
            await runtime.get(key="k")
        assert await runtime.runs() == []


async def test_a_start_with_a_deleted_runs_key_is_told_so(stage: Stage) -> None:
    """The same key never does the work twice, and never waits for a run that is not there."""
    async with stage.open(say) as runtime:
        run = await runtime.start(say, "hello", key="k")
        await soon(run.result())
        await run.delete()
        with pytest.raises(hf.Conflict, match=f"key 'k' belongs to run {run.id}, which was deleted") as refused:
            await runtime.start(say, "hello", key="k")
        assert "another key" in refused.value.hint
        assert refused.value.run == run.id
        with pytest.raises(hf.Conflict, match="whose input differs"):
            await runtime.start(say, "goodbye", key="k")
        assert await runtime.runs() == []
        assert await soon(runtime.run(say, "hello", key="another")) == "hello"


async def test_an_open_run_is_not_deleted(stage: Stage) -> None:
    """It is told to be cancelled first, and goes on as if nobody had asked."""
    hurdle = Hurdle()

    @hf.durable
    async def waits(ctx: hf.Context) -> str:
        await ctx.step(hurdle, name="hurdle")
        return "over"

    async with stage.open(waits) as runtime:
        run = await runtime.start(waits)
        await soon(hurdle.reached.wait())
        with pytest.raises(hf.Conflict, match="has not ended") as refused:
            await run.delete()
        assert "Cancel it first" in refused.value.hint
        hurdle.open.set()
        assert await soon(run.result()) == "over"


async def test_a_child_of_an_open_run_is_not_deleted(clock: MovingClock) -> None:
    """The error names the run that may still ask for it."""
    store = MemoryStore(clock=clock)
    parent = (await a_lease(store)).row.run
    child = await an_ended_run(store, parent=parent)
    with pytest.raises(hf.Conflict, match="the run that spawned it has not") as refused:
        await LocalClient(store).delete(child)
    assert parent in refused.value.hint


async def test_a_foreign_run_is_not_deleted_and_not_told_of(clock: MovingClock) -> None:
    """The answer for another tenant's run is that of one that is not there."""
    store = MemoryStore(clock=clock)
    run = await an_ended_run(store, tenant="theirs")
    assert await LocalClient(store).delete(run) is False
    assert await LocalClient(store).delete(new_run_id()) is False
    assert await store.get(run) is not None
    policy = Retention(older_than_seconds=0)
    clock.advance(1)
    assert await LocalClient(store).gc(policy) == Collected()
    assert await LocalClient(store, tenant="theirs").gc(policy) == Collected(deleted=1)


async def test_whoever_waits_for_a_run_that_is_deleted_is_told(stage: Stage) -> None:
    """A follower that comes too late finds nothing, instead of waiting for ever."""
    async with stage.open(say) as runtime:
        run = await runtime.start(say, "hello")
        await soon(run.result())
        await run.delete()
        with pytest.raises(hf.NotFound):
            await soon(run.result())
        with pytest.raises(hf.NotFound):
            await soon(anext(run.events()))


# Which may go


def row(name: str = "a", *, ended: float | None, status: Status = Status.COMPLETED, **rest: Any) -> RunRow:
    """Return a run's row that ended so many seconds ago; None for one that has not."""
    at = 1000 - int((ended or 0) * 1e6)
    stands = status if ended is not None else Status.WAITING
    return RunRow(
        run=new_run_id(), number=1, tenant="t", name=name, digest="", created_at=0, updated_at=at, status=stands, **rest
    )


def taken(policy: Retention, rows: Sequence[RunRow]) -> list[int]:
    """Return the places of those that may go, of rows that stand the newest first."""
    choice = Choice(policy, now=1000)
    return [place for place, row in enumerate(rows) if choice.takes(row)]


def test_age_is_counted_from_the_ending() -> None:
    """What ended exactly so long ago stays; what has not ended, or is damaged, is not asked for its age."""
    rows = [row(ended=9), row(ended=10), row(ended=11), row(ended=None), row(ended=99, damage="flipped")]
    assert taken(Retention(older_than_seconds=10), rows) == [2]


def test_only_the_endings_that_are_named_go() -> None:
    """Failures may be kept longer than successes."""
    rows = [row(ended=11, status=status) for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)]
    failed = frozenset({Status.FAILED, Status.CANCELLED})
    assert taken(Retention(older_than_seconds=10, statuses=failed), rows) == [1, 2]


def test_what_a_store_remembers_its_schedules_by_goes_only_if_it_is_named() -> None:
    """Whoever clears old runs away does not mean that; who names it does."""
    rows = [row("holdfast:schedule", ended=11), row("a", ended=11)]
    assert taken(Retention(older_than_seconds=10), rows) == [1]
    assert taken(Retention(older_than_seconds=10, name="holdfast:schedule"), rows[:1]) == [0]


def test_the_newest_of_each_name_are_kept() -> None:
    """Young ones count among them; open ones and other endings do not."""
    rows = [row("a", ended=1), row("b", ended=11), row("a", ended=None), row("a", ended=11), row("a", ended=12)]
    rows += [row("b", ended=13, status=Status.FAILED), row("b", ended=14), row("b", ended=15)]
    completed = frozenset({Status.COMPLETED})
    assert taken(Retention(older_than_seconds=10, statuses=completed, keep=2), rows) == [4, 7]
    assert taken(Retention(older_than_seconds=10, statuses=completed), rows) == [1, 3, 4, 6, 7]


def test_a_conversations_turns_stay_as_long_as_its_latest() -> None:
    """A chat that goes on keeps what was said in it."""
    rows = [row(ended=1, conversation="x"), row(ended=11, conversation="y"), row(ended=12, conversation="x")]
    rows += [row(ended=None, conversation="z"), row(ended=13, conversation="z"), row(ended=14, conversation="y")]
    assert taken(Retention(older_than_seconds=10), rows) == [1, 5]


# Deleting what is old


async def some_runs(store: Store, clock: MovingClock, count: int, **start: Any) -> list[RunId]:
    """Return runs that ended an hour after another, the last one an hour ago."""
    runs = []
    for number in range(count):
        runs.append(await an_ended_run(store, f"run {number}", **start))
        clock.advance(3600)
    return runs


async def test_what_ended_long_ago_goes_and_the_rest_stays(stage: Stage) -> None:
    """From a runtime, by a time, with what was done as the answer."""
    async with stage.open(say) as runtime:
        old = [await runtime.start(say, f"{n}", key=("old", n)) for n in range(3)]
        for run in old:
            await soon(run.result())
        stage.clock.advance(DAY)
        young = await runtime.start(say, "young")
        await soon(young.result())
        stage.clock.advance(1)
        assert await runtime.gc(DAY, dry_run=True) == Collected(deleted=3, dry_run=True)
        assert len(await runtime.runs()) == 4
        assert await runtime.gc(DAY) == Collected(deleted=3)
        assert [run.id for run in await runtime.runs()] == [young.id]
        assert await runtime.gc(DAY) == Collected()
        assert await runtime.gc(0.5, name="another") == Collected()
        assert await runtime.gc(0.5, status="failed") == Collected()
        assert await runtime.gc(0.5, keep=1) == Collected()
        assert await runtime.gc(0.5, status=["completed", hf.Status.FAILED], name="say") == Collected(deleted=1)


@pytest.mark.parametrize(
    "asked",
    [
        {"older_than": -1}, {"older_than": "30d"}, {"older_than": DAY, "status": "open"},
        {"older_than": DAY, "status": []}, {"older_than": DAY, "status": [Status.WAITING]},
        {"older_than": DAY, "keep": -1}, {"older_than": DAY, "keep": True}, {"older_than": DAY, "name": ""},
    ],
)  # fmt: skip
async def test_a_policy_that_is_none_is_refused(stage: Stage, asked: dict[str, Any]) -> None:
    """Nothing is deleted by a slip."""
    async with stage.open(say) as runtime:
        await soon(runtime.run(say, "hello"))
        stage.clock.advance(2 * DAY)
        with pytest.raises(ValueError):
            await runtime.gc(**asked)
        assert len(await runtime.runs()) == 1


async def test_any_number_of_runs_goes_in_batches(clock: MovingClock) -> None:
    """Each batch is a transaction of its own, bounded in runs and in entries, and is told of."""
    batches: list[int] = []

    class Counting(MemoryStore):
        async def delete(self, runs: Sequence[RunId], *, trial: bool = False) -> Deleted:
            batches.append(len(runs))
            return await super().delete(runs, trial=trial)

    store = Counting(clock=clock)
    await some_runs(store, clock, 120)
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next(*(str(n) for n in range(6000))))
    await store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.FAILED)))
    clock.advance(2)
    told: list[int] = []
    done = await LocalClient(store).gc(Retention(older_than_seconds=1), tell=lambda so_far: told.append(so_far.deleted))
    assert done == Collected(deleted=121)
    assert batches == [1, 50, 50, 20]
    assert told == [1, 51, 101, 121]


async def test_what_an_open_run_needs_is_kept_and_counted(clock: MovingClock) -> None:
    """A clean-up goes on around what must stay, and says how many and why."""
    store = MemoryStore(clock=clock)
    parent = (await a_lease(store)).row.run
    child = await an_ended_run(store, parent=parent)
    ended = await an_ended_run(store)
    grandchild = a_run(store, parent=ended)
    await store.create(grandchild)
    clock.advance(10)
    client = LocalClient(store)
    expected = Collected(deleted=0, kept={"children": 1, "parent": 1})
    assert await client.gc(Retention(older_than_seconds=1)) == expected
    assert await client.gc(Retention(older_than_seconds=1), dry_run=True) == msgspec.structs.replace(
        expected, dry_run=True
    )
    for run in (parent, child, ended):
        assert await store.get(run) is not None


async def test_a_tree_that_has_ended_goes_as_a_whole(clock: MovingClock) -> None:
    """Parents and children do not keep each other."""
    store = MemoryStore(clock=clock)
    root = await an_ended_run(store)
    for _ in range(3):
        child = await an_ended_run(store, parent=root)
        await an_ended_run(store, parent=child)
    clock.advance(10)
    assert await LocalClient(store).gc(Retention(older_than_seconds=1)) == Collected(deleted=7)


async def test_blobs_that_nothing_names_go_after_a_day(clock: MovingClock) -> None:
    """A clean-up sweeps, whether it deleted anything or not."""
    store = MemoryStore(clock=clock)
    run = await an_ended_run(store, input=LARGE)
    client = LocalClient(store)
    await client.delete(run)
    assert await client.gc(Retention(older_than_seconds=1)) == Collected()
    clock.advance(DAY)
    assert await client.gc(Retention(older_than_seconds=1), dry_run=True) == Collected(dry_run=True)
    assert await client.gc(Retention(older_than_seconds=1)) == Collected()
    clock.advance(1)
    assert await client.gc(Retention(older_than_seconds=1)) == Collected(blobs=1)


# Archiving


async def test_what_goes_is_in_the_archive(clock: MovingClock, tmp_path: Path) -> None:
    """Every run that was deleted, with its blobs, and none that stayed; a second clean-up adds to it."""
    store = MemoryStore(clock=clock)
    first = await some_runs(store, clock, 60, input=LARGE)
    young = await an_ended_run(store)
    client, path = LocalClient(store), str(tmp_path / "runs.jsonl")
    done = await client.gc(Retention(older_than_seconds=1800), archive=path)
    assert (done.deleted, done.archive) == (60, path)
    archived = list(read_archive(path))
    assert sorted(run.run for run in archived) == sorted(first)
    assert all(list(run.blobs.values()) == [LARGE] for run in archived)
    clock.advance(3600)
    assert (await client.gc(Retention(older_than_seconds=1800), archive=path)).deleted == 1
    assert [run.run for run in read_archive(path)][60:] == [young]


async def test_nothing_is_archived_by_a_dry_run_or_when_nothing_goes(clock: MovingClock, tmp_path: Path) -> None:
    """There is no file where nothing was kept in it."""
    store = MemoryStore(clock=clock)
    await some_runs(store, clock, 2)
    client, path = LocalClient(store), tmp_path / "runs.jsonl"
    assert await client.gc(Retention(older_than_seconds=60), archive=str(path), dry_run=True) == Collected(
        deleted=2, dry_run=True
    )
    assert await client.gc(Retention(older_than_seconds=99999), archive=str(path)) == Collected()
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_run_is_neither_archived_nor_deleted(clock: MovingClock, tmp_path: Path) -> None:
    """An archive vouches for its runs, so one that cannot be vouched for stays where it can be looked at."""
    store = MemoryStore(clock=clock)
    runs = await some_runs(store, clock, 3)
    store._entries[runs[1]][1] = store._entries[runs[1]][1]._replace(at=7)
    client, path = LocalClient(store), str(tmp_path / "runs.jsonl")
    done = await client.gc(Retention(older_than_seconds=60), archive=path)
    assert (done.deleted, done.kept) == (2, {"damaged": 1})
    assert sorted(run.run for run in read_archive(path)) == [runs[0], runs[2]]
    assert await store.get(runs[1]) is not None
    with pytest.raises(Damaged):
        _ = [line async for line in client.export(runs[1])]


async def test_nothing_goes_when_the_archive_cannot_be_written(clock: MovingClock, tmp_path: Path) -> None:
    """Whoever asked for an archive gets it, or keeps the runs."""
    store = MemoryStore(clock=clock)
    await some_runs(store, clock, 3)
    path = tmp_path / "notes.txt"
    path.write_text("precious")
    with pytest.raises(hf.HoldfastError, match="not an archive"):
        await LocalClient(store).gc(Retention(older_than_seconds=60), archive=str(path))
    assert path.read_text() == "precious"
    assert len(await store.list(RunFilter(limit=1000))) == 3


async def test_a_clean_up_that_is_cancelled_leaves_everything_whole(clock: MovingClock, tmp_path: Path) -> None:
    """Between any two batches: what was archived and not deleted is in both, what was deleted is in the archive."""
    store = MemoryStore(clock=clock)
    runs = await some_runs(store, clock, 130)
    path = str(tmp_path / "runs.jsonl")
    cleaning: asyncio.Task[Collected]

    def stop(so_far: Collected) -> None:
        cleaning.cancel()

    cleaning = asyncio.create_task(LocalClient(store).gc(Retention(older_than_seconds=60), archive=path, tell=stop))
    with pytest.raises(asyncio.CancelledError):
        await soon(cleaning)
    left = {row.run for row in await store.list(RunFilter(limit=1000))}
    archived = {run.run for run in read_archive(path)}
    assert 0 < len(left) < 130
    assert left | archived == set(runs)
    done = await LocalClient(store).gc(Retention(older_than_seconds=60), archive=path)
    assert done.deleted == len(left)
    assert {run.run for run in read_archive(path)} == set(runs)


async def test_a_run_is_verified_while_others_are_deleted(clock: MovingClock) -> None:
    """What is deleted in the middle of a look at the whole store is not taken for damage."""
    store = MemoryStore(clock=clock)
    runs = await some_runs(store, clock, 5)
    client = LocalClient(store)
    seen: list[RunId] = []

    def saw(run: RunId) -> None:
        seen.append(run)
        if len(seen) == 1:
            for other in runs[:3]:
                del store._rows[other], store._entries[other]

    findings = [finding async for finding in client.verify(seen=saw)]
    assert findings == []
    assert len(seen) == 5


def test_only_endings_are_deletable() -> None:
    """The policy's default is every ending there is."""
    assert Retention(older_than_seconds=1).statuses == TERMINAL
