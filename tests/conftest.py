"""What every test here relies on: one event loop kind, a clock that moves when told, and a PostgreSQL if asked for."""

import itertools
import os
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("holdfast.testing.contract")

from holdfast.testing import MovingClock  # noqa: E402 - asserts are rewritten only in what is imported later
from tests.rigs.server import Server, in_schema  # noqa: E402 - the same

# No deadline: a shared machine is slow now and then, and a slow example is not a wrong one.
settings.register_profile("holdfast", deadline=None, max_examples=100)
settings.load_profile("holdfast")

_numbers = itertools.count(1)


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


@pytest.fixture
def postgres_address(postgres_admin: tuple[str, psycopg.Connection]) -> Iterator[str]:
    """The address of a fresh and empty schema, which goes with its test."""
    address, connection = postgres_admin
    schema = f"test_{os.getpid()}_{next(_numbers)}"
    connection.execute(f"CREATE SCHEMA {schema}")
    yield in_schema(address, schema)
    connection.execute(f"DROP SCHEMA {schema} CASCADE")
