"""What one process does on PostgreSQL rings the bells of the others."""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from holdfast.core.status import Status
from holdfast.store.postgres import PostgresStore
from holdfast.store.value import Committed, NewChunk, RowChange
from holdfast.testing.contract.story import Pen, a_lease, a_post, a_run
from tests.rigs.server import plain

_SECONDS = 20.0
Two = tuple[PostgresStore, PostgresStore]


@pytest.fixture
async def two(postgres_address: str) -> AsyncIterator[Two]:
    """One store opened twice, as two processes would."""
    one, other = await PostgresStore.open(postgres_address), await PostgresStore.open(postgres_address)
    yield one, other
    await one.close()
    await other.close()


@pytest.mark.parametrize("what", ["entry", "chunk", "post", "rest"])
async def test_whoever_watches_a_run_elsewhere_is_rung(two: Two, what: str) -> None:
    """A watcher in another process need not wait for its next look."""
    one, other = two
    pen = Pen(one, await a_lease(one))
    bell = other.watch(pen.lease.row.run)
    await _quiet(bell)
    match what:
        case "entry":
            assert await one.commit(pen.lease, pen.next("word")) == Committed(2)
        case "chunk":
            assert await one.chunks(pen.lease, [NewChunk(1, "s", 1, 0, b"1")])
        case "post":
            await one.post(a_post(pen.lease.row.run, "p"))
        case "rest":
            await one.commit(pen.lease, pen.next("rest", change=RowChange(status=Status.WAITING)))
    await asyncio.wait_for(bell.wait(), _SECONDS)


@pytest.mark.parametrize("what", ["created", "released", "voided"])
async def test_a_worker_elsewhere_is_rung_for_whatever_may_be_claimed(two: Two, what: str) -> None:
    """A run waits for no poll."""
    one, other = two
    pen = Pen(one, await a_lease(one))
    bell = other.watch(None)
    await _quiet(bell)
    match what:
        case "created":
            await one.create(a_run(one))
        case "released":
            assert await one.release(pen.lease.worker) == 1
        case "voided":
            assert await one.void(pen.lease.worker, why="test") == 1
    await asyncio.wait_for(bell.wait(), _SECONDS)


async def test_after_its_connection_was_cut_a_listener_looks_and_hears_again(two: Two, postgres_address: str) -> None:
    """What was said meanwhile was heard by nobody, so every bell rings once."""
    one, other = two
    pen = Pen(one, await a_lease(one))
    bell = other.watch(pen.lease.row.run)
    await _quiet(bell)
    with psycopg.connect(plain(postgres_address), autocommit=True) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query = 'SELECT 1'"
        ).fetchall()
    assert ended
    await asyncio.wait_for(bell.wait(), _SECONDS)
    assert await one.commit(pen.lease, pen.next("word")) == Committed(2)
    await asyncio.wait_for(bell.wait(), _SECONDS)


async def _quiet(bell: object) -> None:
    """Let the ring pass that says that listening began."""
    wait = getattr(bell, "wait", None)
    assert wait is not None
    await asyncio.wait_for(wait(), _SECONDS)
