"""Each fault of the proxy does what it says, seen from both sides: by the client, and in the server's tables."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psycopg
import pytest

from tests.rigs.proxy import Fault, Kind, Proxy
from tests.rigs.server import plain
from tests.rigs.waiting import wait_until

CLIENT = "import psycopg, sys; psycopg.connect(sys.argv[1], autocommit=True).execute('INSERT INTO t VALUES (1)')"
SLOW = "INSERT INTO t SELECT 1 FROM pg_sleep(0.3)"


@pytest.fixture
def address(postgres_address: str) -> str:
    """A schema with a table, and a function that writes, as the driver's do."""
    with psycopg.connect(plain(postgres_address), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute(
            "CREATE FUNCTION hf_add(n int) RETURNS int LANGUAGE sql AS $$ INSERT INTO t VALUES ($1) RETURNING n; $$"
        )
    return plain(postgres_address)


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    """A proxy before the server."""
    port = int(psycopg.conninfo.conninfo_to_dict(address)["port"] or 5432)
    with Proxy(port) as standing:
        yield standing


@pytest.fixture
def direct(address: str) -> Iterator[psycopg.Connection]:
    """A connection that does not go through the proxy."""
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


def rows(direct: psycopg.Connection) -> list[int]:
    """Return what is committed."""
    return [n for (n,) in direct.execute("SELECT n FROM t ORDER BY n").fetchall()]


def by_autocommit(connection: psycopg.Connection, n: int) -> None:
    """One statement, its own transaction."""
    connection.execute("INSERT INTO t VALUES (%s)", (n,))


def by_function(connection: psycopg.Connection, n: int) -> None:
    """One call of a function, its own transaction."""
    connection.execute("SELECT hf_add(%s)", (n,))


def by_transaction(connection: psycopg.Connection, n: int) -> None:
    """A transaction of several statements."""
    with connection.transaction():
        connection.execute("SELECT 1")
        connection.execute("INSERT INTO t VALUES (%s)", (n,))


def by_pipeline(connection: psycopg.Connection, n: int) -> None:
    """Several statements sent before an answer is read, one transaction in all."""
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute("SELECT hf_add(%s)", (n,))


Write = Callable[[psycopg.Connection, int], None]
every_way = pytest.mark.parametrize("write", [by_autocommit, by_function, by_transaction, by_pipeline])


@every_way
def test_without_a_fault_everything_passes(
    proxy: Proxy, address: str, direct: psycopg.Connection, write: Write
) -> None:
    """The proxy is not noticed, prepared statements included, and knows each commit."""
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        for n in range(12):
            write(connection, n)
    assert rows(direct) == list(range(12))
    assert len([text for text in proxy.commits if "hf_add" in text or "INSERT" in text]) == 12


@every_way
def test_a_swallowed_reply_is_lost_though_the_row_is_there(
    proxy: Proxy, address: str, direct: psycopg.Connection, write: Write
) -> None:
    """The client cannot know, and the server has committed: the second write of three, and no other."""
    proxy.strike(Fault(Kind.SWALLOWED, nth=2))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        write(connection, 1)
        with pytest.raises(psycopg.OperationalError):
            write(connection, 2)
    assert rows(direct) == [1, 2]
    assert len(proxy.struck) == 1


@every_way
def test_a_request_that_never_arrives_leaves_nothing(
    proxy: Proxy, address: str, direct: psycopg.Connection, write: Write
) -> None:
    """To the client it looks like a lost reply, and nothing was written."""
    proxy.strike(Fault(Kind.BEFORE, nth=2))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        session = connection.info.backend_pid
        write(connection, 1)
        with pytest.raises(psycopg.OperationalError):
            write(connection, 2)
    wait_for_end(direct, session)
    assert rows(direct) == [1]


def test_a_line_cut_while_a_commit_runs_lets_it_end_behind_the_clients_back(
    proxy: Proxy, address: str, direct: psycopg.Connection
) -> None:
    """The client knows of the cut before the server has finished: a look in between sees nothing yet."""
    proxy.strike(Fault(Kind.DURING))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        session = connection.info.backend_pid
        with pytest.raises(psycopg.OperationalError):
            connection.execute(SLOW)
    assert rows(direct) == []
    wait_for_end(direct, session)
    assert rows(direct) == [1]


@every_way
@pytest.mark.parametrize("kind", [Kind.LATE, Kind.HANGING])
def test_a_late_request_lands_only_when_it_is_let(
    proxy: Proxy, address: str, direct: psycopg.Connection, write: Write, kind: Kind
) -> None:
    """The client has long gone on when its commit arrives."""
    proxy.strike(Fault(kind))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        session = connection.info.backend_pid
        with pytest.raises(psycopg.OperationalError):
            write(connection, 1)
    assert rows(direct) == []
    proxy.land()
    wait_for_end(direct, session)
    assert rows(direct) == [1]


def test_a_hanging_commit_holds_its_locks_until_it_is_let(
    proxy: Proxy, address: str, direct: psycopg.Connection
) -> None:
    """A look under the row's lock waits for the commit that is still in flight; a plain look does not."""
    direct.execute("INSERT INTO t VALUES (1)")
    proxy.strike(Fault(Kind.HANGING))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        session = connection.info.backend_pid
        with pytest.raises(psycopg.OperationalError):
            connection.execute("UPDATE t SET n = n + %s", (1,))
    direct.execute("SET lock_timeout = '2s'")
    wait_for_rest(direct, session)
    assert rows(direct) == [1]
    with pytest.raises(psycopg.errors.LockNotAvailable):
        direct.execute("SELECT n FROM t FOR UPDATE NOWAIT")
    proxy.land()
    assert direct.execute("SELECT n FROM t FOR UPDATE").fetchall() == [(2,)]


def test_a_client_killed_in_flight_is_dead_before_its_commit_lands(
    proxy: Proxy, address: str, direct: psycopg.Connection
) -> None:
    """What a process asked for last may come true after its death, and after its successor's first look."""
    proxy.strike(Fault(Kind.LATE, killing=True))
    client = subprocess.Popen([sys.executable, "-c", CLIENT, proxy.before(address)])
    assert client.wait(30) == -signal.SIGKILL
    assert rows(direct) == []
    proxy.land()
    wait_until(lambda: rows(direct) == [1])


def test_a_late_request_lands_just_before_the_one_that_it_is_to_land_before(
    proxy: Proxy, address: str, direct: psycopg.Connection
) -> None:
    """Who comes next finds it done, and who comes before that does not."""
    proxy.strike(Fault(Kind.LATE, land_before="count"))
    with psycopg.connect(proxy.before(address), autocommit=True) as first, pytest.raises(psycopg.OperationalError):
        by_autocommit(first, 1)
    with psycopg.connect(proxy.before(address), autocommit=True) as second:
        assert second.execute("SELECT n FROM t").fetchall() == []
        assert second.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_a_pattern_chooses_what_is_struck(proxy: Proxy, address: str, direct: psycopg.Connection) -> None:
    """Other commits pass and are not counted."""
    proxy.strike(Fault(Kind.SWALLOWED, pattern=r"\bhf_add\("))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        by_autocommit(connection, 1)
        by_transaction(connection, 2)
        with pytest.raises(psycopg.OperationalError):
            by_function(connection, 3)
    assert rows(direct) == [1, 2, 3]


def test_a_rollback_is_no_commit(proxy: Proxy, address: str, direct: psycopg.Connection) -> None:
    """What was taken back is neither counted nor struck."""
    proxy.strike(Fault(Kind.SWALLOWED))
    with psycopg.connect(proxy.before(address), autocommit=True) as connection:
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO t VALUES (1)")
        assert proxy.struck == []
        with pytest.raises(psycopg.OperationalError):
            by_autocommit(connection, 2)
    assert rows(direct) == [2]


def test_refused_connections_are_accepted_again(proxy: Proxy, address: str) -> None:
    """A server that is away for a while, on the same port when it is back."""
    before = proxy.before(address)
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(before)
    proxy.accept()
    with psycopg.connect(before, autocommit=True) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.anyio
async def test_an_async_client_sees_the_same(proxy: Proxy, address: str, direct: psycopg.Connection) -> None:
    """A lost reply is an error within the event loop too, not a hang."""
    proxy.strike(Fault(Kind.SWALLOWED))
    async with await psycopg.AsyncConnection.connect(proxy.before(address), autocommit=True) as connection:
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(connection.execute("SELECT hf_add(%s)", (5,)), 10)
    assert rows(direct) == [5]


@pytest.mark.anyio
async def test_a_frozen_line_answers_only_when_it_thaws(proxy: Proxy, address: str) -> None:
    """Neither an error nor an answer: what a client's own deadline is for."""
    async with await psycopg.AsyncConnection.connect(proxy.before(address), autocommit=True) as connection:
        proxy.freeze()
        asked = asyncio.ensure_future(connection.execute("SELECT 1"))
        done, _ = await asyncio.wait([asked], timeout=0.1)
        assert not done
        proxy.thaw()
        assert await (await asyncio.wait_for(asked, 10)).fetchone() == (1,)


def wait_for_end(direct: psycopg.Connection, session: int) -> None:
    """Return when the server has ended a session, with all that it was asked for."""
    _wait(direct, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %s", session)


def wait_for_rest(direct: psycopg.Connection, session: int) -> None:
    """Return when a session has done all that it was asked for and waits for more."""
    _wait(direct, "SELECT wait_event = 'ClientRead' FROM pg_stat_activity WHERE pid = %s AND query ~ 'UPDATE'", session)


def _wait(direct: psycopg.Connection, condition: str, session: int) -> None:
    for _ in range(500):
        if direct.execute(condition, (session,)).fetchone() == (True,):
            return
        direct.execute("SELECT pg_sleep(0.02)")
    raise AssertionError("it did not come to that within 10 s")
