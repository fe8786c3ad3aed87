"""The writing connection, and what it keeps at hand between statements."""

from typing import Any, Final

import apsw

from holdfast.core.ids import WorkerId
from holdfast.store.clock import Clock
from holdfast.store.sqlite.fetch import fetch

INSERT_ENTRY: Final = """
    INSERT INTO hf_entries (run, seq, kind, version, at, enc, body, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
_BLOCK: Final = 64
"""How many run numbers a process takes at once."""


class Db:
    """The writing connection, its cursor, and the entries that wait for the end of the batch."""

    def __init__(self, connection: apsw.Connection, clock: Clock) -> None:
        self.connection, self.now = connection, clock
        self.cursor = connection.cursor()
        self.entries: list[tuple[Any, ...]] = []
        self.workers: dict[WorkerId, int] = {}
        self.limits: dict[str, Any] = {}
        """How limits stand, as far as this transaction has looked: nobody else writes while it goes on."""
        self._spare: list[int] = []

    def rows(self, sql: str, values: Any = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        return fetch(self.cursor, sql, values)

    def changed(self, sql: str, values: Any = ()) -> int:
        """Run one statement and return how many rows it changed."""
        self.cursor.execute(sql, values)
        return self.connection.changes()

    def flush(self) -> None:
        """Write the entries that wait: all is done but the commit."""
        self.limits.clear()
        if self.entries:
            rows, self.entries = self.entries, []
            self.cursor.executemany(INSERT_ENTRY, rows)

    def take_numbers(self, count: int) -> list[int]:
        """Return numbers for new runs that nobody else gets."""
        end: int = self.rows("UPDATE hf_store SET next_run = next_run + ? RETURNING next_run", (count,))[0][0]
        return list(range(end - 1, end - 1 - count, -1))

    def take_number(self) -> int:
        """Return a number for a new run; taken by the block, so that not every creation writes the counter's page."""
        if not self._spare:
            self._spare = self.take_numbers(_BLOCK)
        return self._spare.pop()

    def forget(self) -> None:
        """Drop what a transaction that was rolled back may have made up."""
        self.entries.clear()
        self.limits.clear()
        self.workers.clear()
        self._spare.clear()

    def worker_number(self, worker: WorkerId) -> int | None:
        """Return a registered worker's number."""
        number = self.workers.get(worker)
        if number is None:
            found = self.rows("SELECT number FROM hf_workers WHERE worker = ?", (worker,))
            if not found:
                return None
            number = self.workers[worker] = found[0][0]
        return number
