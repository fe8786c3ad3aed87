"""The connections that read on PostgreSQL: how many there are, and where they keep their plans."""

import asyncio
from contextlib import AsyncExitStack

from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.address import parse
from holdfast.store.postgres.pool import Pool
from holdfast.testing.contract.story import a_run
from tests.contract.test_postgres_opening import rows

OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()"
KEPT = b"SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%hf\\_runs%'"


async def plans_kept(address: str) -> int:
    """Ask the same several times, and return how many plans the connection that was asked keeps for it."""
    store = await PostgresStore.open(f"{address}&pool=1")
    try:
        for _ in range(4):
            await store.get(a_run(store).row.run)
        async with store._reader.connection() as connection:
            return int((await (await connection.execute(KEPT, prepare=False)).fetchall())[0][0])
    finally:
        await store.close()


async def test_what_is_asked_again_is_not_planned_again(postgres_address: str) -> None:
    """Planning a read takes the server several times as long as answering it."""
    assert await plans_kept(postgres_address) == 1


async def test_behind_a_pooler_no_plan_is_kept(pooled: str) -> None:
    """The next statement may go to another process of the server's, which does not know it."""
    assert await plans_kept(pooled) == 0


async def test_a_plan_that_the_server_lost_costs_nobody_his_answer(postgres_address: str) -> None:
    """Something between that cannot be seen, or a person's DEALLOCATE: it is asked again, and none is kept any more."""
    store = await PostgresStore.open(f"{postgres_address}&pool=1")
    new = a_run(store)
    await store.create(new)
    for _ in range(4):
        await store.get(new.row.run)
    async with store._reader.connection() as connection:
        await connection.execute(b"DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$", prepare=False)
    try:
        found = [await store.get(new.row.run) for _ in range(4)]
        async with store._reader.connection() as connection:
            threshold = connection.prepare_threshold
    finally:
        await store.close()
    assert [row and row.run for row in found] == [new.row.run] * 4
    assert threshold is None


async def test_a_plan_that_holds_no_more_is_made_anew(postgres_address: str) -> None:
    """As when a newer version has changed what a statement gives: the connection that kept the plan is let go of."""
    store = await PostgresStore.open(f"{postgres_address}&pool=1")
    rows(postgres_address, "CREATE TABLE hf_changing (number int)")

    async def ask() -> None:
        await store._reader.rows("SELECT * FROM hf_changing")

    try:
        for _ in range(4):
            await ask()
        rows(postgres_address, "ALTER TABLE hf_changing ALTER COLUMN number TYPE text")
        await ask()
        async with store._reader.connection() as connection:
            threshold = connection.prepare_threshold
    finally:
        await store.close()
    assert threshold == 1


async def test_a_process_that_only_looks_has_two_connections(postgres_address: str) -> None:
    """The one that opened the store, which will write, and one that reads."""
    store = await PostgresStore.open(postgres_address)
    before = rows(postgres_address, OURS)[0][0]
    for _ in range(4):
        await store.get(a_run(store).row.run)
    during = rows(postgres_address, OURS)[0][0]
    await store.close()
    assert (before, during) == (1, 2)


async def test_the_first_run_is_written_over_the_connection_that_opened_the_store(postgres_address: str) -> None:
    """A program of one run makes no other that writes."""
    store = await PostgresStore.open(postgres_address)
    await store.create(a_run(store))
    writing = [lane._connection is not None for lane in store._lanes]
    await store.close()
    assert sorted(writing) == [False, False, True]


async def test_whoever_waits_long_gets_a_connection_more_up_to_the_bound(postgres_address: str) -> None:
    """Two that are held for long make a third, a third a fourth; a fifth waits."""
    pool = Pool(parse(f"{postgres_address}&pool=4"))

    async def hold(held: asyncio.Queue[int], done: asyncio.Event) -> None:
        async with pool.connection() as connection:
            held.put_nowait(connection.info.backend_pid)
            await done.wait()

    held: asyncio.Queue[int] = asyncio.Queue()
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        before = pool.most
        holders = [asyncio.ensure_future(hold(held, done)) for _ in range(6)]
        four = {await held.get() for _ in range(4)}
        waiting = sum(not holder.done() for holder in holders) - len(four)
        grown, more = pool.most, held.qsize()
        done.set()
        await asyncio.gather(*holders)
    assert (before, len(four), grown, more, waiting) == (2, 4, 4, 0, 2)
