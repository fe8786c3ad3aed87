"""What every test here relies on: one event loop kind, a clock that moves when told, and a PostgreSQL if asked for."""

import gc
import itertools
import os
from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("holdfast.testing.contract")

from holdfast.store.schema import migrations  # noqa: E402 - asserts are rewritten only in what is imported later
from holdfast.testing import MovingClock  # noqa: E402 - the same
from tests.rigs.bouncer import Bouncer  # noqa: E402 - the same
from tests.rigs.server import Server, in_schema  # noqa: E402 - the same

# No deadline: a shared machine is slow now and then, and a slow example is not a wrong one.
settings.register_profile("holdfast", deadline=None, max_examples=100)
settings.load_profile("holdfast")

# Tests that start pytest themselves need not import a plugin that came with a framework's tracing.
os.environ["PYTEST_ADDOPTS"] = "-p no:langsmith_plugin"

_numbers = itertools.count(1)


def pytest_collection_finish() -> None:
    """Do not look for garbage among thousands of collected tests: it took a tenth of the processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Holdfast runs on asyncio."""
    return "asyncio"


@pytest.fixture
def clock() -> MovingClock:
    """A store's clock, at rest."""
    return MovingClock()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """The server that tests share, started by the first that asks; who stops one starts his own."""
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_admin(request: pytest.FixtureRequest) -> Iterator[tuple[str, psycopg.Connection]]:
    """The address of the server that `HOLDFAST_TEST_PG` names, or of our own, with a connection to it."""
    named = os.environ.get("HOLDFAST_TEST_PG")
    address = named or request.getfixturevalue("postgres_server").address()
    with psycopg.connect(address, autocommit=True) as connection:
        yield address, connection


@pytest.fixture(scope="session")
def postgres_emptied() -> list[str]:
    """Schemas that a test is done with, and that have nothing in them but a store's tables."""
    return []


@pytest.fixture
def postgres_store(postgres_admin: tuple[str, psycopg.Connection], postgres_emptied: list[str]) -> Iterator[str]:
    """The address of an empty store: of a new schema, or of one that another test has used and left sound."""
    address, connection = postgres_admin
    if not postgres_emptied:
        postgres_emptied.append(f"test_{os.getpid()}_{next(_numbers)}")
        connection.execute(f"CREATE SCHEMA {postgres_emptied[-1]}")
    schema = postgres_emptied.pop()
    yield in_schema(address, schema)
    if _emptied(connection, schema):
        postgres_emptied.append(schema)
    else:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _emptied(connection: psycopg.Connection, schema: str) -> bool:
    """Empty the tables of a store as it was first made; False if it is none, or not only that."""
    asked = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
    tables = [name for (name,) in connection.execute(asked, [schema]).fetchall()]
    if "hf_store" not in tables or not all(name.startswith("hf_") for name in tables):
        return False
    made = connection.execute(f"SELECT epoch, version FROM {schema}.hf_store").fetchall()
    if made != [(1, len(migrations("postgres")))]:
        return False
    kept = [f"{schema}.{name}" for name in tables if name != "hf_store"]
    connection.execute(f"TRUNCATE {', '.join(kept)} RESTART IDENTITY")
    return True


@pytest.fixture
def postgres_address(postgres_admin: tuple[str, psycopg.Connection]) -> Iterator[str]:
    """The address of a fresh and empty schema, which goes with its test."""
    address, connection = postgres_admin
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    connection.execute(f"CREATE SCHEMA {schema}")
    yield in_schema(address, schema)
    connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def pooled(postgres_address: str) -> Iterator[str]:
    """A fresh schema, reached over two connections that everybody shares."""
    port = urlsplit(postgres_address).port
    assert port is not None
    with Bouncer(port, pool_size=2) as bouncer:
        yield bouncer.before(postgres_address)
