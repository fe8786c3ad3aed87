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
from holdfast.engine.lock import Claim, WorkerLock, boot_id, is_held, proof_of_death
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.contract.story import a_lease
from tests.engine.stage import Stage

HOLDER = """
import os, sys
from holdfast.engine.lock import WorkerLock
lock = WorkerLock(sys.argv[1], sys.argv[2], shared=True)
if sys.argv[3] == "forks" and os.fork():
    os._exit(0)
if sys.argv[3] == "becomes another program":
    print(os.getpid(), lock.named, flush=True)
    os.execv("/bin/cat", ["cat"])
print(os.getpid(), lock.named, flush=True)
sys.stdin.readline()
"""


class Holder:
    """A lock that another process holds; with `forks` it is the first one's child."""

    def __init__(self, folder: str, how: str, *around: str) -> None:
        self.folder, self._worker = folder, new_worker_id()
        self.process = subprocess.Popen(
            [*around, sys.executable, "-c", HOLDER, folder, self._worker, how],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        number, _, self.named = self.process.stdout.readline().strip().partition(" ")
        self.number = int(number)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return Path(self.folder, f"{self._worker}.lock")

    def proof(self) -> Claim | None:
        """Try to prove that the holder is dead."""
        return proof_of_death(self.folder, self.named)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        os.kill(self.number, signal.SIGKILL)
        self.process.wait(timeout=30)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the locks are."""
    return str(tmp_path / "workers")


@pytest.fixture
def held(folder: str, request: pytest.FixtureRequest) -> Iterator[Holder]:
    """A lock that another process holds."""
    holder = Holder(folder, getattr(request, "param", "alone"))
    yield holder
    with contextlib.suppress(ProcessLookupError):
        os.kill(holder.number, signal.SIGKILL)
    holder.process.communicate(timeout=30)


def test_a_living_workers_lock_cannot_be_taken(held: Holder) -> None:
    """However long it is silent, a process that holds its lock lives; looking at it changes nothing."""
    for _ in range(3):
        assert held.proof() is None
        assert is_held(held.folder, held.named) is True


def test_a_killed_workers_lock_proves_its_death(held: Holder) -> None:
    """The system lets go of a dead process's locks, and of nobody else's; burying it takes the file along."""
    held.kill()
    assert is_held(held.folder, held.named) is False
    claim = held.proof()
    assert claim is not None
    assert held.proof() is None, "while one takes over, no other may"
    claim.bury()
    assert not held.path.exists()
    assert held.proof() is None


@pytest.mark.parametrize("held", ["becomes another program"], indirect=True)
def test_a_program_that_was_started_with_the_workers_files_keeps_the_lock(held: Holder) -> None:
    """Whatever it is that the worker's effect runs in: who was given its open files has its lock."""
    assert held.process.stdin is not None
    assert held.process.stdout is not None
    held.process.stdin.write("another by now\n")
    held.process.stdin.flush()
    assert held.process.stdout.readline() == "another by now\n"
    assert held.proof() is None
    held.kill()
    assert is_held(held.folder, held.named) is False


@pytest.mark.parametrize("held", ["forks"], indirect=True)
def test_a_child_that_inherited_the_lock_keeps_it(held: Holder) -> None:
    """An effect of the worker's may still be under way there."""
    held.process.wait(timeout=30)
    assert held.number != held.process.pid
    assert held.proof() is None


def test_a_missing_file_proves_nothing_and_is_not_made(folder: str) -> None:
    """Not found is no evidence."""
    for text in (f"{new_worker_id()}.lock 7 {boot_id()}", "", None, "../elsewhere.lock 1 -", "a b c d"):
        assert proof_of_death(folder, text) is None
        assert is_held(folder, text) is None
    assert not Path(folder).exists()


def test_another_file_of_the_same_name_proves_nothing(held: Holder) -> None:
    """A copy, as a restored backup or a copied container has it, is free whether or not the worker lives."""
    kept = held.path.with_suffix(".kept")
    held.path.rename(kept)
    held.path.write_bytes(b"")
    assert held.path.stat().st_ino != kept.stat().st_ino
    assert held.proof() is None
    assert is_held(held.folder, held.named) is None
    assert held.path.exists(), "what proves nothing is left alone"


def test_a_lock_of_another_boot_proves_nothing(held: Holder) -> None:
    """A folder that two machines share shows the file to both, and its lock perhaps to one: then the pulse decides."""
    held.kill()
    file, inode, boot = held.named.split()
    assert boot == boot_id() != "-"
    elsewhere = f"{file} {inode} 00000000-0000-0000-0000-000000000000"
    assert proof_of_death(held.folder, elsewhere) is None
    assert is_held(held.folder, elsewhere) is None
    claim = proof_of_death(held.folder, f"{file} {inode} -")
    assert claim is not None, "what a row does not say is not compared"
    claim.release()


def test_a_released_lock_leaves_nothing_behind(folder: str) -> None:
    """The last one out takes the folder along; others keep theirs."""
    one, other = WorkerLock(folder, new_worker_id()), WorkerLock(folder, new_worker_id())
    one.release()
    assert [path.name for path in Path(folder).iterdir()] == [Path(other.path).name]
    other.release()
    assert not Path(folder).exists()


def test_whoever_lost_the_file_does_not_take_anothers_along(folder: str) -> None:
    """A worker that was declared dead lets go of its own lock, not of what stands in its place since."""
    lock = WorkerLock(folder, new_worker_id())
    os.unlink(lock.path)
    Path(lock.path).write_bytes(b"")
    lock.release()
    assert Path(lock.path).exists()


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
