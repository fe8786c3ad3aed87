"""The verbs of limits on PostgreSQL: a lane of their own, so that no commit waits for a limit."""

import contextlib
from collections.abc import Sequence
from typing import Final

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.core.limit import Limit
from holdfast.store.postgres.clock import ServerClock
from holdfast.store.postgres.limiting import ROWS, TurnOp, limit_row
from holdfast.store.postgres.reading import Reader
from holdfast.store.postgres.writer import Lane
from holdfast.store.value import Lease, LimitRow, Turn

_WAITED_FOR: Final = "SELECT 1 FROM hf_tickets WHERE granted_at IS NULL LIMIT 1"
_MOST_NAMES: Final = 10_000


class Slots:
    """The limits of one store, as one process sees them."""

    def __init__(self, lane: Lane, reader: Reader, clock: ServerClock) -> None:
        self._lane, self._reader, self._clock = lane, reader, clock
        self._names: dict[tuple[RunId, str], str] = {}
        """Of which limit each step holds a slot or waits for one."""
        self._to_serve: list[str | None] = []

    async def acquire(self, lease: Lease, owner: int | None, step: str, limit: Limit) -> Turn:
        """Return a step's slot or its place in the queue."""
        run = lease.row.run
        turn: Turn = await self._lane.submit(TurnOp(run, asked=(lease, owner, step, limit), given=self._clock.given))
        if len(self._names) >= _MOST_NAMES:
            self._names.clear()  # steps whose lease was lost never leave by themselves
        self._names[run, step] = limit.name
        return turn

    async def free(self, lease: Lease, step: str) -> None:
        """Give up a step's slot or place."""
        run = lease.row.run
        self._names.pop((run, step), None)
        await self._lane.submit(TurnOp(run, freed=(lease, step), given=self._clock.given))

    def freed(self, run: RunId, steps: Sequence[str]) -> None:
        """Hand on what a commit gave back, soon; if this process dies before, those who wait look by themselves."""
        for step in steps:
            self._serve(self._names.pop((run, step), None))

    async def given_up(self) -> None:
        """Hand on, soon, what leases held that have ended."""
        if await self._reader.rows(_WAITED_FOR):
            self._serve(None)

    def _serve(self, name: str | None) -> None:
        if not self._to_serve:
            with contextlib.suppress(StoreUnavailable):  # closed: those who wait look by themselves
                answer = self._lane.submit(TurnOp(None, served=self._take, given=self._clock.given))
                answer.add_done_callback(lambda answer: answer.exception())
        if name not in self._to_serve:
            self._to_serve.append(name)

    def _take(self) -> Sequence[str | None]:
        names, self._to_serve = self._to_serve, []
        return names

    async def rows(self) -> Sequence[LimitRow]:
        """Return every limit, by name."""
        return [limit_row(row) for row in await self._reader.rows(ROWS)]
