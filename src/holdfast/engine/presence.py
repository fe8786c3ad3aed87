"""A worker's standing in its store: an id, a lock, a row that names them, and a pulse."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId, new_worker_id
from holdfast.core.version import Served, admits, said_versions
from holdfast.engine.lock import WorkerLock
from holdfast.engine.pulse import Pulse
from holdfast.engine.schedule import Schedule
from holdfast.store.protocol import Store
from holdfast.store.value import WorkerRow


def introduce(
    serves: Mapping[str, Served],
    schedules: Sequence[Schedule],
    *,
    concurrency: int,
    version: str | None,
    narrowed: bool,
) -> dict[str, str]:
    """Return what a worker says of itself to people who look; nothing here proves anything."""
    about = {"host": socket.gethostname(), "pid": str(os.getpid()), "concurrency": str(concurrency)}
    about["serves"] = msgspec.json.encode(sorted(serves)).decode()
    about["versions"] = msgspec.json.encode(
        {name: [str(of), of.code, of.place] for name, of in serves.items()}
    ).decode()
    if version is not None:
        about["version"] = version
    if schedules and not narrowed:
        about["schedules"] = msgspec.json.encode([schedule.about() for schedule in schedules]).decode()
    if narrowed:
        about["only"] = "its own runs"
    return about


def served(about: Mapping[str, str]) -> Sequence[str]:
    """Return the names that a worker said it serves; what cannot be read was not said."""
    try:
        return msgspec.json.decode(about.get("serves", "[]"), type=list[str])
    except msgspec.DecodeError:
        return ()


def may_drive(workers: Sequence[WorkerRow], name: str, word: str) -> bool:
    """Say whether one of these workers serves a name with a version that a row's word admits.

    One that was told which runs to drive takes no others.
    """
    return any(
        served_name == name and admits(word, version)
        for worker in workers
        if "only" not in worker.about
        for served_name, version in said_versions(worker.about)
    )


class Presence:
    """One worker as others see it; after it was declared dead it comes back as another."""

    def __init__(self, store: Store, log: Any, on_death: Callable[[], None]) -> None:
        self.id: WorkerId = new_worker_id()
        self._store, self._log, self._on_death = store, log, on_death
        self._lock: WorkerLock | None = None
        self._pulse: Pulse | None = None
        self.hearty = False
        """True where a thread beats, and not the event loop."""

    async def join(self, about: Mapping[str, str]) -> None:
        """Become known to the store, under a lock, and begin to beat."""
        heart = self._store.heart(self.id)
        self.hearty = heart is not None
        self._lock = self._new_lock()
        try:
            named = str(self._lock.named) if self._lock is not None else None
            await self._store.register(self.id, lock=named, about=about)
        except BaseException:
            self.drop()
            raise
        self._pulse = Pulse(heart, self._log, self._on_death)
        self._pulse.start()

    async def renew(self, about: Mapping[str, str]) -> None:
        """Say something else of itself to people who look."""
        named = str(self._lock.named) if self._lock is not None else None
        await self._store.register(self.id, lock=named, about=about)

    def _new_lock(self) -> WorkerLock | None:
        folder = self._store.lock_folder
        if folder is None:
            return None
        try:
            return WorkerLock(folder, self.id, shared=self.hearty)
        except StoreUnavailable as error:
            if not self.hearty:
                raise
            # Its pulse tells enough; only whoever takes over here will have to wait for a whole lease.
            self._log.warning("the worker goes without a lock", error=str(error))
            return None

    async def return_as_another(self, about: Mapping[str, str]) -> WorkerId:
        """Join again under a new id and a new lock; return the id that was declared dead."""
        self.drop()
        dead, self.id = self.id, new_worker_id()
        await self.join(about)
        return dead

    async def beat(self, row: WorkerRow) -> bool:
        """Beat where no thread does; False when the worker was declared dead.

        One that holds its lock and no run has nothing to prove, and leaves the store in peace.
        """
        if self.hearty or (self._lock is not None and not row.leases):
            return True
        return await self._store.pulse(self.id)

    async def leave(self) -> None:
        """Say goodbye to the store; the leases were given back before."""
        await self._store.void(self.id, why="stopped")

    def drop(self) -> None:
        """Stop beating and let go of the lock."""
        self._fall_silent()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def abandon(self) -> None:
        """Stop beating, and leave a lock behind that anybody can take: the row is still there."""
        self._fall_silent()
        if self._lock is not None:
            self._lock.leave()
            self._lock = None

    def _fall_silent(self) -> None:
        if self._pulse is not None:
            self._pulse.stop()
            self._pulse = None
