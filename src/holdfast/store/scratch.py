"""The tables of users beside a store in memory, for steps that write to them."""

from collections.abc import Callable

import apsw

from holdfast.store.protocol import Transaction
from holdfast.store.sqlite.transaction import call_guarded
from holdfast.store.value import Commit, Committed, Outcome


class Scratch:
    """A database in memory that is made when it is first written to."""

    def __init__(self) -> None:
        self._connection: apsw.Connection | None = None

    def twin(self) -> "Scratch":
        """Return another with the same tables."""
        twin = Scratch()
        if self._connection is not None:
            twin._connection = apsw.Connection(":memory:")
            with twin._connection.backup("main", self._connection, "main") as backup:
                backup.step()
        return twin

    def transact(
        self, work: Callable[[Transaction], Commit], commit: Callable[[Commit], Outcome], *, deadline_seconds: float
    ) -> Outcome:
        """Call `work` in a transaction that stands only if the commit that it returns does."""
        connection = self._connection = self._connection or apsw.Connection(":memory:")
        connection.execute("BEGIN")
        try:
            outcome = commit(call_guarded(connection, work, deadline_seconds=deadline_seconds))
            connection.execute("COMMIT" if isinstance(outcome, Committed) else "ROLLBACK")
            return outcome
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Drop the tables."""
        if self._connection is not None:
            self._connection.close()
