"""The PostgreSQL of the figures: one server of our own on the real disk, fsync on, a new database for each look."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import sql

from benchmarks import environment
from tests.rigs.server import Server

ROW_BYTES: Final = 1000
_SETTINGS: Final = {"shared_buffers": "256MB", "max_wal_size": "4GB", "max_connections": "300"}
"""What a server of this size is usually given; the same for everyone. All else is as PostgreSQL comes."""
_SHOWN: Final = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers")


class Postgres:
    """The running server."""

    def __init__(self, rig: Server) -> None:
        self._rig = rig
        self._numbers = itertools.count(1)
        self._own = psycopg.connect(rig.address(), autocommit=True)
        self._own.execute("CREATE TABLE rate (number bigint PRIMARY KEY, body bytea NOT NULL)")
        self._rows = itertools.count(1)
        [(self._empty_bytes,)] = self._own.execute("SELECT pg_database_size('template1')").fetchall()

    @classmethod
    @contextmanager
    def running(cls) -> Iterator["Postgres"]:
        """Start a server beside the peers' environments, and remove it afterwards."""
        with Server(settings=_SETTINGS, inside=environment.prepared()) as rig:
            server = cls(rig)
            try:
                yield server
            finally:
                server._own.close()

    @property
    def settings(self) -> dict[str, str]:
        """What the server runs at, as it says itself."""
        return {name: str(self._own.execute(f"SHOW {name}".encode()).fetchall()[0][0]) for name in _SHOWN}

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the address of an empty database, dropped afterwards; what came before it is written out first."""
        name = f"bench{next(self._numbers)}"
        address = self._rig.database(name)
        self._own.execute("CHECKPOINT")
        try:
            yield address
        finally:
            self._own.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def bytes(self, address: str) -> int:
        """Return how much larger a database is than an empty one, without the log that all databases share."""
        [(size,)] = self._own.execute("SELECT pg_database_size(%s)", [address.rpartition("/")[2]]).fetchall()
        grown: int = size - self._empty_bytes
        return max(0, grown)

    def commit_rate(self, seconds: float) -> float:
        """Return A2: commits per second of one row of 1 kB each, on one connection, measured now."""
        body = b"x" * ROW_BYTES
        insert = "INSERT INTO rate (number, body) VALUES (%s, %s)"
        self._own.execute(insert, [next(self._rows), body], prepare=True)
        commits, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            self._own.execute(insert, [next(self._rows), body], prepare=True)
            commits += 1
        return commits / elapsed
