"""The pooler of the tests gives a client a connection for the length of a transaction, and not longer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
import pytest

from tests.rigs.bouncer import Bouncer
from tests.rigs.server import Server


@pytest.fixture
def address(postgres_server: Server) -> Iterator[str]:
    """A way to the server over one pooled connection."""
    with Bouncer(postgres_server.port, pool_size=1) as bouncer:
        yield bouncer.before(postgres_server.address())


def test_two_clients_share_one_connection_and_what_one_sets_the_other_sees(address: str) -> None:
    """What a session sets, locks or prepares is lost, or worse, somebody else's."""
    with (
        psycopg.connect(address, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(address, autocommit=True, prepare_threshold=None) as other,
    ):
        sessions = [client.execute("SELECT pg_backend_pid()").fetchone() for client in (one, other)]
        one.execute("SET work_mem = '77MB'")
        assert sessions[0] == sessions[1]
        assert other.execute("SHOW work_mem").fetchone() == ("77MB",)


def test_a_transaction_keeps_its_connection_to_its_end(address: str) -> None:
    """Another client waits for the only connection until the transaction is over."""
    with (
        psycopg.connect(address, autocommit=True, prepare_threshold=None) as one,
        psycopg.connect(address, autocommit=True, prepare_threshold=None) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        with one.transaction():
            one.execute("SELECT 1")
            waiting = thread.submit(other.execute, "SELECT 1")
            assert not wait([waiting], timeout=0.1).done
        assert waiting.result(10).fetchone() == (1,)
