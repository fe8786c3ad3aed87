"""Who serves what: the versions that live workers have, and which code a run that could go on lacks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from holdfast.core.checkpoint import INTERRUPTED, checkpoint_of
from holdfast.core.errors import StoreRefused
from holdfast.core.ids import CHECKPOINT_NAME, RunId
from holdfast.core.status import Status
from holdfast.core.version import Need, Served, admits, said_versions
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow, WorkerRow

IsDead = Callable[[WorkerRow], bool]
IsHeld = Callable[[WorkerRow], bool | None]
LACKING: Final = "code"
"""How the reason of a run begins that waits for code."""


class Lacking(Struct, frozen=True):
    """Why nobody who is there may drive a run that could go on."""

    reason: str
    unserved: bool
    """True when nobody serves its name at all: whoever comes with it may be the one."""


class Serving:
    """What the live workers of a store serve, as they said themselves."""

    def __init__(self, workers: Sequence[WorkerRow], is_dead: IsDead) -> None:
        self._served: dict[str, list[Served]] = {}
        for worker in workers:
            if "only" not in worker.about and not is_dead(worker):
                for name, served in said_versions(worker.about):
                    self._served.setdefault(name, []).append(served)

    def add(self, serves: Mapping[str, str]) -> None:
        """Count what this process serves, whatever its row says."""
        for name, served in serves.items():
            self._served.setdefault(name, []).append(served if isinstance(served, Served) else Served(served))

    def fits(self, row: RunRow) -> bool:
        """Say whether somebody may drive a run, or answer what was asked of it, which wants no certain version."""
        served = self._served.get(row.name, ())
        return any(row.is_controlled or admits(row.refused, each) for each in served)

    async def lacking(self, store: Store, row: RunRow) -> Lacking | None:
        """Say which code a run lacks that could go on now; None for one that does not."""
        if not could_go_on(row, store.now()) or self.fits(row):
            return None
        if row.name == CHECKPOINT_NAME:
            left = row.reason if row.reason.startswith(INTERRUPTED) else f"{INTERRUPTED}: its process died"
            return Lacking(f"{left}; its loop goes on when it opens {checkpoint_of(row.key)!r}", unserved=True)
        if row.name not in self._served:
            return Lacking(f"{LACKING}: no worker serves {row.name!r}", unserved=True)
        there = ", ".join(sorted({served.code for served in self._served[row.name]}))
        need = Need.read(row.refused)
        if need.exactly is not None:
            what = f"it was started with version {need.exactly} and is pinned to it"
        elif any(served.place is None or served.place >= need.at_least for served in self._served[row.name]):
            what = "it refused every version that there is"
        else:
            known = [version.code for version in await store.versions(row.name) if version.place == need.at_least]
            what = f"version {known[0] if known else 'a later one'} has it, and it goes forward only"
        return Lacking(f"{LACKING}: {what}; the workers of {row.name!r} have {there}", unserved=False)


class Here:
    """What this process knows of who drives runs, by its own worker and by what it sees of the others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.serves: Callable[[], Mapping[str, str]] = dict
        """What a worker of this process can drive, by name and code version; a rest that it can end is none."""
        self.is_held: IsHeld = lambda worker: None
        """Says whether a worker's lock is held; None when nothing here can tell."""
        self.refusal: Callable[[RunId], StoreRefused | None] = lambda run: None
        """Why a worker of this process cannot drive a run: the store is damaged where it would have to be written."""

    def is_dead(self, worker: WorkerRow) -> bool:
        """Say whether a worker is known not to be there any more."""
        return self.is_held(worker) is False

    async def serving(self, rows: Sequence[RunRow]) -> Serving | None:
        """Return who serves what, if any of these runs waits for somebody to drive it."""
        if not any(could_go_on(row, self._store.now()) for row in rows):
            return None
        serving = Serving(await self._store.workers(), self.is_dead)
        serving.add(self.serves())
        return serving

    async def lacking(self, row: RunRow) -> Lacking | None:
        """Say which code a run lacks that could go on now; None for one that does not."""
        serving = await self.serving([row])
        return await serving.lacking(self._store, row) if serving is not None else None


def could_go_on(row: RunRow, now: int) -> bool:
    """Say whether a run waits for nothing but somebody to drive it."""
    rests = row.owner is None and not row.damage and row.status in (Status.QUEUED, Status.WAITING)
    return rests and (row.inbox_seq > row.seen_seq or (row.due_at is not None and row.due_at <= now))
