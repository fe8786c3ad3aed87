"""The verbs of limits on SQLite: asking and giving back go through the writer, looking again only reads."""

from collections.abc import Sequence

from holdfast.core.limit import Limit
from holdfast.store.bell import Bells, Word
from holdfast.store.clock import Clock
from holdfast.store.sqlite import limiting
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.reading import Reader
from holdfast.store.sqlite.writer import Do, Writer
from holdfast.store.value import Granted, Lease, LimitRow, Queued, Turn


class Slots:
    """The limits of one store, as one process sees them."""

    def __init__(self, writer: Writer, reader: Reader, bells: Bells, clock: Clock) -> None:
        self._writer, self._reader, self._bells, self._clock = writer, reader, bells, clock
        self._queued = bells.queued

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        """Return a step's slot or its place in the queue."""
        waiting = (lease.row.run, step)
        turn: Turn | None = self._bells.told(*waiting, lease.fence)
        if turn is None and self._queued.get(waiting) == limit.name:
            turn = self._look(lease, step, limit.name)
        if turn is None:
            turn = await self._ask(lease, step, limit)
        if isinstance(turn, Queued):
            self._queued[waiting] = limit.name
        else:
            self._queued.pop(waiting, None)
        return turn

    def _look(self, lease: Lease, step: str, name: str) -> Turn | None:
        """Return how a step stands, if that can be told without the write lock: most that look have their turn."""
        with self._reader.one() as connection:
            if limiting.has(connection, lease, step, name):
                return Granted()
        with self._reader.snapshot() as connection:
            return limiting.look(connection, lease, step, name, self._clock())

    async def _ask(self, lease: Lease, step: str, limit: Limit) -> Turn:
        words: list[Word] = []

        def run(db: Db) -> Turn:
            owner = db.worker_number(lease.worker)
            turn, words[:] = limiting.acquire(db, lease, owner, step, limit, self._clock())
            return turn

        def settled(db: Db) -> Turn | None:
            return limiting.look(db.cursor, lease, step, limit.name, self._clock())

        op = Do(run, words=words, settled=settled, run=lease.row.run)
        # Branches of one run ask one after the other: together they need one commit.
        turn: Turn = await self._writer.submit(op, wait_a_turn=True)
        return turn

    async def free(self, lease: Lease, step: str) -> None:
        """Give up a step's slot or place."""
        words: list[Word] = []

        def run(db: Db) -> None:
            words[:] = limiting.give_up(db, lease, step, self._clock())

        self._queued.pop((lease.row.run, step), None)
        await self._writer.submit(Do(run, words=words, run=lease.row.run))
        self._bells.told(lease.row.run, step, lease.fence)

    def rows(self) -> Sequence[LimitRow]:
        """Return every limit, by name."""
        with self._reader.one() as connection:
            return limiting.rows(connection)

    def ring(self) -> None:
        """Ring for the steps of this process that another one gave a slot to, or that are next by what it did."""
        watched = set(self._bells.waiting())
        for waiting in [waiting for waiting in self._queued if waiting[0] not in watched]:
            del self._queued[waiting]
        if self._queued:
            with self._reader.snapshot() as connection:
                runs = limiting.turns(connection, set(self._queued.values()))
            for run in {run for run, _ in self._queued} & runs:
                self._bells.unsay(run)
                self._bells.ring_moved(run)
