"""Several processes share a limit as if they were one: none takes what another has, and each wakes the other."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.core.limit import Limit
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Committed, Granted, Lease, Queued
from holdfast.testing.contract.story import Pen, a_lease, a_worker
from tests.rigs.server import plain

STEP = "0/call#1"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%hf_turns%'"


@pytest.fixture(params=["sqlite", "postgres"])
async def stores(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[list[Store]]:
    """Two openings of one store, which know nothing of each other: two processes, to the store."""
    opened: list[Store] = []
    for _ in range(2):
        if request.param == "sqlite":
            opened.append(await SqliteStore.open(str(tmp_path / "store.db")))
        else:
            opened.append(await PostgresStore.open(request.getfixturevalue("postgres_address")))
    yield opened
    for store in opened:
        await store.close()


async def granted(store: Store, lease: Lease, limit: Limit) -> None:
    """Wait for a slot as a worker does."""
    bell = store.watch(lease.row.run, entries=False)
    try:
        while isinstance(turn := await store.acquire(lease, STEP, limit), Queued):
            await bell.wait(max(0.0, (turn.ask_again_at - store.now()) / 1e6))
        assert turn == Granted()
    finally:
        bell.close()


def deadlocks(request: pytest.FixtureRequest) -> int:
    """Return how many deadlocks the PostgreSQL server has ever seen; none without one."""
    if "postgres_address" not in request.fixturenames and "postgres" not in request.node.name:
        return 0
    _, connection = request.getfixturevalue("postgres_admin")
    assert isinstance(connection, psycopg.Connection)
    [(count,)] = connection.execute("SELECT sum(deadlocks)::bigint FROM pg_stat_database").fetchall()
    return int(count)


async def test_processes_that_fight_for_a_limit_never_exceed_it_nor_stand_in_each_others_way(
    stores: list[Store], request: pytest.FixtureRequest
) -> None:
    """Asking, committing with `freed` and giving back, all at once: no more at work than allowed, and no deadlock."""
    limits = Limit("three", at_once=3), Limit("two", at_once=2)
    before = deadlocks(request)
    at_work, most = [0, 0], [0, 0]

    async def work(number: int) -> None:
        store = stores[number % 2]
        lease = await a_lease(store, tenant="ab"[number % 3 == 0])
        pen = Pen(store, lease)
        for turn in range(4):
            which = (number + turn) % 2
            await granted(store, lease, limits[which])
            at_work[which] += 1
            most[which] = max(most[which], at_work[which])
            await asyncio.sleep(0)
            at_work[which] -= 1
            if turn % 3 == 2:
                await store.free(lease, STEP)
                assert await store.commit(lease, pen.next(str(turn))) == Committed(pen.seq)
            else:
                assert await store.commit(lease, pen.next(str(turn), freed=[STEP])) == Committed(pen.seq)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(number) for number in range(24)))
    assert 0 < most[0] <= 3
    assert 0 < most[1] <= 2
    assert {(row.held, row.queued) for row in await stores[0].limits()} == {(0, 0)}
    assert deadlocks(request) == before


@pytest.mark.parametrize("how", ["commit", "free", "void", "release"])
async def test_a_slot_that_one_process_gives_up_wakes_who_waits_in_another(stores: list[Store], how: str) -> None:
    """Nobody waits for his own next look, which would come a second later."""
    one, other = stores
    limit = Limit("one", at_once=1)
    holder, waiter = await a_lease(one), await a_lease(other)
    await granted(one, holder, limit)
    bell = other.watch(waiter.row.run, entries=False)
    assert isinstance(await other.acquire(waiter, STEP, limit), Queued)
    for _ in range(3):
        # A bell also rings for what happened before; that must not be what is heard below.
        await bell.wait(0.1)
    match how:
        case "commit":
            await one.commit(holder, Pen(one, holder).next("done", freed=[STEP]))
        case "free":
            await one.free(holder, STEP)
        case "void":
            await one.void(holder.worker, why="its lock was free")
        case "release":
            await one.release(holder.worker)
    async with asyncio.timeout(20):
        await bell.wait(None)
        while [(row.held, row.queued) for row in await other.limits()] != [(1, 0)]:
            await bell.wait(None)
        assert await other.acquire(waiter, STEP, limit) == Granted()
    bell.close()


async def test_who_gives_out_slots_waits_for_who_is_doing_so(postgres_address: str) -> None:
    """On PostgreSQL the limit's row is the lock: who counted slots before somebody else gave one out counts again."""
    limit = Limit("one", at_once=1)
    store = await PostgresStore.open(postgres_address)
    holder, waiter = await a_lease(store), await a_lease(store)
    assert await store.acquire(holder, STEP, limit) == Granted()
    assert isinstance(await store.acquire(waiter, STEP, limit), Queued)
    async with await psycopg.AsyncConnection.connect(plain(postgres_address)) as other:
        await other.execute("SELECT 1 FROM hf_limits WHERE name = 'one' FOR UPDATE")
        asking = asyncio.ensure_future(store.acquire(waiter, STEP, limit))
        async with asyncio.timeout(20):
            while await (await other.execute(WAITING)).fetchall() == [(0,)]:
                await asyncio.wait([asking], timeout=0.05)
                assert not asking.done()
        await other.execute("DELETE FROM hf_tickets WHERE granted_at IS NOT NULL")
        await other.commit()
    assert await asking == Granted()
    await store.close()


