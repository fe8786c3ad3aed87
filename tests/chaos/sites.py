"""Where a fleet works, on either database, with what only the outside can do to it."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import apsw
import psycopg

from holdfast.runtime import open_store
from tests.chaos.crew import Hand
from tests.chaos.kills import scratch
from tests.rigs.server import Server, in_schema, plain, schema_of

_FENCE: Final = "AND r.owner + 0 = c.owner AND r.fence = c.fence"
_POST_LOCK: Final = "ORDER BY r.number FOR NO KEY UPDATE"
_numbers = itertools.count(1)


class Site(Protocol):
    """A store's place."""

    address: str
    ledger: Path

    def orphan(self, hand: Hand) -> None:
        """See that nothing but its pulse can tell whether a worker lives."""
        ...

    def is_free(self) -> bool:
        """Say whether anyone could write at this moment."""
        ...

    def unfence(self) -> str:
        """Break the store so that a commit asks for no lease; return the twin that workers must be for that."""
        ...

    def unlock_posts(self) -> str:
        """Break the store so that a post takes its number before anyone waits; return the twin for that."""
        ...


class File:
    """A SQLite file."""

    def __init__(self, folder: Path) -> None:
        self._file, self.ledger = folder / "store.db", folder / "ledger"
        self.address = f"sqlite:///{self._file}"

    def orphan(self, hand: Hand) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._file}-workers/{hand.worker}.lock")

    def is_free(self) -> bool:
        database = apsw.Connection(str(self._file))
        try:
            database.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        finally:
            database.close()
        return True

    def unfence(self) -> str:
        return "no_fence"

    def unlock_posts(self) -> str:
        return "numbered_outside"


class Schema:
    """A schema of a PostgreSQL database."""

    def __init__(self, address: str, ledger: Path) -> None:
        self.address, self.ledger = address, ledger

    def orphan(self, hand: Hand) -> None:
        """A still pulse tells there even of who holds its lock."""

    def is_free(self) -> bool:
        return True

    def unfence(self) -> str:
        """The check stands in the database, so it is taken out there, from the function of an open store."""
        self._alter("hf_commit", _FENCE)
        return ""

    def unlock_posts(self) -> str:
        self._alter("hf_post", _POST_LOCK)
        return ""

    def _alter(self, function: str, without: str) -> None:
        with psycopg.connect(plain(self.address), autocommit=True) as connection:
            name = f"{schema_of(self.address)}.{function}"
            [(body,)] = connection.execute("SELECT pg_get_functiondef(%s::regproc)", (name,)).fetchall()
            assert without in body
            connection.execute(body.replace(without, ""))


@contextmanager
def file_site() -> Iterator[Site]:
    """Give a file of its own."""
    with scratch() as folder:
        yield File(folder)


@contextmanager
def schema_site(server: Server) -> Iterator[Site]:
    """Give a schema of its own on a server, made by whoever opens it first."""
    with scratch() as folder:
        yield Schema(in_schema(server.address(), f"hf_{next(_numbers)}"), folder / "ledger")


Sites = Callable[[], AbstractContextManager[Site]]
"""Gives one site after another."""


async def make_store(address: str) -> None:
    """Make the store of a site, which nobody has opened yet."""
    await (await open_store(address)).close()
