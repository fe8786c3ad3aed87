"""What deleting means where runs share entries, and that no table is forgotten."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from holdfast.core.ids import TENANT, RunId
from holdfast.core.status import Status
from holdfast.store import postgres, sqlite
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Deleted, Kept, NewBlob, RowChange
from holdfast.testing import MovingClock
from holdfast.testing.contract.forking import ended, forked
from holdfast.testing.contract.story import Pen, a_lease, row_of
from tests.contract import test_postgres, test_sqlite
from tests.rigs.server import plain

BLOB = b'"shared"'
DIGEST = sha256(BLOB).hexdigest()


@dataclass
class Shelf:
    """A store, and its database behind its back."""

    store: Store
    sql: Callable[[str], list[tuple[Any, ...]]]
    driver: str

    async def base(self) -> RunId:
        """Return a run of five entries that has ended; a blob came with its second."""
        pen = Pen(self.store, await a_lease(self.store))
        await self.store.commit(pen.lease, pen.next("2", blobs=[NewBlob(DIGEST, BLOB)]))
        await self.store.commit(pen.lease, pen.next("3", "4"))
        await self.store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.COMPLETED)))
        return pen.lease.row.run

    async def fork(self, base: RunId, at: int) -> RunId:
        """Return a fork that has ended, of a run's entries up to a place."""
        fork = await forked(self.store, base, at)
        await ended(self.store, fork)
        return fork

    async def number(self, run: RunId) -> int:
        """Return the number of a run that is there."""
        return (await row_of(self.store, run)).number

    def left(self, number: int) -> list[int]:
        """Return which entries of a run are left."""
        return [seq for (seq,) in self.sql(f"SELECT seq FROM hf_entries WHERE run = {number} ORDER BY seq")]


