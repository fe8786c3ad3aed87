"""Opening a store on PostgreSQL: what is asked of the server, who makes the tables, and what is refused."""

import asyncio
import sys
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import quote

import psycopg
import pytest

import holdfast as hf
from holdfast.core.errors import StoreClosed, StoreError, StoreRefused, StoreUnavailable
from holdfast.core.ids import new_worker_id
from holdfast.core.limit import Limit
from holdfast.store import schema
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.address import parse
from holdfast.store.value import Committed, Granted
from holdfast.testing.contract.story import SERVES, Pen, a_lease, a_run, journal_of, words
from tests.rigs.server import in_schema, plain


def rows(address: str, sql: str, *values: Any) -> list[Any]:
    """Run one statement in the store's schema, behind its back."""
    with psycopg.connect(plain(address), autocommit=True) as connection:
        cursor = connection.execute(sql.encode(), values)
        return cursor.fetchall() if cursor.description else []


async def opened(address: str) -> tuple[str, int]:
    """Open a store, close it, and return its id and epoch."""
    store = await PostgresStore.open(address)
    await store.close()
    return store.id, store.epoch


async def test_many_who_open_a_new_schema_at_once_make_one_store(postgres_address: str) -> None:
    """One migrates, the others wait for it: a fleet may start before its tables are there."""
    found = await asyncio.gather(*(opened(postgres_address) for _ in range(8)))
    assert len(set(found)) == 1
    newest = len(schema.migrations("postgres"))
    assert rows(postgres_address, "SELECT count(*), max(version) FROM hf_store") == [(1, newest)]


