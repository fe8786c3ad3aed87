"""A death in a process that goes on: nothing runs after it, and nothing is left of it once it is buried."""

import asyncio
import threading

import pytest

from holdfast.core.cursor import START
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Created
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import Pen, a_lease, a_run
from holdfast.testing.mortal import MortalLoop, MortalStore


def test_whatever_else_was_ready_when_the_loop_died_is_not_done() -> None:
    """A crash is one instant for all tasks, also for those whose turn was next."""
    loop, ticks, left, running = MortalLoop(), list[str](), list[str](), list[asyncio.Future[None]]()

    async def tick(name: str) -> None:
        try:
            while True:
                ticks.append(name)
                await asyncio.sleep(0)
        finally:
            left.append(name)

    async def life() -> None:
        running.append(asyncio.ensure_future(tick("before")))
        running.append(asyncio.ensure_future(tick("after")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ticks.append("death")
        loop.die()
        await loop.create_future()

    loop.live(life())
    assert ticks[-1] == "death"
    assert left == []
    loop.bury()
    assert ticks[-1] == "death"
    assert sorted(left) == ["after", "before"]
    assert loop.is_closed()


def test_an_answer_from_another_thread_comes_too_late_for_the_dead() -> None:
    """What a step's thread says after the death, nobody hears."""
    loop, heard, dead = MortalLoop(), list[str](), threading.Event()

    def speak() -> None:
        dead.wait(10)
        loop.call_soon_threadsafe(heard.append, "too late")

    async def life() -> None:
        loop.die()

    thread = threading.Thread(target=speak)
    thread.start()
    loop.live(life())
    dead.set()
    thread.join()
    assert heard == []
    loop.bury()


def test_a_life_that_is_not_cut_returns_and_raises_as_it_is() -> None:
    """The loop is an ordinary one until it dies."""
    loop = MortalLoop()

    async def life() -> None:
        raise LookupError("no luck")

    with pytest.raises(LookupError, match="no luck"):
        loop.live(life())
    loop.bury()


@pytest.mark.parametrize(("die_at", "entries"), [(1, 1), (2, 2), (3, 2), (4, 3), (None, 3)])
def test_a_store_is_left_as_it_was_at_the_nth_place(die_at: int | None, entries: int) -> None:
    """Before a commit it is not there, after it is; nothing is written by the dead."""
    store, loop = MemoryStore(clock=MovingClock()), MortalLoop()
    mortal = MortalStore(store, loop, die_at)
    found: list[int] = []

    async def life() -> None:
        lease = await a_lease(store)
        pen = Pen(store, lease)
        _ = mortal.commit(lease, pen.next("one"))
        _ = mortal.commit(lease, pen.next("two"))
        found.append(len((await store.read(lease.row.run, START)).entries))

    loop.live(life())
    assert found == [entries]
    assert (mortal.died is None) == (die_at is None)
    loop.bury()


async def test_a_twin_has_the_same_contents_and_goes_its_own_way() -> None:
    """Who opens a store after a crash finds what was committed, and changes nothing in the hands of the dead."""
    store = MemoryStore(clock=MovingClock())
    lease = await a_lease(store, key="k")
    pen = Pen(store, lease)
    await store.commit(lease, pen.next("one"))
    twin = store.twin(clock=MovingClock())
    await store.commit(lease, pen.next("two"))
    run = lease.row.run
    assert [len((await each.read(run, START)).entries) for each in (store, twin)] == [3, 2]
    assert await twin.find(lease.row.tenant, "k") == await twin.get(run)
    assert (await twin.workers()) == (await store.workers())
    assert isinstance(await twin.create(a_run(twin)), Created)
    assert len(store._rows) == 1
