"""Reads on PostgreSQL that are wanted at one time are asked as one, and none spoils its neighbour's."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.cursor import START
from holdfast.core.errors import NotFound, StoreRefused, StoreUnavailable
from holdfast.core.ids import new_run_id
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.gathering import FIRST_ENTRIES, Gathered, Several
from holdfast.store.value import Committed
from holdfast.testing.contract.story import Pen, a_lease, a_post, a_run, journal_of, words

RUNS = 40


class Counted:
    """How many questions went together, each time that some were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.sizes: list[int] = []
        ask = getattr(Several, name)

        async def counted(several: Several, asked: Sequence[Any], connection: Any) -> Any:
            self.sizes.append(len(asked))
            return await ask(several, asked, connection)

        monkeypatch.setattr(Several, name, counted)


async def test_journals_that_are_loaded_at_one_time_are_asked_for_together(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets its own, however many are asked for in one go, and whoever is not there is not found."""
    counted = Counted(monkeypatch, "beginnings")
    store = await PostgresStore.open(postgres_address)
    runs = [a_run(store) for _ in range(RUNS)]
    await asyncio.gather(*(store.create(run) for run in runs))
    wanted = [run.row.run for run in runs]
    pages = await asyncio.gather(*(store.read(run, START, chunks=False) for run in wanted))
    with pytest.raises(NotFound):
        await store.read(new_run_id(), START, chunks=False)
    await store.close()
    assert [page.row.run for page in pages] == wanted
    assert [page.entries[0].body for page in pages] == [run.first.body for run in runs]
    assert sum(counted.sizes) == RUNS + 1
    assert len(counted.sizes) <= RUNS // 8


async def test_a_journal_longer_than_what_is_asked_for_together_is_read_to_its_end(postgres_address: str) -> None:
    """The first page of a load is short; what follows comes by itself."""
    store = await PostgresStore.open(postgres_address)
    pen = Pen(store, await a_lease(store))
    said = [f"word {number}" for number in range(FIRST_ENTRIES + 9)]
    for word in said:
        assert isinstance(await store.commit(pen.lease, pen.next(word)), Committed)
    page = await store.read(pen.lease.row.run, START, chunks=False)
    found = words(await journal_of(store, pen.lease.row.run))
    await store.close()
    assert (len(page.entries), page.more) == (FIRST_ENTRIES, True)
    assert found == said


async def test_inboxes_that_are_looked_at_at_one_time_are_asked_for_together(
    postgres_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run gets its own posts, and only those that it has not seen."""
    counted = Counted(monkeypatch, "inboxes")
    store = await PostgresStore.open(postgres_address)
    runs = [a_run(store) for _ in range(RUNS)]
    await asyncio.gather(*(store.create(run) for run in runs))
    for number, run in enumerate(runs):
        for nth in range(1 + number % 2):
            await store.post(a_post(run.row.run, f"{number}-{nth}"))
    found = await asyncio.gather(*(store.inbox(run.row.run, after=1) for run in runs))
    await store.close()
    assert [[post.key for post in posts] for posts in found] == [
        [f"{number}-1"] if number % 2 else [] for number in range(RUNS)
    ]
    assert sum(counted.sizes) == RUNS
    assert len(counted.sizes) <= RUNS // 8


async def double(asked: Sequence[int], _: Any) -> Sequence[int]:
    """Double numbers, unless one of them is bad."""
    if 3 in asked:
        raise StoreRefused("three is damaged")
    return [2 * number for number in asked]


async def at_once(question: Any) -> Any:
    """Ask without a connection."""
    return await question(None)


async def test_what_is_damaged_for_one_is_read_by_its_neighbours() -> None:
    """Asked together all of them fail; then each is asked alone."""
    gathered = Gathered(at_once, double)
    found = await asyncio.gather(*(gathered(number) for number in range(5)), return_exceptions=True)
    assert [number for number in found if isinstance(number, int)] == [0, 2, 4, 8]
    assert isinstance(found[3], StoreRefused)


async def test_a_store_that_is_away_is_so_for_all_who_asked_and_for_nobody_after() -> None:
    """Nobody waits for ever for an answer that went with the connection."""
    away = [True]

    async def ask(question: Any) -> Any:
        if away.pop() if away else False:
            raise StoreUnavailable("away")
        return await question(None)

    gathered = Gathered(ask, double)
    found = await asyncio.gather(*(gathered(number) for number in range(2)), return_exceptions=True)
    assert [type(error) for error in found] == [StoreUnavailable, StoreUnavailable]
    assert await gathered(1) == 2


async def test_who_does_not_wait_any_more_takes_nobodys_answer_away() -> None:
    """A run that is cancelled while it loads stands in one question with runs that are not."""
    gathered = Gathered(at_once, double)
    asked = [asyncio.ensure_future(gathered(number)) for number in range(3)]
    await asyncio.sleep(0)
    asked[1].cancel()
    assert await asked[0] == 0
    assert await asked[2] == 4
    assert asked[1].cancelled()


@pytest.mark.parametrize("turns", range(12))
async def test_a_question_that_comes_as_the_last_ones_are_answered_is_asked_too(turns: int) -> None:
    """Whatever moment it comes at: between the end of whoever asks and the news of it nobody asks for him."""
    first_is_asked, answered = asyncio.Event(), asyncio.Event()

    async def ask(question: Any) -> Any:
        first_is_asked.set()
        await answered.wait()
        return await question(None)

    gathered = Gathered(ask, double)
    asked = [asyncio.ensure_future(gathered(4))]
    await first_is_asked.wait()
    asked.append(asyncio.ensure_future(gathered(5)))
    for _ in range(4):
        await asyncio.sleep(0)  # two are on their way now, and end in one turn of the loop
    answered.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    asked.append(asyncio.ensure_future(gathered(6)))
    _, waiting = await asyncio.wait(asked, timeout=5)
    for task in waiting:
        task.cancel()
    assert not waiting
