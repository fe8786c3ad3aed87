"""Where a run's code begins: with which input, from which fork, and by whose seeds."""

from typing import Final

from holdfast.core import entry as e
from holdfast.core.errors import Damaged
from holdfast.store.value import RunRow

BEGINNINGS: Final = (e.RunStarted, e.RunForked, e.RunContinued)


class Origin:
    """The entries of a journal that begin something."""

    def __init__(self) -> None:
        self.started: e.RunStarted | None = None
        self.forked: e.RunForked | None = None
        """Where the run's own entries begin, if it is a fork."""
        self.continued: e.RunContinued | None = None
        """What the last generation was begun with, after the first."""
        self._seeds: list[tuple[int, str]] = []
        """The first entry of each run that wrote the journal, with that run's seed; the last is its own."""

    def take(self, entry: e.RunStarted | e.RunForked | e.RunContinued) -> None:
        """Look at the next entry that begins something."""
        if isinstance(entry, e.RunContinued):
            self.continued = entry
            return
        self._seeds.append((entry.seq, entry.seed))
        if isinstance(entry, e.RunStarted):
            self.started = entry
        else:
            self.forked = entry

    def check(self, row: RunRow) -> None:
        """Refuse a journal that is not the row's.

        Raises:
            Damaged: they do not name the same thing.
        """
        started = self.started
        same = started is not None and (row.name, row.tenant, row.digest) == (
            started.name, started.tenant, started.digest,
        )  # fmt: skip
        # A fork has a key only if it took its base's over, and that may have been one itself.
        if started is None or not same or (self.forked is None and row.key != started.key):
            raise Damaged(run=row.run, seq=1, what="the row and the first entry do not name the same thing")

    def seed(self, begun_at: int | None) -> str:
        """Return the seed that belongs to a record: that of the run which wrote its first entry; None: a new one."""
        if len(self._seeds) < 2 or begun_at is None:
            return self._seeds[-1][1]
        return next(seed for first, seed in reversed(self._seeds) if first <= begun_at)
