"""Cleaning up: whenever its process or its machine dies, a run is in the store, in the archive or in both."""

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from holdfast.client.archive import check_archive, read_archive
from holdfast.client.local import LocalClient
from holdfast.client.protocol import Retention
from holdfast.core.ids import RunId
from holdfast.runtime import open_store
from holdfast.store.value import RunFilter
from holdfast.testing.disk import Metadata
from holdfast.testing.killer import AtCall, AtPoint, Killer
from holdfast.testing.power import images, record
from tests.chaos.kills import SEAM, scratch
from tests.chaos.sites import schema_site
from tests.rigs.server import Server
from tests.unit.endings import LARGE, an_ended_run

RUNS: Final = 53
"""More than go at once."""
NAMING: Final = frozenset({"fsync", "fdatasync", "link", "linkat", "unlink", "unlinkat", "ftruncate"})


async def fill(address: str, count: int) -> list[RunId]:
    """Make a store with so many runs that have ended."""
    store = await open_store(address)
    try:
        return [await an_ended_run(store, f"run {n}", input=LARGE if n % 10 == 0 else b"{}") for n in range(count)]
    finally:
        await store.close()


async def clean(address: str, archive: str) -> int:
    """Delete them all, archived first; what the killed process does."""
    store = await open_store(address)
    try:
        return (await LocalClient(store).gc(Retention(older_than_seconds=0), archive=archive)).deleted
    finally:
        await store.close()


async def left(address: str) -> set[RunId]:
    """Return the runs that the store still has, each of them sound, as is the store itself."""
    store = await open_store(address)
    try:
        findings = [finding async for finding in LocalClient(store).verify()]
        assert findings == []
        return {row.run for row in await store.list(RunFilter(limit=1000))}
    finally:
        await store.close()


def archived(path: Path) -> set[RunId]:
    """Return the runs that an archive holds whole, whatever stands behind them."""
    return {run.run for run in read_archive(str(path), wrong=lambda finding: None)} if path.exists() else set()


def judge(address: str, archive: Path, runs: Sequence[RunId]) -> None:
    """See that nothing is lost after a death, and that the next clean-up ends what this one began."""
    assert asyncio.run(left(address)) | archived(archive) == set(runs)
    asyncio.run(clean(address, str(archive)))
    assert asyncio.run(left(address)) == set()
    assert list(check_archive(str(archive))) == []
    assert archived(archive) == set(runs)


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """A server for all trials of this file."""
    with Killer(preload=[__name__], seam=SEAM, timeout_seconds=30.0) as killer:
        yield killer


class Full:
    """A store that is full, from which one trial after another begins."""

    def __init__(self, folder: Path) -> None:
        self._template, self.place = folder / "template", folder / "place"
        # Not in the store's own folder: SQLite makes the names there certain, and so somebody else's too.
        (self._template / "kept").mkdir(parents=True)
        self.runs = asyncio.run(fill(f"sqlite:///{self._template / 'store.db'}", RUNS))
        self.store, self.archive = f"sqlite:///{self.place / 'store.db'}", self.place / "kept" / "old.jsonl"

    def begin(self) -> tuple[str, str]:
        """Make everything as it was before the first clean-up."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self._template, self.place)
        return self.store, str(self.archive)


@pytest.fixture(scope="module")
def full() -> Iterator[Full]:
    """In memory: a kill takes nothing back, so no disk is needed."""
    with scratch() as folder:
        yield Full(folder)


def test_a_clean_up_killed_before_or_after_any_of_its_writes_loses_no_run(killer: Killer, full: Full) -> None:
    """At every named point of every batch: the archive's write, sync and name, and the transaction that deletes."""
    points = killer.count(clean, *full.begin()).points
    assert points >= 9
    judge(full.store, full.archive, full.runs)
    for nth in range(1, points + 1):
        assert killer.run(clean, *full.begin(), die=AtPoint(nth)).killed
        judge(full.store, full.archive, full.runs)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_clean_up_killed_around_any_sync_or_name_loses_no_run(killer: Killer, full: Full, when: str) -> None:
    """What makes things certain, or gives and takes names, is where an order could be wrong."""
    nth = deaths = 0
    while True:
        nth += 1
        die = AtCall(nth, "before" if when == "before" else "after", NAMING)
        if not killer.run(clean, *full.begin(), die=die, watch=full.place).killed:
            break
        deaths += 1
        judge(full.store, full.archive, full.runs)
    assert deaths >= 8


def test_a_clean_up_killed_at_file_calls_all_over_it_loses_no_run(killer: Killer, full: Full) -> None:
    """A run torn anywhere between its first line and its last is not taken for one that is archived."""
    calls = killer.count(clean, *full.begin(), watch=full.place).calls
    assert calls > 100
    for nth in range(1, calls, calls // 25):
        assert killer.run(clean, *full.begin(), die=AtCall(nth, "before"), watch=full.place).killed
        judge(full.store, full.archive, full.runs)


def test_a_clean_up_that_goes_on_after_a_death_may_die_too(killer: Killer, full: Full) -> None:
    """Mending what the first left is itself no danger."""
    full.begin()
    calls = killer.count(clean, full.store, str(full.archive), watch=full.place).calls
    half = calls // 2
    for nth in range(1, 60, 7):
        full.begin()
        killer.run(clean, full.store, str(full.archive), die=AtCall(half, "before"), watch=full.place)
        killer.run(clean, full.store, str(full.archive), die=AtCall(nth, "after"), watch=full.place)
        judge(full.store, full.archive, full.runs)


@pytest.mark.parametrize("metadata", list(Metadata))
def test_a_clean_up_that_loses_its_power_loses_no_run(killer: Killer, full: Full, metadata: Metadata) -> None:
    """Whatever of it had reached the disk: nothing is deleted there whose archive, by its name, is not."""
    address, archive = full.begin()
    acks = full.place.with_name("acks")  # nobody is told anything: what must hold is known
    acks.touch()
    recording = record(killer, clean, address, archive, directory=full.place, acks=acks)
    checked = 0
    for image in images(recording, seed=1, limit=40, metadata=metadata):
        shutil.rmtree(full.place)
        image.write_to(full.place)
        judge(full.store, full.archive, full.runs)
        checked += 1
    assert checked == 40


def test_a_clean_up_of_a_shared_database_loses_no_run(killer: Killer, postgres_server: Server, tmp_path: Path) -> None:
    """The same where the store is a server and only the archive is a file."""
    points = 0
    for nth in range(20):
        archive = tmp_path / f"{nth}.jsonl"
        with schema_site(postgres_server) as site:
            runs = asyncio.run(fill(site.address, 4))
            die = AtPoint(nth) if nth else None
            outcome = killer.run(clean, site.address, str(archive), die=die)
            judge(site.address, archive, runs)
        if nth == 0:
            points = outcome.points
        elif not outcome.killed:
            break
    assert points >= 5
    assert nth == points + 1
