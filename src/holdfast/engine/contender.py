"""Taking over: looks at the other workers of a store and declares those dead that are proven to be."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core import limits
from holdfast.core.ids import WorkerId
from holdfast.engine.lease import Silences
from holdfast.engine.lock import Claim, Named, is_held, lock_paths, proof_of_death, take_free
from holdfast.engine.presence import served
from holdfast.store.protocol import Store
from holdfast.store.value import WorkerRow

Told = Callable[[str, dict[str, Any]], None]
"""Is told what a worker does besides driving runs: the name of the event, and its data."""


def nobody(event: str, data: dict[str, Any]) -> None:
    """Is told, and does nothing."""


class Contender:
    """One worker's eye on the others."""

    def __init__(self, store: Store, told: Told, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._told, self._clock = store, told, clock
        self._silences = Silences(limits.LEASE_SECONDS)
        self.served: set[str] = set()
        """The names that somebody served when it was last looked; the dead count until they are known to be."""
        self.workers: Sequence[WorkerRow] = ()
        """Everybody who was there then."""

    async def look(self, own: WorkerId, *, hearts: bool) -> WorkerRow | None:
        """Look at every worker once, take over from the dead, and return the row of `own`; None when it has none.

        With `hearts`, pulses are beaten from threads of their own, and a still one tells even of who holds its lock.

        Raises:
            StoreUnavailable: the look failed, and counts as none.
        """
        try:
            asked_at = self._clock()
            rows = await self._store.workers()
            answered_at = self._clock()
            for row in rows:
                if row.worker != own:
                    claim = proof_of_death(self._store.lock_folder, row.lock)
                    if claim is not None:
                        await self._bury(row, claim)
                    elif not hearts and is_held(self._store.lock_folder, row.lock):
                        self._silences.forget(row.worker)
                    elif self._silences.saw(row.worker, row.pulse, asked_at=asked_at, answered_at=answered_at):
                        await self._void(row, "no sign of life for a whole lease")
        except BaseException:
            self._silences.failed()
            raise
        self.workers = rows
        self.served = {name for row in rows for name in served(row.about)}
        return next((row for row in rows if row.worker == own), None)

    async def _bury(self, row: WorkerRow, claim: Claim) -> None:
        try:
            await self._void(row, "its lock was free")
        except BaseException:
            claim.release()
            raise
        claim.bury()

    async def _void(self, row: WorkerRow, why: str) -> None:
        freed = await self._store.void(row.worker, why=why)
        self._silences.forget(row.worker)
        self._told("took_over", {"worker": row.worker, "runs": freed, "why": why})

    async def sweep(self) -> None:
        """Remove the locks of workers that died before a row named them, or after theirs was gone."""
        folder = self._store.lock_folder
        if folder is None:
            return
        named = await self._named()
        for path in lock_paths(folder):
            if path.rpartition("/")[2] in named:
                continue
            claim = take_free(path)
            if claim is None:
                continue
            try:
                # Its holder is dead, so if no row names it now, none ever will.
                named = await self._named()
            except BaseException:
                claim.release()
                raise
            if path.rpartition("/")[2] in named:
                claim.release()
            else:
                claim.bury()

    async def _named(self) -> set[str]:
        """Return the files that the rows of workers name."""
        return {named.file for row in await self._store.workers() if (named := Named.read(row.lock)) is not None}
