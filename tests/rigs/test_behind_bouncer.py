"""Holdfast behind PgBouncer in transaction mode: nothing of it needs a session."""

import asyncio

import psycopg

import holdfast as hf
from holdfast.core.cursor import START
from holdfast.store.postgres import PostgresStore
from holdfast.testing.contract.story import Pen, a_lease
from tests.rigs.server import plain

_SECONDS = 30.0


def double(number: int) -> int:
    """Compute."""
    return 2 * number


def book(transaction: hf.Transaction, number: int) -> int:
    """Write to a table of the user's."""
    transaction.execute("INSERT INTO public.pooled_bookings VALUES (?)", [number])
    return number


@hf.durable
async def tale(ctx: hf.Context, number: int) -> int:
    """Take every kind of step."""
    doubled = await ctx.step(double, number, effect="once")
    await ctx.emit({"half": number})
    return await ctx.step(book, doubled)


async def test_runs_go_through_a_pooler_in_transaction_mode(pooled: str, postgres_address: str) -> None:
    """Intents, results, transactions, claims and reads of many runs over two connections."""
    with psycopg.connect(plain(postgres_address), autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.pooled_bookings (number bigint)")
    async with hf.open(pooled, hf.App(tale)) as runtime:
        runs = [await runtime.start(tale, number, key=("tale", number)) for number in range(20)]
        assert [await run.result(timeout=_SECONDS) for run in runs] == [2 * number for number in range(20)]
        assert [finding async for finding in runtime.client.verify()] == []


async def test_a_process_that_hears_no_hints_looks_by_itself(pooled: str) -> None:
    """Behind a pooler NOTIFY reaches nobody; a bell rings all the same, before long."""
    one, other = await PostgresStore.open(pooled), await PostgresStore.open(pooled)
    try:
        pen = Pen(one, await a_lease(one))
        bell = other.watch(pen.lease.row.run)
        await one.commit(pen.lease, pen.next("word"))
        async with asyncio.timeout(_SECONDS):
            while len((await other.read(pen.lease.row.run, START)).entries) < 2 or other._hints.heard:
                await bell.wait()
            await bell.wait()
    finally:
        await one.close()
        await other.close()
