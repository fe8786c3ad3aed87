"""Connections to PostgreSQL: how they are made, and the only place that knows its errors."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor, sql
from psycopg_pool import PoolClosed, PoolTimeout

from holdfast.core.errors import StoreClosed, StoreError, StoreRefused, StoreUnavailable
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.arrays import adapt

CONNECT_SECONDS: Final = 10
_IDLE_MS: Final = 5000
OPTIONS: Final[dict[str, Any]] = {
    "autocommit": True,
    # A pooler in transaction mode gives each statement another server connection, which knows none of ours.
    "prepare_threshold": None,
    "connect_timeout": CONNECT_SECONDS,
    "application_name": "holdfast",
    # A machine that is gone is noticed, although nobody said goodbye.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_OURS: Final = re.compile(r"\bhf_")
Async = AsyncConnection[tuple[Any, ...]]
Plain = Connection[tuple[Any, ...]]


def quoted(schema: str) -> str:
    """Return a schema's name as it stands in a statement."""
    return sql.Identifier(schema).as_string(None)


class Names:
    """Puts the schema before the names of our tables and functions in a statement."""

    def __init__(self, schema: str) -> None:
        self._prefix = f"{quoted(schema)}.hf_"
        self._made: dict[str, bytes] = {}

    def __call__(self, text: str) -> bytes:
        """Return the statement to send."""
        made = self._made.get(text)
        if made is None:
            made = self._made[text] = _OURS.sub(self._prefix, text).encode()
        return made


async def configure(connection: Async) -> None:
    """Make a new connection of a pool ready."""
    connection.cursor_factory = AsyncRawCursor
    adapt(connection)


async def connect(address: Address, conninfo: str | None = None) -> Async:
    """Return a new connection.

    Raises:
        StoreUnavailable: there is none to be had.
    """
    with translated(address):
        connection = await AsyncConnection.connect(
            conninfo or address.conninfo, cursor_factory=AsyncRawCursor, **OPTIONS
        )
    adapt(connection)
    return connection


def connect_plain(address: Address) -> Plain:
    """Return a new connection for use in a thread.

    Raises:
        StoreUnavailable: there is none to be had.
    """
    with translated(address):
        connection = Connection.connect(address.conninfo, cursor_factory=RawCursor, **OPTIONS)
    adapt(connection)
    return connection


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed, OSError) as error:
        raise translate(address, error) from error


def translate(address: Address, error: BaseException) -> StoreError:
    """Return our error for one of psycopg's."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    match error:
        case PoolClosed():
            return StoreClosed(address)
        case psycopg.errors.DataCorrupted() | psycopg.errors.IndexCorrupted():
            return StoreRefused(f"{address} is damaged as a database: {said}")
        case psycopg.errors.InsufficientPrivilege():
            return StoreRefused(f"{address} does not let this user work: {said}")
        case psycopg.errors.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{address} cannot be written, it is a replica or read-only: {said}")
        case psycopg.errors.DiskFull():
            return StoreUnavailable(f"the disk that holds {address} is full: {said}")
        case psycopg.errors.UndefinedTable() | psycopg.errors.UndefinedFunction() | psycopg.errors.UndefinedColumn():
            return StoreRefused(f"{address} does not have the tables of a Holdfast store: {said}")
        case psycopg.errors.InvalidPassword() | psycopg.errors.InvalidAuthorizationSpecification():
            return StoreRefused(f"{address} does not let this user in: {said}")
        case _:
            return StoreUnavailable(f"{address} does not answer: {said}")


@asynccontextmanager
async def transaction(connection: Async) -> AsyncIterator[None]:
    """Open a transaction of several statements; if its process or its machine goes away, so do its locks, soon."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = {_IDLE_MS}".encode())
        yield


def is_worth_another_try(connection: Async | Plain, error: BaseException) -> bool:
    """Say whether a statement that may be repeated failed by what passes: a lost connection, a deadlock."""
    return is_lost(connection, error) or getattr(error, "sqlstate", None) in ("40001", "40P01")


def is_lost(connection: Async | Plain, error: BaseException) -> bool:
    """Say whether the connection went with the statement, so that nobody knows yet what became of it."""
    state = getattr(error, "sqlstate", None) or ""
    return connection.closed or connection.broken or isinstance(error, OSError) or state.startswith(("08", "57P"))
