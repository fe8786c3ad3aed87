"""Opening a store on PostgreSQL: its schema brought up to date, its id and epoch, and what the server promises."""

from importlib.metadata import version
from typing import Any, Final

import psycopg
import uuid_utils
from psycopg import sql

from holdfast.core.errors import NoStore, StoreRefused
from holdfast.store import schema
from holdfast.store.postgres.address import DEFAULT_SCHEMA, Address
from holdfast.store.postgres.connection import Async, Names, quoted, translated

_LOCK: Final = 0x484F4C44
"""Held by whoever migrates; others wait for it."""
_EXISTS: Final = """
    SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = $1 AND c.relname LIKE 'hf\\_%' AND c.relkind = 'r'
"""
_MICROS: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
MICROS: Final = _MICROS
"""The server's clock in a statement."""


async def prepare(connection: Async, address: Address, *, create: bool) -> tuple[str, int]:
    """Bring the store up to date and return its id and epoch.

    Raises:
        StoreRefused: it is not one of ours, is newer than this Holdfast, or the server may forget what it promised.
    """
    with translated(address):
        await _check_durable(connection, address)
        names = Names(address.schema)
        tables = await _fetch(connection, _EXISTS, [address.schema])
        found = ("hf_store",) in tables and await _version(connection, names)
        steps = schema.migrations("postgres")
        if tables and not found:
            raise StoreRefused(f"{address} has tables of Holdfast's, but none that says which store it is")
        if found and found > len(steps):
            raise StoreRefused(
                f"{address} was written by a newer Holdfast (schema {found}; this one, {version('holdfast')}, knows "
                f"{len(steps)}): upgrade Holdfast"
            )
        if found != len(steps):
            if not create and not found:
                raise NoStore(f"there is no store at {address}")
            await _migrate(connection, address, names, steps)
        return await _identify(connection, names)


async def _check_durable(connection: Async, address: Address) -> None:
    """Refuse a server that forgets: what is acknowledged must be on disk."""
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        [(value,)] = await _fetch(connection, f"SHOW {setting}")
        if value == "off" and not address.weak:
            raise StoreRefused(
                f"{address} runs with {setting}=off, so a crash of the server takes back what was acknowledged: turn "
                "it on, or ask for that by name with ?durability=weak"
            )


async def _version(connection: Async, names: Names) -> int:
    rows = await _fetch(connection, names("SELECT version FROM hf_store"))
    return int(rows[0][0]) if rows else 0


async def _migrate(connection: Async, address: Address, names: Names, steps: list[str]) -> None:
    """Make what is missing, one migrator at a time; a kill in the middle leaves the version before it."""
    async with connection.transaction():
        # Of the transaction, not of the session: behind a pooler nobody knows whose the session is.
        await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext($2))", [_LOCK, address.schema])
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(address.schema)}".encode())
        tables = await _fetch(connection, _EXISTS, [address.schema])
        found = await _version(connection, names) if tables else 0
        for number, step in enumerate(steps[found:], start=found + 1):
            text = step.replace(f"{DEFAULT_SCHEMA}.hf_", f"{quoted(address.schema)}.hf_")
            await connection.execute(sql.SQL(text), prepare=False)
            if number == 1:
                await connection.execute(
                    names(
                        "INSERT INTO hf_store (one, id, epoch, created_at, system, version) "
                        f"VALUES (1, $1, 1, {_MICROS}, $2, 1)"
                    ),
                    [str(uuid_utils.uuid7()), await _system(connection)],
                )
            await connection.execute(names("UPDATE hf_store SET version = $1"), [number])


async def _identify(connection: Async, names: Names) -> tuple[str, int]:
    """Return the store's id and epoch; on another cluster or timeline than before the epoch is raised first."""
    system = await _system(connection)
    [(ident, epoch, known)] = await _fetch(connection, names("SELECT id, epoch, system FROM hf_store"))
    if system and known and known != system:
        raised = await _fetch(
            connection,
            names("UPDATE hf_store SET epoch = epoch + 1, system = $1 WHERE system = $2 RETURNING epoch"),
            [system, known],
        )
        epoch = raised[0][0] if raised else (await _fetch(connection, names("SELECT epoch FROM hf_store")))[0][0]
    return ident, epoch


async def _system(connection: Async) -> str:
    """Return the cluster's identifier and timeline; empty where the server does not say."""
    try:
        async with connection.transaction():
            rows = await _fetch(
                connection,
                "SELECT (SELECT system_identifier FROM pg_control_system())::text || ':' || "
                "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)",
            )
    except psycopg.errors.InsufficientPrivilege:
        return ""
    return str(rows[0][0])


async def _fetch(connection: Async, text: str | bytes, values: Any = ()) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(text.encode() if isinstance(text, str) else text, values or None, binary=True)
    return await cursor.fetchall()
