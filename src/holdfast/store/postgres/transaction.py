"""A user's function inside a transaction of ours on PostgreSQL, unable to end it or to touch what is ours."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import psycopg

from holdfast.core.errors import InvalidInput
from holdfast.store.postgres.connection import Plain

# Comments, strings and quoted names are taken out first; what is left are words.
_QUIET: Final = re.compile(r"--[^\n]*|/\*.*?\*/|[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(\w*)\$.*?\$\1\$", re.DOTALL)
_ENDS: Final = frozenset(
    (
        "begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare", "set", "reset",
        "discard", "listen", "unlisten", "notify", "lock", "copy", "vacuum", "call", "do",
    )
)  # fmt: skip
_OURS: Final = re.compile(r'(?i)(?:^|[^\w])"?hf_\w')
_PLACE: Final = re.compile(_QUIET.pattern + r'|"[^"]*"|(?P<mark>\?)|(?<![:\w]):(?P<name>[A-Za-z_]\w*)', re.DOTALL)
AWAIT: Final = "INSERT INTO hf_awaited (run, seq) VALUES ($1, $2)"
"""Makes every COMMIT fail until the entry is there."""
ARRIVED: Final = "DELETE FROM hf_awaited WHERE run = $1 AND seq = $2"
"""Ends that, in the same transaction."""


class PostgresTransaction:
    """What a step with an `hf.Transaction` parameter gets."""

    __slots__ = ("_connection", "_cut", "_give_up", "_open", "_seconds")

    def __init__(self, connection: Plain, deadline_seconds: float) -> None:
        self._connection, self._seconds = connection, deadline_seconds
        self._give_up = time.monotonic() + deadline_seconds
        self._open = True
        self._cut = False
        """True once the server ended a statement for its time, which by its clock may be over a moment sooner."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows; parameters stand at `?`, `:name` or `$1`."""
        if not self._open:
            raise InvalidInput("the transaction is over: use it only inside the step that it was given to")
        _check(sql)
        left = self._give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the transaction step took longer than {self._seconds:g} s")
        try:
            self._connection.execute(f"SET LOCAL statement_timeout = {max(1, int(left * 1000))}".encode())
            text, values = placed(sql, parameters)
            cursor = self._connection.execute(text.encode(), values or None)
            return cursor.fetchall() if cursor.description else []
        except psycopg.errors.QueryCanceled as error:
            self._cut = True
            raise TimeoutError(f"the transaction step took longer than {self._seconds:g} s") from error
        except psycopg.OperationalError:
            raise
        except psycopg.Error as error:
            raise InvalidInput(f"PostgreSQL refused the statement: {str(error).strip()}") from error

    def close(self) -> None:
        """Make later use an error."""
        self._open = False

    @property
    def late(self) -> bool:
        """True when the deadline has passed."""
        return self._cut or time.monotonic() > self._give_up


def _check(sql: str) -> None:
    """Refuse what would end the transaction, leave the database, or touch our tables.

    Raises:
        InvalidInput: it would.
    """
    bare = _QUIET.sub(" ", sql)
    for statement in bare.split(";"):
        words = statement.split(None, 1)
        if words and words[0].lower() in _ENDS:
            raise InvalidInput(
                f"a transaction step may not run {words[0].upper()}: it may not end its transaction, change settings, "
                "or touch Holdfast's tables"
            )
    if _OURS.search(bare):
        raise InvalidInput("a transaction step may not touch Holdfast's tables, whose names begin with hf_")


def placed(sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> tuple[str, list[Any]]:
    """Return a statement with its parameters at `$1` and on, written as for SQLite or so already."""
    if not parameters:
        return sql, []
    values: list[Any] = [] if isinstance(parameters, Mapping) else list(parameters)
    names: dict[str, int] = {}
    marks = iter(range(1, len(values) + 1))

    def replaced(match: re.Match[str]) -> str:
        if match["mark"] and not isinstance(parameters, Mapping):
            place = next(marks, None)
            return "?" if place is None else f"${place}"
        name = match["name"]
        if name is None or not isinstance(parameters, Mapping) or name not in parameters:
            return match[0]
        if name not in names:
            values.append(parameters[name])
            names[name] = len(values)
        return f"${names[name]}"

    return _PLACE.sub(replaced, sql), values