async def test_a_queue_that_the_dead_have_left_is_in_nobodys_way(stores: list[Store]) -> None:
    """However long: one worker had hundreds of runs that waited for a slot, and all of them went with it."""
    store, other = stores
    limit, worker = Limit("one", at_once=1), await a_worker(store)
    dead = await asyncio.gather(*(a_lease(store, worker) for _ in range(600)))
    turns = [await store.acquire(dead[0], STEP, limit)]
    turns += await asyncio.gather(*(store.acquire(lease, STEP, limit) for lease in dead[1:]))
    assert [isinstance(turn, Granted) for turn in turns] == [True] + 599 * [False]
    await other.void(worker, why="killed")
    lease = await a_lease(other)
    await granted(other, lease, limit)
    (row,) = await other.limits()
    assert (row.held, row.queued) == (1, 0)


async def test_the_rate_is_one_for_all_processes(stores: list[Store]) -> None:
    """Many who start as fast as they may, here and there: never more than the rate in any span of time."""
    limit = Limit("rate", rate=5, per=0.2)
    leases: list[tuple[Store, Lease]] = [(store, await a_lease(store)) for store in stores for _ in range(10)]
    # Starts are remembered for the widest declaration: this one keeps them all.
    assert await stores[0].acquire(leases[0][1], "0/other#1", Limit("rate", rate=100, per=0.2)) == Granted()

    async def start(store: Store, lease: Lease) -> None:
        await granted(store, lease, limit)
        await store.free(lease, STEP)

    async with asyncio.timeout(60):
        await asyncio.gather(*(start(*one) for one in leases))
    started = sorted(at for (at,) in await starts(stores[0]))
    assert len(started) == 21
    assert all(later - first >= limit.span for first, later in zip(started, started[5:], strict=False))


async def starts(store: Store) -> list[tuple[Any, ...]]:
    """Return the starts that are remembered, behind the store's back."""
    if isinstance(store, SqliteStore):
        with store._reader.one() as connection:
            return list(connection.execute("SELECT at FROM hf_starts"))
    assert isinstance(store, PostgresStore)
    return await store._reader.rows("SELECT at FROM hf_starts")


@pytest.mark.parametrize("how", ["commit", "transact"])
async def test_a_slot_given_back_on_sqlite_wakes_who_waits_without_a_look_at_the_file(tmp_path: Path, how: str) -> None:
    """Whoever looks now and then finds it too, but later; in a transaction nobody was told."""
    store = await SqliteStore.open(str(tmp_path / "store.db"))
    holder, waiter = await a_lease(store), await a_lease(store)
    bell = store.watch(waiter.row.run, entries=False)
    store._listener.close()
    one = Limit("one", at_once=1)
    assert [await store.acquire(lease, "0/call#1", one) == Granted() for lease in (holder, waiter)] == [True, False]
    store._writer.look()  # the first always finds something new
    await asyncio.sleep(0)
    await bell.wait(0)
    done = Pen(store, holder).next("done", freed=["0/call#1"])
    if how == "commit":
        await store.commit(holder, done)
    else:
        await store.transact(holder, lambda _: done, deadline_seconds=5)
    async with asyncio.timeout(10):
        await bell.wait(None)
    await store.close()