@pytest.fixture(params=["sqlite", "postgres"])
async def shelf(request: pytest.FixtureRequest, tmp_path: Path, clock: MovingClock) -> AsyncIterator[Shelf]:
    """A store that shares entries; the one in memory copies them."""
    if request.param == "sqlite":
        path = str(tmp_path / "store.db")
        store: Store = await SqliteStore.open(path, clock=clock)

        def sql(statement: str) -> list[tuple[Any, ...]]:
            connection = apsw.Connection(path)
            try:
                connection.set_busy_timeout(10_000)
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
    else:
        address = request.getfixturevalue("postgres_address")
        store = await PostgresStore.open(address, clock=clock)

        def sql(statement: str) -> list[tuple[Any, ...]]:
            with psycopg.connect(plain(address), autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []

    yield Shelf(store, sql, request.param)
    await store.close()


async def test_a_deleted_base_keeps_the_entries_that_a_fork_shares(shelf: Shelf) -> None:
    """The fork's journal begins with them; the base's later ones, its row and its inbox are gone."""
    base = await shelf.base()
    number = await shelf.number(base)
    await shelf.fork(base, 3)
    assert await shelf.store.delete([base]) == Deleted([base], {})
    assert await shelf.store.get(base) is None
    assert shelf.left(number) == [1, 2, 3]
    assert await shelf.store.check() == []


async def test_the_furthest_fork_decides_how_much_is_shared(shelf: Shelf) -> None:
    """Of several forks each keeps what it needs, and when it goes, what the others need stays."""
    base = await shelf.base()
    number = await shelf.number(base)
    near, far = await shelf.fork(base, 2), await shelf.fork(base, 4)
    await shelf.store.delete([base])
    assert shelf.left(number) == [1, 2, 3, 4]
    await shelf.store.delete([far])
    assert shelf.left(number) == [1, 2]
    await shelf.store.delete([near])
    assert shelf.left(number) == []


async def test_the_base_of_a_deleted_fork_that_is_still_there_keeps_everything(shelf: Shelf) -> None:
    """Deleting a copy takes nothing from the original."""
    base = await shelf.base()
    number = await shelf.number(base)
    fork = await shelf.fork(base, 2)
    await shelf.store.delete([fork])
    assert shelf.left(number) == [1, 2, 3, 4, 5]
    await shelf.store.delete([base])
    assert shelf.left(number) == []


async def test_a_fork_of_a_fork_keeps_what_it_has_of_both(shelf: Shelf) -> None:
    """Lineages are flat: the base's share and the middle one's stay after both were deleted."""
    base = await shelf.base()
    middle = await shelf.fork(base, 3)
    numbers = [await shelf.number(base), await shelf.number(middle)]
    last = await shelf.fork(middle, 4)
    assert sorted((await shelf.store.delete([base, middle])).runs) == sorted([base, middle])
    assert [shelf.left(number) for number in numbers] == [[1, 2, 3], [4]]
    await shelf.store.delete([last])
    assert [shelf.left(number) for number in numbers] == [[], []]


async def test_a_blob_of_a_shared_entry_is_not_swept(shelf: Shelf, clock: MovingClock) -> None:
    """What a fork's history names stays with it, although the run that stored it is gone."""
    base = await shelf.base()
    near, far = await shelf.fork(base, 1), await shelf.fork(base, 2)
    await shelf.store.delete([base])
    clock.advance(1)
    assert await shelf.store.sweep(shelf.store.now()) == 0
    assert await shelf.store.blob(TENANT, DIGEST) == BLOB
    await shelf.store.delete([far])
    assert await shelf.store.sweep(shelf.store.now()) == 1
    await shelf.store.delete([near])


async def test_a_blob_that_somebody_is_storing_again_is_passed_over(postgres_address: str, clock: MovingClock) -> None:
    """A sweep waits for nobody, and takes nothing that an entry to come is about to name."""
    store = await PostgresStore.open(postgres_address, clock=clock)
    try:
        pen = Pen(store, await a_lease(store))
        ends = pen.next("end", blobs=[NewBlob(DIGEST, BLOB)], change=RowChange(status=Status.COMPLETED))
        await store.commit(pen.lease, ends)
        await store.delete([pen.lease.row.run])
        clock.advance(1)
        with psycopg.connect(plain(postgres_address)) as other:
            other.execute("UPDATE hf_blobs SET touched_at = touched_at + 2000000")
            assert await asyncio.wait_for(store.sweep(store.now()), 10) == 0
        assert await store.sweep(store.now()) == 0
        assert await store.blob(TENANT, DIGEST) == BLOB
        clock.advance(2)
        assert await store.sweep(store.now()) == 1
    finally:
        await store.close()


async def test_a_run_whose_row_is_damaged_is_kept(shelf: Shelf) -> None:
    """Nobody knows whether it has ended, so it stays to be looked at."""
    base = await shelf.base()
    shelf.sql("UPDATE hf_runs SET reason = 'flipped'")
    assert await shelf.store.delete([base]) == Deleted([], {base: Kept.DAMAGED})
    assert shelf.left(await shelf.number(base)) == [1, 2, 3, 4, 5]


async def test_entries_without_a_run_that_nobody_shares_are_still_told_of(shelf: Shelf) -> None:
    """What a fork shares is sound; what is merely left over is damage."""
    base = await shelf.base()
    shelf.sql("DELETE FROM hf_runs")
    (found,) = await shelf.store.check()
    assert "have no row" in found
    assert await shelf.store.delete([base]) == Deleted([], {})


async def test_deleting_knows_every_table_that_has_a_runs_number(shelf: Shelf) -> None:
    """A table that comes later and is forgotten here would keep its rows for ever."""
    asked = test_sqlite.NUMBERED if shelf.driver == "sqlite" else test_postgres.NUMBERED
    tables = {table for (table,) in shelf.sql(asked)} - {"hf_awaited"}
    module: Any = {"sqlite": sqlite, "postgres": postgres}[shelf.driver]
    source = Path(module.__file__).with_name("deleting.py").read_text("utf-8")
    assert {"hf_entries", "hf_lineage"} < tables
    assert {table for table in tables if f"DELETE FROM {table} " not in source} == set()
