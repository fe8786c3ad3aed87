"""The verbs of limits on SQLite: asking and giving back go through the writer, looking again only reads."""

from collections.abc import Sequence

from holdfast.core.ids import RunId
from holdfast.core.limit import Limit
from holdfast.store.bell import Bells
from holdfast.store.clock import Clock
from holdfast.store.sqlite import limiting
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.reading import Reader
from holdfast.store.sqlite.writer import Do, Writer
from holdfast.store.value import Lease, LimitRow, Queued, Turn


class Slots:
    """The limits of one store, as one process sees them."""

    def __init__(self, writer: Writer, reader: Reader, bells: Bells, clock: Clock) -> None:
        self._writer, self._reader, self._bells, self._clock = writer, reader, bells, clock
        self._queued: dict[tuple[RunId, str], str] = {}
        """The steps that wait for a slot, and the limits that they wait for."""

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        """Return a step's slot or its place in the queue."""
        waiting = (lease.row.run, step)
        turn: Turn | None = None
        if self._queued.get(waiting) == limit.name:
            # Most looks find that it is not yet time, which needs no write lock.
            with self._reader.snapshot() as connection:
                turn = limiting.look(connection, lease, step, limit.name, self._clock())
        if turn is None:
            turn = await self._ask(lease, step, limit)
        if isinstance(turn, Queued):
            self._queued[waiting] = limit.name
        else:
            self._queued.pop(waiting, None)
        return turn

    async def _ask(self, lease: Lease, step: str, limit: Limit) -> Turn:
        woken: list[RunId | None] = []

        def run(db: Db) -> Turn:
            owner = db.worker_number(lease.worker)
            turn, woken[:] = limiting.acquire(db, lease, owner, step, limit, self._clock())
            return turn

        def settled(db: Db) -> Turn | None:
            return limiting.look(db.cursor, lease, step, limit.name, self._clock())

        op = Do(run, rings=woken, settled=settled, run=lease.row.run)
        # Branches of one run ask one after the other: together they need one commit.
        turn: Turn = await self._writer.submit(op, wait_a_turn=True)
        return turn

    async def free(self, lease: Lease, step: str) -> None:
        """Give up a step's slot or place."""
        woken: list[RunId | None] = []

        def run(db: Db) -> None:
            woken[:] = limiting.free(db, lease.row.number, lease.fence, [step], self._clock())

        self._queued.pop((lease.row.run, step), None)
        await self._writer.submit(Do(run, rings=woken, run=lease.row.run))

    def rows(self) -> Sequence[LimitRow]:
        """Return every limit, by name."""
        with self._reader.one() as connection:
            return limiting.rows(connection)

    def ring(self) -> None:
        """Ring for the steps of this process that another one gave a slot to, or that are next by what it did."""
        watched = set(self._bells.waiting())
        self._queued = {waiting: name for waiting, name in self._queued.items() if waiting[0] in watched}
        if self._queued:
            with self._reader.snapshot() as connection:
                runs = limiting.turns(connection, set(self._queued.values()))
            for run in {run for run, _ in self._queued} & runs:
                self._bells.ring_moved(run)
