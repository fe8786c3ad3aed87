"""A process that has checkpoints open: known to the store like a worker, beating, and driving nothing."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Final

from holdfast.core import limits
from holdfast.core.checkpoint import CODE
from holdfast.core.errors import CheckpointOwned, StoreError
from holdfast.core.ids import CHECKPOINT_NAME, RunId, WorkerId
from holdfast.core.version import Served
from holdfast.engine.contender import Contender, nobody
from holdfast.engine.lock import is_held
from holdfast.engine.presence import Presence
from holdfast.store.protocol import Store
from holdfast.store.value import Busy, Created, Existing, KeyTaken, Lease, NewRun, RunRow, WorkerRow

_SERVES: Final = {CHECKPOINT_NAME: Served(CODE, code=CODE)}
_LOOK_SECONDS: Final = 0.5


class Keeper:
    """Holds the leases of this process's checkpoints, and knows who holds others'."""

    def __init__(self, store: Store, log: Any) -> None:
        self.store, self.log = store, log
        self.host, self.pid = socket.gethostname(), os.getpid()
        self._presence = Presence(store, log, self._declared_dead)
        self._contender = Contender(store, nobody)
        self._beating: asyncio.Task[None] | None = None
        self._dead = False
        self.open: set[RunId] = set()
        """Checkpoints that are open here."""
        self._taking = asyncio.Lock()
        """Held while one is taken, so that a lease is either open here or nobody's."""

    @property
    def id(self) -> WorkerId:
        """Under which name it holds leases now; another one after it was declared dead."""
        return self._presence.id

    async def join(self) -> None:
        """Become known to the store and begin to beat."""
        await self._presence.join(self._about())
        try:
            await self._contender.look(self.id, hearts=self._presence.hearty)
            await self._contender.sweep()
        except BaseException:
            self._presence.drop()
            raise
        self._beating = asyncio.create_task(self._beat(), name=f"holdfast checkpoints {self.id}")

    def _about(self) -> dict[str, str]:
        return {"host": self.host, "pid": str(self.pid), "only": "its own checkpoints"}

    def _declared_dead(self) -> None:
        self._dead = True
        self.log.error("this process was declared dead: its checkpoints are others' now", worker=self.id)

    async def _beat(self) -> None:
        """Beat and look at the others until it leaves."""
        while True:
            await asyncio.sleep(min(_LOOK_SECONDS, limits.LEASE_SECONDS / 6))
            try:
                await self.look()
            except StoreError as error:
                self.log.warning("the store does not answer", error=repr(error))

    async def look(self) -> None:
        """Take over from the dead once, and show that this one lives."""
        own = await self._contender.look(self.id, hearts=self._presence.hearty)
        if not self._dead and (own is None or not await self._presence.beat(own)):
            self._declared_dead()

    async def be_known(self) -> None:
        """Come back under another name if this one was declared dead."""
        if self._dead:
            await self._presence.return_as_another(self._about())
            self._dead = False

    async def create(self, new: NewRun) -> Created | Existing | KeyTaken | Busy:
        """Write a new checkpoint, or find the one of its key; a new one is open here."""
        async with self._taking:
            made = await self.store.create(new, worker=self.id)
            if isinstance(made, Created) and made.lease is not None:
                self.open.add(made.lease.row.run)
            return made

    async def claim(self, row: RunRow) -> Lease | None:
        """Lease a checkpoint that nobody has, which is then open here; None when it could not be had."""
        async with self._taking:
            if row.owner == self.id:
                # An answer that was lost gave this process its lease: nothing is open here under it.
                await self.store.release(self.id, keep=list(self.open))
            for lease in await self.store.claim(self.id, _SERVES, limit=1, runs=[row.run]):
                self.open.add(row.run)
                return lease
            return None

    async def has_owner(self, row: RunRow) -> bool:
        """Say whether somebody has a checkpoint open; False once that is given up, or its owner proven dead.

        A lock that can be looked at tells at once. Else the owner's pulse is watched, until it beats or a whole lease
        is over.
        """
        await self.look()
        pulse: int | None = None
        while True:
            now = await self.store.get(row.run)
            owner = await self.owner(row) if now is not None and now.owner == row.owner else None
            if owner is None:
                return False
            beats = pulse is not None and owner.pulse != pulse
            if beats or row.run in self.open or is_held(self.store.lock_folder, owner.lock):
                return True
            pulse = owner.pulse
            await asyncio.sleep(limits.LEASE_SECONDS / 12)

    async def owner(self, row: RunRow) -> WorkerRow | None:
        """Return who holds a checkpoint."""
        return next((worker for worker in await self.store.workers() if worker.worker == row.owner), None)

    def refusal(self, row: RunRow, checkpoint: str, owner: WorkerRow | None) -> CheckpointOwned:
        """Return the error that names who has a checkpoint open."""
        about = owner.about if owner is not None else {}
        pid = about.get("pid", "")
        return CheckpointOwned(
            checkpoint=checkpoint,
            run=row.run,
            owner=row.owner or "",
            host=about.get("host"),
            pid=int(pid) if pid.isdecimal() else None,
        )

    async def leave(self) -> None:
        """Give up what is still held, and say goodbye."""
        if self._beating is not None:
            self._beating.cancel()
            with suppress(asyncio.CancelledError):
                await self._beating
        try:
            await self.store.release(self.id)
            await self._presence.leave()
        except StoreError as error:
            self.log.warning("the store did not take the goodbye", error=str(error))
            self._presence.abandon()
            return
        self._presence.drop()