@pytest.mark.parametrize("version", range(1, len(schema.migrations("postgres"))))
async def test_a_fleet_that_is_upgraded_migrates_its_store_once_and_loses_nothing(
    postgres_address: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many who come with newer code find one store, with what the older code wrote, and can use all of it."""
    steps = schema.migrations("postgres")
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda driver: steps[:version])
        store = await PostgresStore.open(postgres_address)
        lease = await a_lease(store)
        pen = Pen(store, lease)
        assert await store.commit(lease, pen.next("old")) == Committed(2)
        await store.close()
    assert rows(postgres_address, "SELECT version FROM hf_store") == [(version,)]
    assert set(await asyncio.gather(*(opened(postgres_address) for _ in range(8)))) == {(store.id, store.epoch)}
    assert rows(postgres_address, "SELECT version FROM hf_store") == [(len(steps),)]
    newer = await PostgresStore.open(postgres_address)
    assert await newer.acquire(lease, "0/call#1", Limit("one", at_once=1)) == Granted()
    assert await newer.commit(lease, pen.next("new", freed=["0/call#1"])) == Committed(3)
    assert words(await journal_of(newer, lease.row.run)) == ["old", "new"]
    await newer.close()


async def test_older_code_that_still_runs_while_its_store_is_migrated_goes_on(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling deploy: the first of the new ones migrates under the feet of the old ones."""
    steps = schema.migrations("postgres")
    with monkeypatch.context() as older:
        older.setattr(schema, "migrations", lambda driver: steps[:1])
        store = await PostgresStore.open(postgres_address)
        pen = Pen(store, await a_lease(store))
    await opened(postgres_address)
    assert await store.commit(pen.lease, pen.next("on")) == Committed(2)
    await store.close()


async def test_two_schemas_of_one_database_are_two_stores(postgres_admin: tuple[str, Any]) -> None:
    """A run of one is not seen in the other."""
    address, connection = postgres_admin
    stores = [await PostgresStore.open(in_schema(address, f"two_{name}")) for name in ("Stores", "others")]
    try:
        new = a_run(stores[0])
        await stores[0].create(new)
        assert await stores[0].get(new.row.run) is not None
        assert await stores[1].get(new.row.run) is None
        assert stores[0].id != stores[1].id
    finally:
        for store in stores:
            await store.close()
        connection.execute('DROP SCHEMA "two_Stores" CASCADE; DROP SCHEMA two_others CASCADE')


@pytest.mark.parametrize("setting", ["synchronous_commit"])
async def test_a_server_that_forgets_is_refused_unless_asked_for_by_name(postgres_address: str, setting: str) -> None:
    """What is acknowledged must be on disk; a weaker mode is opt-in."""
    forgetful = f"{postgres_address}&options={quote(f'-c {setting}=off')}"
    with pytest.raises(StoreRefused, match=rf"{setting}=off.*durability=weak"):
        await opened(forgetful)
    assert await opened(f"{forgetful}&durability=weak")


async def test_a_store_of_a_newer_holdfast_is_refused(postgres_address: str) -> None:
    """Nothing of it is read, and the way on is told."""
    await opened(postgres_address)
    rows(postgres_address, "UPDATE hf_store SET version = 99")
    with pytest.raises(StoreRefused, match=r"newer Holdfast .*upgrade"):
        await opened(postgres_address)


async def test_tables_that_only_look_like_ours_are_left_alone(postgres_address: str) -> None:
    """A schema in which somebody has an hf_runs of their own is not migrated over."""
    rows(postgres_address, "CREATE TABLE hf_runs (mine text)")
    with pytest.raises(StoreRefused, match="none that says which store"):
        await opened(postgres_address)
    assert rows(postgres_address, "SELECT count(*) FROM hf_runs") == [(0,)]


async def test_a_store_on_another_timeline_is_in_another_epoch(postgres_address: str) -> None:
    """After a failover or a restore readers with old event ids must not continue in silence; once is enough."""
    ident, epoch = await opened(postgres_address)
    rows(postgres_address, "UPDATE hf_store SET system = '7000000000000000000:00000001'")
    assert await opened(postgres_address) == (ident, epoch + 1)
    assert await opened(postgres_address) == (ident, epoch + 1)
    store = await PostgresStore.open(postgres_address)
    assert await store.raise_epoch() == epoch + 2
    await store.close()


async def test_looking_never_makes_a_store(postgres_address: str) -> None:
    """A mistyped schema is an error, and stays as empty as it was."""
    with pytest.raises(StoreError, match="there is no store"):
        await PostgresStore.open(postgres_address, create=False)
    assert rows(postgres_address, "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()") == [(0,)]


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        ("?schema=", "schema=''"),
        ("?schema=pg_mine", "schema='pg_mine'"),
        ("?schema=a;b", "schema='a;b'"),
        ("?pool=0", "pool='0'"),
        ("?pool=many", "pool='many'"),
        ("?durability=none", "durability='none'"),
        ("?nonsense=1", "nonsense"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_in_words(tail: str, says: str) -> None:
    """The parameter and what is wrong with it are named."""
    with pytest.raises(StoreRefused, match=says):
        parse(f"postgresql://localhost/app{tail}")


def test_an_address_is_shown_without_its_password() -> None:
    """It stands in errors and logs."""
    assert str(parse("postgresql://ann:secret@db:5433/app?schema=s")) == "postgresql://db:5433/app?schema=s"


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    """The error names the place."""
    with pytest.raises(StoreUnavailable, match=r"postgresql://127\.0\.0\.1:1/app"):
        await opened("postgresql://127.0.0.1:1/app")


async def test_without_the_extra_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default install does not bring a PostgreSQL client."""
    for module in [name for name in sys.modules if name.startswith("holdfast.store.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreRefused, match=r"pip install 'holdfast\[postgres\]'"):
        async with hf.open("postgresql://localhost/app"):
            pass


async def test_run_numbers_are_never_given_twice(postgres_address: str) -> None:
    """They are taken by the block, by as many processes as there are."""
    stores = [await PostgresStore.open(postgres_address) for _ in range(3)]
    new = [a_run(store) for store in stores for _ in range(600)]
    try:
        await asyncio.gather(*(stores[place % 3].create(run) for place, run in enumerate(new)))
    finally:
        for store in stores:
            await store.close()
    assert rows(postgres_address, "SELECT count(*), count(DISTINCT number) FROM hf_runs") == [(1800, 1800)]


async def test_a_thousand_runs_that_begin_at_once_take_their_numbers_together(postgres_address: str) -> None:
    """Who has no number yet waits for those that are on their way; asking by himself he would crowd out the others."""
    store = await PostgresStore.open(postgres_address)
    await asyncio.gather(*(store.create(a_run(store)) for _ in range(1000)))
    await store.close()
    ((given,),) = rows(postgres_address, "SELECT last_value FROM hf_run_numbers")
    assert 1000 <= given <= 2560


async def test_a_server_that_only_reads_says_so_when_it_is_opened(postgres_address: str) -> None:
    """Of a replica or a read-only role the caller hears in our words, and not in the driver's."""
    await opened(postgres_address)
    reading = f"{postgres_address}&options={quote('-c default_transaction_read_only=on')}"
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        await PostgresStore.open(reading)


async def test_who_stands_behind_his_own_questions_is_not_told_that_the_store_is_away(postgres_address: str) -> None:
    """The pool tells whoever waits too long that there is no server; but there is one, and it is busy with him."""
    store = await PostgresStore.open(f"{postgres_address}&pool=1")
    run = a_run(store)
    await store.create(run)
    async with store._reader.connection():
        asked = [asyncio.ensure_future(store.get(run.row.run)) for _ in range(9)]
        for _ in range(50):
            await asyncio.sleep(0)  # each has come as far as it can
        waiting_for_the_pool = store._reader._pool._pool.get_stats().get("requests_waiting", 0)
    found = await asyncio.gather(*asked)
    await store.close()
    assert [row and row.run for row in found] == 9 * [run.row.run]
    assert waiting_for_the_pool == 0


async def test_a_question_that_is_called_off_is_answered_to_nobody(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that wakes calls off its look at the inbox; to call off the server too takes a connection of its own."""
    store = await PostgresStore.open(f"{postgres_address}&pool=1")
    run = a_run(store)
    await store.create(run)
    await store.inbox(run.row.run)
    called_off: list[object] = []
    monkeypatch.setattr(psycopg.AsyncConnection, "_try_cancel", AsyncMock(side_effect=called_off.append))
    for turns in range(30):
        asked = asyncio.ensure_future(store.inbox(run.row.run))
        for _ in range(turns):
            await asyncio.sleep(0)
        asked.cancel()
        await asyncio.wait([asked])
    assert await store.inbox(run.row.run) == []
    await store.close()
    assert not called_off


async def test_who_is_declared_dead_while_it_claims_holds_nothing(postgres_address: str) -> None:
    """A claim and the verdict on its worker are one after the other, whichever comes first."""
    store, other = await PostgresStore.open(postgres_address), await PostgresStore.open(postgres_address)
    try:
        for _ in range(20):
            worker = new_worker_id()
            await store.register(worker, lock=None)
            await store.create(a_run(store))
            await asyncio.gather(store.claim(worker, SERVES, limit=9), other.void(worker, why="no sign of life"))
            assert rows(postgres_address, "SELECT count(*) FROM hf_runs WHERE owner IS NOT NULL") == [(0,)]
    finally:
        await store.close()
        await other.close()


async def test_a_closed_store_says_so(postgres_address: str) -> None:
    """Every verb of a closed store is refused, and blames no server for it."""
    store = await PostgresStore.open(postgres_address)
    lease = await a_lease(store)
    await store.close()
    with pytest.raises(StoreClosed, match="closed"):
        await store.get(lease.row.run)
    with pytest.raises(StoreClosed, match="closed"):
        await a_lease(store, lease.worker)
