"""Several processes share one SQLite file as if they were one."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.ids import RunId
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Committed, LeaseLost
from holdfast.testing.contract.story import Pen, a_lease, a_run, a_worker, journal_of, words
from tests.contract.test_sqlite_opening import old_store

ROOT = Path(__file__).resolve().parents[2]
Visitor = subprocess.Popen[str]


class Visitors:
    """Processes of a test; none outlives it."""

    def __init__(self) -> None:
        self.started: list[Visitor] = []

    def send(self, *arguments: str) -> Visitor:
        """Start a visitor."""
        command = [sys.executable, "-m", "tests.contract.visitor", *arguments]
        visitor = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(visitor)
        return visitor

    @staticmethod
    def heard(visitor: Visitor) -> str:
        """Return the next line that a visitor says."""
        assert visitor.stdout is not None
        line = visitor.stdout.readline().strip()
        if not line:
            raise AssertionError(visitor.communicate(timeout=30)[1])
        return line

    @staticmethod
    def go(*visitors: Visitor) -> None:
        """Wait until all are ready, then let all act at one moment."""
        for visitor in visitors:
            assert Visitors.heard(visitor) == "ready"
        for visitor in visitors:
            assert visitor.stdin is not None
            visitor.stdin.write("go\n")
            visitor.stdin.flush()


@pytest.fixture
def visitors() -> Iterator[Visitors]:
    """Other processes, ended with the test."""
    visitors = Visitors()
    yield visitors
    for visitor in visitors.started:
        visitor.kill()
        visitor.communicate(timeout=30)


async def heard(visitor: Visitor) -> str:
    """Return the next line of a visitor without blocking the event loop, in bounded time."""
    return await asyncio.wait_for(asyncio.to_thread(Visitors.heard, visitor), timeout=60)


def test_eight_processes_that_open_a_new_file_at_once_make_one_store(tmp_path: Path, visitors: Visitors) -> None:
    """Opening loops over the switch to WAL and migrates once: everybody gets the same store."""
    paths = [str(tmp_path / f"{n}.db") for n in range(3)]
    eight = [visitors.send("open", *paths) for _ in range(8)]
    for _ in paths:
        Visitors.go(*eight)
        assert len({Visitors.heard(visitor) for visitor in eight}) == 1


def test_eight_processes_that_open_an_older_file_at_once_migrate_it_once(tmp_path: Path, visitors: Visitors) -> None:
    """A fleet that is upgraded together finds one store, whoever of it comes first."""
    path = tmp_path / "store.db"
    old_store(path, 1)
    eight = [visitors.send("open", str(path)) for _ in range(8)]
    Visitors.go(*eight)
    assert len({Visitors.heard(visitor) for visitor in eight}) == 1


def test_one_key_started_by_many_processes_at_once_is_one_run(tmp_path: Path, visitors: Visitors) -> None:
    """A key is unique in the store, not in the process."""
    four = [visitors.send("create", str(tmp_path / "store.db"), "k") for _ in range(4)]
    Visitors.go(*four)
    assert sorted(Visitors.heard(visitor) for visitor in four) == ["Created", "Existing", "Existing", "Existing"]


async def test_processes_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path, visitors: Visitors) -> None:
    """Whatever any process was told is on disk is there, in every run, whole and in order."""
    path, count = str(tmp_path / "store.db"), 40
    store = await SqliteStore.open(path)
    three = [visitors.send("write", path, str(count)) for _ in range(3)]
    await asyncio.to_thread(Visitors.go, *three)
    pen = Pen(store, await a_lease(store))
    for n in range(count):
        assert await store.commit(pen.lease, pen.next(str(n))) == Committed(n + 2)
    runs = [pen.lease.row.run]
    for visitor in three:
        runs.append(RunId(await heard(visitor)))
        assert [await heard(visitor) for _ in range(count)] == [f"Committed(seq={n + 2})" for n in range(count)]
    for run in runs:
        assert words(await journal_of(store, run)) == [str(n) for n in range(count)]
    assert await store.check() == []
    await store.close()


async def test_a_reader_hears_of_a_commit_in_another_process(tmp_path: Path, visitors: Visitors) -> None:
    """A bell rings across processes, before the reader's own next look would come."""
    path = str(tmp_path / "store.db")
    store = await SqliteStore.open(path)
    run = (await a_lease(store)).row.run
    visitor = visitors.send("take", path, run)
    await asyncio.to_thread(Visitors.heard, visitor)
    bell = store.watch(run)
    while True:
        # A bell also rings for what happened before: look, and only then wait for the one that matters.
        await asyncio.wait_for(bell.wait(0.2), timeout=10)
        if len(await journal_of(store, run)) == 1:
            break
    assert visitor.stdin is not None
    visitor.stdin.write("go\n")
    visitor.stdin.flush()
    async with asyncio.timeout(30):
        while len(await journal_of(store, run)) == 1:
            await bell.wait(None)
    assert words(await journal_of(store, run)) == ["taken"]
    bell.close()
    await store.close()


async def test_a_run_taken_by_another_process_is_lost_to_this_one(tmp_path: Path, visitors: Visitors) -> None:
    """The fence is in the row, so it counts wherever the other writer is."""
    path = str(tmp_path / "store.db")
    store = await SqliteStore.open(path)
    pen = Pen(store, await a_lease(store))
    assert await store.commit(pen.lease, pen.next("mine")) == Committed(2)
    visitor = visitors.send("take", path, pen.lease.row.run)
    await asyncio.to_thread(Visitors.go, visitor)
    assert await heard(visitor) == "Committed(seq=3)"
    assert await store.commit(pen.lease, pen.next("late")) == LeaseLost()
    assert words(await journal_of(store, pen.lease.row.run)) == ["mine", "taken"]
    await store.close()


async def test_two_openings_in_one_process_are_two_processes_to_the_store(tmp_path: Path) -> None:
    """A lease got through one opening is good through another, in order and whoever awaits first."""
    path = str(tmp_path / "store.db")
    one, two = await SqliteStore.open(path), await SqliteStore.open(path)
    pen = Pen(one, await a_lease(one))
    asked = [two.commit(pen.lease, pen.next(str(n))) for n in range(3)]
    assert [await pending for pending in reversed(asked)] == [Committed(4), Committed(3), Committed(2)]
    assert words(await journal_of(one, pen.lease.row.run)) == ["0", "1", "2"]
    await one.close()
    created = await two.create(a_run(two), worker=await a_worker(two))
    assert type(created).__name__ == "Created"
    await two.close()
