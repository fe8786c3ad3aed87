"""A worker's lock: whoever can take it knows that its holder is dead, and nothing else proves anything."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.core.ids import new_worker_id
from holdfast.engine.lock import WorkerLock, lock_path, proof_of_death
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.contract.story import a_lease
from tests.engine.stage import Stage

HOLDER = """
import os, sys
from holdfast.engine.lock import WorkerLock
lock = WorkerLock(sys.argv[1], sys.argv[2])
if sys.argv[3] == "forks" and os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the locks are."""
    return str(tmp_path / "workers")


@pytest.fixture
def held(folder: str, request: pytest.FixtureRequest) -> Iterator[tuple[str, int, "subprocess.Popen[str]"]]:
    """A lock that another process holds, and that process's number; with `forks` it is the first one's child."""
    worker, how = new_worker_id(), getattr(request, "param", "alone")
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder, worker, how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    number = int(process.stdout.readline())
    yield lock_path(folder, worker), number, process
    with contextlib.suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    process.communicate(timeout=30)


def test_a_living_workers_lock_cannot_be_taken(held: tuple[str, int, "subprocess.Popen[str]"]) -> None:
    """However long it is silent, a process that holds its lock lives."""
    path, _, _ = held
    for _ in range(3):
        assert proof_of_death(path) is None


def test_a_killed_workers_lock_proves_its_death(held: tuple[str, int, "subprocess.Popen[str]"]) -> None:
    """The system lets go of a dead process's locks, and of nobody else's; burying it takes the file along."""
    path, number, process = held
    os.kill(number, signal.SIGKILL)
    process.wait(timeout=30)
    claim = proof_of_death(path)
    assert claim is not None
    assert proof_of_death(path) is None, "while one takes over, no other may"
    claim.bury()
    assert not Path(path).exists()
    assert proof_of_death(path) is None


@pytest.mark.parametrize("held", ["forks"], indirect=True)
def test_a_child_that_inherited_the_lock_keeps_it(held: tuple[str, int, "subprocess.Popen[str]"]) -> None:
    """An effect of the worker's may still be under way there."""
    path, number, process = held
    process.wait(timeout=30)
    assert number != process.pid
    assert proof_of_death(path) is None


def test_a_missing_file_proves_nothing_and_is_not_made(folder: str) -> None:
    """Not found is no evidence."""
    path = lock_path(folder, new_worker_id())
    assert proof_of_death(path) is None
    assert not Path(folder).exists()


def test_a_released_lock_leaves_nothing_behind(folder: str) -> None:
    """The last one out takes the folder along; others keep theirs."""
    one, other = WorkerLock(folder, new_worker_id()), WorkerLock(folder, new_worker_id())
    one.release()
    assert [path.name for path in Path(folder).iterdir()] == [Path(other.path).name]
    other.release()
    assert not Path(folder).exists()


async def test_without_a_lock_file_only_a_silent_worker_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no file proves anything, a pulse unchanged for a whole lease does; one that beats keeps its runs."""
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.5)

    @hf.durable
    async def story(ctx: hf.Context) -> str:
        return "taken over"

    others = await SqliteStore.open(str(stage.path), clock=stage.clock)
    silent, beating = await a_lease(others), await a_lease(others)

    async def beat() -> None:
        while True:
            assert await others.pulse(beating.worker)
            await asyncio.sleep(0.05)

    heart = asyncio.create_task(beat())
    async with stage.open(story) as runtime:
        assert await (await runtime.get(silent.row.run)).result(timeout=20) == "taken over"
        info = await (await runtime.get(beating.row.run)).info()
        assert (info.status, info.attempt) == (hf.Status.RUNNING, 1)
    assert not heart.done()
    heart.cancel()
    await others.close()
