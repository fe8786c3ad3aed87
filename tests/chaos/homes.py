"""Where a trial's store lives, by its place: a folder for SQLite, an address for PostgreSQL."""

import os
import shutil
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from holdfast.store.clock import Clock
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from tests.rigs.server import plain, schema_of, searching

_LEFT = ("SELECT 'a chunk of ' || step FROM hf_chunks", "SELECT 'worker ' || worker FROM hf_workers")
"""What a run that has ended and a worker that has left should not leave behind."""

_END_OTHERS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
     WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_TABLES = """
    SELECT string_agg(format('%%I.%%I', schemaname, tablename), ', ') FROM pg_tables
     WHERE schemaname = %s AND tablename <> 'hf_store'
"""


class Home(Protocol):
    """One place, as the program of a trial and its stage see it."""

    def clear(self) -> None:
        """Forget the trial before."""
        ...

    async def open(self, clock: Clock, **options: Any) -> Store:
        """Open the store that lives here."""
        ...

    def look(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the user's own rows, and what is left in the store that nobody needs."""
        ...

    def state(self) -> str:
        """Return a digest of all that is committed here, but for how often workers gave a sign of life."""
        ...


def home(place: str) -> Home:
    """Return the home at a place."""
    return _Schema(place) if "://" in place else _Folder(Path(place))


class _Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = f"{folder}/store.db"

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)

    async def open(self, clock: Clock, **options: Any) -> Store:
        return await SqliteStore.open(self._file, clock=clock, **options)

    def look(self) -> tuple[Sequence[str], Sequence[str]]:
        database = apsw.Connection(self._file)
        made = database.table_exists(None, "bookings")
        rows = database.execute("SELECT name FROM bookings ORDER BY name").fetchall() if made else []
        left = [str(what) for question in _LEFT for (what,) in database.execute(question).fetchall()]
        database.close()
        return [str(name) for (name,) in rows], left

    def state(self) -> str:
        if not os.path.exists(self._file):
            return ""
        database = apsw.Connection(self._file)
        asked = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'hf_store' ORDER BY 1"
        tables = [str(name) for (name,) in database.execute(asked).fetchall()]
        told = [(name, database.execute(_all_of(name)).fetchall()) for name in tables]
        database.close()
        return _digest(told)


class _Schema:
    """A schema with a database to itself: whoever else is in there was left by the trial before."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._looking: psycopg.Connection | None = None

    def clear(self) -> None:
        # What a session of the trial before still does must not land in this one.
        with psycopg.connect(plain(self._address), autocommit=True) as connection:
            connection.execute(_END_OTHERS)
            [(tables,)] = connection.execute(_TABLES, (schema_of(self._address),)).fetchall()
            if tables is not None:
                connection.execute(f"TRUNCATE {tables}")
                return
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema_of(self._address)}")
            # Made here, since two runs that make one table at a time refuse each other on PostgreSQL.
            connection.execute(
                "CREATE TABLE bookings (id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY, name text NOT NULL)"
            )

    async def open(self, clock: Clock, **options: Any) -> Store:
        return await PostgresStore.open(searching(self._address), clock=clock, **options)

    def look(self) -> tuple[Sequence[str], Sequence[str]]:
        with psycopg.connect(plain(self._address), autocommit=True) as connection:
            rows = connection.execute("SELECT name FROM bookings ORDER BY name").fetchall()
            left = [str(what) for question in _LEFT for (what,) in connection.execute(question).fetchall()]
        return [str(name) for (name,) in rows], left

    def state(self) -> str:
        # One connection for all looks, so that looking changes little of what is looked at.
        self._looking = connection = self._looking or psycopg.connect(plain(self._address), autocommit=True)
        asked = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND tablename <> 'hf_store' ORDER BY 1"
        tables = [name for (name,) in connection.execute(asked, (schema_of(self._address),)).fetchall()]
        return _digest([(name, sorted(map(repr, connection.execute(_all_of(name)).fetchall()))) for name in tables])


def _all_of(table: str) -> str:
    return "SELECT worker FROM hf_workers" if table == "hf_workers" else f"SELECT * FROM {table}"


def _digest(told: object) -> str:
    return sha256(repr(told).encode()).hexdigest()


def locks(folder: str | None) -> list[str]:
    """Return the locks of workers that are left in a folder."""
    return sorted(os.listdir(folder)) if folder is not None and os.path.isdir(folder) else []
