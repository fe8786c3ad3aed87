"""Ending runs whose end was asked for and whose code nobody has who is there."""

from collections.abc import Collection, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core.errors import Lost, StoreRefused
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.post import CANCEL
from holdfast.core.status import Status
from holdfast.core.version import Need, Served
from holdfast.engine.course import end
from holdfast.engine.drive import Drive
from holdfast.engine.presence import may_drive
from holdfast.engine.surroundings import Surroundings
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow, WorkerRow

_AT_ONCE: Final = 100
"""How many such runs are looked at together."""
_PAGES: Final = 10


class Unserved:
    """One worker's eye on the runs that nobody will end with their own code."""

    def __init__(self, store: Store, around: Surroundings) -> None:
        self._store, self._around = store, around
        self._before: set[RunId] = set()
        """Those that were found when it was last looked."""

    async def end(self, worker: WorkerId, names: Collection[str], workers: Sequence[WorkerRow]) -> None:
        """End the runs whose end was asked for, and write what others were raised by, whose code nobody has.

        `names` are those that anybody serves. For two looks in a row, since a worker may be about to come.
        """
        which = RunFilter(unheard=True, posted=CANCEL, but=sorted(names), limit=_AT_ONCE)
        spent = replace(which, posted=None, status=Status.EXHAUSTED)
        try:
            rows = [*await self._store.list(which), *await self._store.list(spent), *await self._left(names, workers)]
            found = {row.run: row for row in rows if not row.damage}
            before, self._before = self._before, set(found)
            for run in before & set(found):
                row = found[run]
                anybody = Served("", code=Need.read(row.refused).exactly)
                for lease in await self._store.claim(worker, {row.name: anybody}, limit=1, runs=[run]):
                    await end(Drive(self._store, lease, self._around, "", ""))
        except (Lost, StoreRefused) as error:
            # Rows that cannot be read, or that somebody else has taken, must not keep the others waiting.
            self._around.log.warning("runs that nobody serves could not be ended", error=str(error))

    async def _left(self, names: Collection[str], workers: Sequence[WorkerRow]) -> list[RunRow]:
        """Return the runs that were left to code which somebody had then, and nobody has now."""
        found: list[RunRow] = []
        which = RunFilter(unheard=True, posted=CANCEL, status=Status.WAITING, limit=_AT_ONCE)
        for _ in range(_PAGES):
            page = await self._store.list(which)
            found += [
                row
                for row in page
                if row.name in names and Need.read(row.refused).left and not may_drive(workers, row.name, row.refused)
            ]
            if len(page) < _AT_ONCE:
                break
            which = replace(which, before=page[-1].run)
        return found
