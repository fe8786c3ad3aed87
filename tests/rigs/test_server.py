"""The server of the tests is a real one, durable, and comes back after a crash as it was."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.rigs.server import Server, plain


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server to stop and start."""
    with Server() as running:
        yield running


def ask(server: Server, question: str) -> str:
    """Return the one value that a question has."""
    with psycopg.connect(server.address(), autocommit=True) as connection:
        row = connection.execute(question).fetchone()
        return "" if row is None else str(row[0])


@pytest.mark.parametrize("setting", ["fsync", "synchronous_commit", "full_page_writes"])
def test_a_server_of_the_tests_is_as_durable_as_one_in_production(server: Server, setting: str) -> None:
    """What a test sees survive here survives there too."""
    assert ask(server, f"SHOW {setting}") == "on"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_committed_row_is_there_after_the_server_comes_back(server: Server, mode: str) -> None:
    """A stop and a crash keep the port, the data and what was committed."""
    table = f"kept_{mode}"
    with psycopg.connect(server.address(), autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (n int)")
        connection.execute(f"INSERT INTO {table} VALUES (7)")
        server.restart(mode)  # type: ignore[arg-type]
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert ask(server, f"SELECT n FROM {table}") == "7"
    assert ("was not properly shut down" in server.log) == (mode == "immediate")


def test_a_stopped_server_refuses_connections_until_it_is_started(server: Server) -> None:
    """Nothing answers on its port while it is stopped."""
    server.stop()
    seen = [server.running]
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(server.address())
    server.start()
    assert [*seen, server.running] == [False, True]
    assert ask(server, "SELECT 1") == "1"


def test_the_oldest_server_that_is_installed_starts_too() -> None:
    """A driver can be tried on an older major version."""
    with Server(major=16) as old:
        assert ask(old, "SHOW server_version_num").startswith("16")


def test_every_test_gets_a_schema_of_its_own(postgres_address: str) -> None:
    """A table made here is in nobody else's way, and the address alone leads to it."""
    with psycopg.connect(plain(postgres_address), autocommit=True) as connection:
        connection.execute("CREATE TABLE mine (n int)")
        found = connection.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'mine'").fetchall()
    assert [schema for (schema,) in found] == [postgres_address.rpartition("=")[2]]
