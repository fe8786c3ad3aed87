"""A user's function inside the store's own transaction, unable to end it or to touch what is ours."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import apsw

from holdfast.core.errors import InvalidInput

_FORBIDDEN: Final = frozenset(
    {
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
    }
)
_STEPS_BETWEEN_LOOKS: Final = 1000
R = TypeVar("R")


class SqliteTransaction:
    """What a step with an `hf.Transaction` parameter gets."""

    __slots__ = ("_connection", "_deadline_seconds", "_open")

    def __init__(self, connection: apsw.Connection, deadline_seconds: float) -> None:
        self._connection, self._deadline_seconds = connection, deadline_seconds
        self._open = True

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        if not self._open:
            raise InvalidInput("the transaction is over: use it only inside the step that it was given to")
        try:
            return list(self._connection.execute(sql, parameters))
        except apsw.AuthError as error:
            raise InvalidInput(
                "a transaction step may not end its transaction, attach, use PRAGMA, or touch Holdfast's tables"
            ) from error
        except apsw.InterruptError as error:
            raise TimeoutError(f"the transaction step took longer than {self._deadline_seconds:g} s") from error
        except apsw.SQLError as error:
            raise InvalidInput(f"SQLite refused the statement: {error}") from error

    def close(self) -> None:
        """Make later use an error."""
        self._open = False


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    if action in _FORBIDDEN:
        return apsw.SQLITE_DENY
    # The schema table's own rows name our tables too; what matters is the table that is acted upon.
    for name in (first, second):
        if name is not None and name.lower().startswith("hf_"):
            return apsw.SQLITE_DENY
    return apsw.SQLITE_OK


def call_guarded(connection: apsw.Connection, work: Callable[[SqliteTransaction], R], *, deadline_seconds: float) -> R:
    """Call `work` with a transaction object on `connection`, whose transaction is open and stays so.

    Raises:
        TimeoutError: it took longer than the deadline.
        InvalidInput: a statement of its ended the transaction.
    """
    give_up = time.monotonic() + deadline_seconds
    transaction = SqliteTransaction(connection, deadline_seconds)
    connection.set_authorizer(_authorize)
    connection.set_commit_hook(lambda: True)
    connection.set_progress_handler(lambda: time.monotonic() > give_up, _STEPS_BETWEEN_LOOKS)
    try:
        result = work(transaction)
    finally:
        transaction.close()
        connection.set_progress_handler(None)
        connection.set_commit_hook(None)
        connection.set_authorizer(None)
    if time.monotonic() > give_up:
        raise TimeoutError(f"the transaction step took longer than {deadline_seconds:g} s")
    if not connection.in_transaction:
        raise InvalidInput("a statement rolled the whole transaction back (OR ROLLBACK, RAISE): the step is not done")
    return result
