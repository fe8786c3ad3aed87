"""Whoever takes over has proof: a free lock, or a pulse that stood still while it looked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import limits
from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId, new_worker_id
from holdfast.engine.contender import Contender
from holdfast.engine.lock import WorkerLock, proof_of_death
from holdfast.store.memory import MemoryStore
from holdfast.store.value import WorkerRow

OWN = new_worker_id()
SECONDS = int(limits.LEASE_SECONDS)


class Shaky(MemoryStore):
    """A store with a folder for locks, that does not always answer."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.lock_folder = str(folder)
        self.down = self.refuses_void = False

    async def workers(self) -> Sequence[WorkerRow]:
        """Tell who is there, unless it is down."""
        if self.down:
            raise StoreUnavailable("gone for a walk")
        return await super().workers()

    async def void(self, worker: WorkerId, *, why: str) -> int:
        """Declare somebody dead, unless it fails."""
        if self.refuses_void:
            raise StoreUnavailable("gone for a walk")
        return await super().void(worker, why=why)


class Scene:
    """A contender with a clock that moves when told, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.store, self.now = Shaky(folder), 0.0
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.contender = Contender(self.store, lambda *said: self.told.append(said), clock=lambda: self.now)

    async def look(self, times: int = 1, *, hearts: bool = False) -> bool:
        """Look once a second; return whether somebody was declared dead."""
        before = len(self.told)
        for _ in range(times):
            self.now += 1.0
            await self.contender.look(OWN, hearts=hearts)
        return len(self.told) > before

    async def fail(self) -> None:
        """Look in vain."""
        self.store.down = True
        with pytest.raises(StoreUnavailable):
            await self.look()
        self.store.down = False


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Nobody is there yet."""
    return Scene(tmp_path / "workers")


@pytest.fixture
def holder(scene: Scene) -> Iterator[WorkerLock]:
    """A lock that is held by this process."""
    lock = WorkerLock(str(scene.store.lock_folder), new_worker_id())
    yield lock
    lock.release()


async def test_a_silent_worker_without_a_lock_is_dead_after_a_lease(scene: Scene) -> None:
    """From the first look on, not before; and what it was told of itself is told on."""
    silent = new_worker_id()
    await scene.store.register(silent, lock=None)
    assert not await scene.look(SECONDS)
    assert await scene.look()
    [(event, data)] = scene.told
    assert (event, data["worker"], data["why"]) == ("took_over", silent, "no sign of life for a whole lease")
    assert await scene.store.workers() == []


async def test_an_outage_of_the_store_kills_nobody(scene: Scene) -> None:
    """Who could not beat was not looked at either: the count begins again."""
    await scene.store.register(new_worker_id(), lock=None)
    for _ in range(3):
        assert not await scene.look(SECONDS)
        await scene.fail()
    assert not await scene.look(SECONDS)
    assert await scene.look()


async def test_a_contender_that_stood_still_kills_nobody(scene: Scene) -> None:
    """It was perhaps not the only one."""
    await scene.store.register(new_worker_id(), lock=None)
    assert not await scene.look(SECONDS)
    scene.now += 3600
    assert not await scene.look(SECONDS)


async def test_one_beat_keeps_a_worker_alive(scene: Scene) -> None:
    """However late it comes."""
    worker = new_worker_id()
    await scene.store.register(worker, lock=None)
    for _ in range(3):
        assert not await scene.look(SECONDS)
        await scene.store.pulse(worker)
    assert not await scene.look(SECONDS)


@pytest.mark.parametrize("hearts", [False, True], ids=["the loop beats", "threads beat"])
async def test_a_held_lock_is_a_sign_of_life_where_no_thread_beats(
    scene: Scene, holder: WorkerLock, hearts: bool
) -> None:
    """A blocked loop cannot beat, and lives; a thread that does not beat is frozen, and everybody must see it so."""
    await scene.store.register(new_worker_id(), lock=str(holder.named))
    assert await scene.look(3 * SECONDS, hearts=hearts) == hearts


async def test_a_free_lock_is_proof_at_once(scene: Scene, holder: WorkerLock) -> None:
    """The next look takes over and removes the file; one's own row is never judged."""
    dead = new_worker_id()
    path = Path(str(scene.store.lock_folder), f"{dead}.lock")
    path.touch()
    await scene.store.register(dead, lock=f"{path.name} {path.stat().st_ino} -")
    await scene.store.register(OWN, lock=None)
    assert await scene.look()
    assert [row.worker for row in await scene.store.workers()] == [OWN]
    assert scene.told[0][1]["why"] == "its lock was free"
    assert not path.exists()
    own = await scene.contender.look(OWN, hearts=False)
    assert own is not None
    assert own.worker == OWN


async def test_a_takeover_that_fails_leaves_the_proof_to_the_next(scene: Scene, holder: WorkerLock) -> None:
    """Whoever holds the dead one's lock meanwhile lets go of it again."""
    dead = new_worker_id()
    path = Path(str(scene.store.lock_folder), f"{dead}.lock")
    path.touch()
    await scene.store.register(dead, lock=path.name)
    scene.store.refuses_void = True
    with pytest.raises(StoreUnavailable):
        await scene.look()
    claim = proof_of_death(scene.store.lock_folder, path.name)
    assert claim is not None
    claim.release()


async def test_a_lock_that_no_row_names_is_swept_and_anothers_is_not(scene: Scene, holder: WorkerLock) -> None:
    """A worker that died before it was registered leaves a file behind; who lives, or has a row, keeps his."""
    folder, named = Path(str(scene.store.lock_folder)), new_worker_id()
    for name in (f"{named}.lock", f"{new_worker_id()}.lock"):
        (folder / name).touch()
    await scene.store.register(named, lock=f"{named}.lock 1 -")
    await scene.contender.sweep()
    assert {path.name for path in folder.iterdir()} == {f"{named}.lock", Path(holder.path).name}
