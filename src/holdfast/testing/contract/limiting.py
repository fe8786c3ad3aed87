"""What `acquire`, `free` and `limits` promise: never more than a limit allows, in fair order, none for the dead."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.core.limit import Limit
from holdfast.core.status import Status
from holdfast.store.clock import Clock
from holdfast.store.protocol import Store
from holdfast.store.value import Committed, Granted, HeadMoved, Lease, LeaseLost, LimitRow, Queued, RowChange, Turn
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import Pen, a_lease, a_run, a_worker, claimed

ONE = Limit("one", at_once=1)
TWO = Limit("two", at_once=2)
STEP = "0/call#1"


class LimitContract:
    """A slot belongs to a lease; a place in the queue too."""

    async def test_no_more_slots_are_given_than_there_are(self, store: Store) -> None:
        """Whoever comes when all are taken waits, and asking again changes nothing."""
        leases = [await a_lease(store) for _ in range(4)]
        assert [await _asked(store, lease, TWO) for lease in leases] == [True, True, False, False]
        assert [await _asked(store, lease, TWO) for lease in leases] == [True, True, False, False]
        assert await _counts(store, "two") == (2, 2)

    async def test_of_many_that_ask_at_once_as_many_get_a_slot_as_there_are(self, store: Store) -> None:
        """Two who ask in the same moment do not both get the last one."""
        leases = [await a_lease(store) for _ in range(20)]
        turns = await asyncio.gather(*(store.acquire(lease, STEP, Limit("many", at_once=7)) for lease in leases))
        assert turns.count(Granted()) == 7
        assert await _counts(store, "many") == (7, 13)

    async def test_a_slot_is_given_back_with_the_commit_that_says_so(self, store: Store) -> None:
        """What ends the step frees its slot, in the same commit, and the next in the queue has it."""
        holder, waiter, third = [await a_lease(store) for _ in range(3)]
        assert [await _asked(store, lease, ONE) for lease in (holder, waiter, third)] == [True, False, False]
        pen = Pen(store, holder)
        assert await store.commit(holder, pen.next("done", freed=[STEP])) == Committed(2)
        assert [await _asked(store, lease, ONE) for lease in (third, waiter)] == [False, True]
        assert await store.commit(holder, pen.next("more", freed=[STEP])) == Committed(3)
        assert await _counts(store, "one") == (1, 1)

    async def test_a_refused_commit_gives_nothing_back(self, store: Store) -> None:
        """A step that is not over keeps its slot."""
        holder, waiter = await a_lease(store), await a_lease(store)
        assert await _asked(store, holder, ONE)
        pen = Pen(store, holder)
        pen.seq += 1
        assert await store.commit(holder, pen.next("ahead", freed=[STEP])) == HeadMoved(1)
        assert not await _asked(store, waiter, ONE)
        assert await _asked(store, holder, ONE)

    async def test_a_commit_in_a_transaction_gives_back_too(self, store: Store) -> None:
        """A step of the store's own database is a step like any other."""
        holder, waiter = await a_lease(store), await a_lease(store)
        assert [await _asked(store, lease, ONE) for lease in (holder, waiter)] == [True, False]
        pen = Pen(store, holder)
        outcome = await store.transact(holder, lambda _: pen.next("done", freed=[STEP]), deadline_seconds=5)
        assert outcome == Committed(2)
        assert await _asked(store, waiter, ONE)

    async def test_a_slot_and_a_place_can_be_given_up(self, store: Store) -> None:
        """Whoever does not want it any more holds nobody up; giving up what one has not is nothing."""
        holder, second, third = [await a_lease(store) for _ in range(3)]
        assert [await _asked(store, lease, ONE) for lease in (holder, second, third)] == [True, False, False]
        await store.free(second, STEP)
        await store.free(holder, STEP)
        await store.free(holder, "0/other#1")
        assert await _asked(store, third, ONE)
        assert await _counts(store, "one") == (1, 0)

    @pytest.mark.parametrize("how", ["void", "release", "park"])
    async def test_a_slot_ends_with_the_lease_it_belongs_to(self, store: Store, how: str) -> None:
        """Nobody has to tell the limit that a worker is dead: what it held is free at once, and it is told so."""
        holder, waiter = await a_lease(store), await a_lease(store)
        assert [await _asked(store, lease, ONE) for lease in (holder, waiter)] == [True, False]
        match how:
            case "void":
                await store.void(holder.worker, why="its lock was free")
            case "release":
                await store.release(holder.worker)
            case "park":
                change = RowChange(status=Status.WAITING, due_at=store.now())
                await store.commit(holder, Pen(store, holder).next("rest", change=change))
        assert await store.acquire(holder, STEP, ONE) == LeaseLost()
        assert await _asked(store, waiter, ONE)

    async def test_a_run_that_is_claimed_again_begins_without_a_slot(self, store: Store) -> None:
        """The old owner's slot is not the new one's: the step asks anew, behind those who wait."""
        holder, waiter = await a_lease(store), await a_lease(store)
        assert [await _asked(store, lease, ONE) for lease in (holder, waiter)] == [True, False]
        await store.void(holder.worker, why="its lock was free")
        lease = await claimed(store, await a_worker(store), holder.row.run)
        assert not await _asked(store, lease, ONE)
        assert await _asked(store, waiter, ONE)
        assert await _counts(store, "one") == (1, 1)
        await store.free(waiter, STEP)
        assert await _asked(store, lease, ONE)
        # What the old owner may still say of the step is not heard.
        await store.free(holder, STEP)
        assert await _asked(store, lease, ONE)
        assert await store.acquire(holder, STEP, ONE) == LeaseLost()

    async def test_the_dead_in_the_queue_are_passed_over(self, store: Store) -> None:
        """A place belongs to a lease like a slot does."""
        holder, dead, waiter = [await a_lease(store) for _ in range(3)]
        assert [await _asked(store, lease, ONE) for lease in (holder, dead, waiter)] == [True, False, False]
        await store.void(dead.worker, why="its lock was free")
        assert await _counts(store, "one") == (1, 1)
        await store.free(holder, STEP)
        assert await _asked(store, waiter, ONE)
        assert await _counts(store, "one") == (1, 0)

    async def test_the_highest_priority_goes_first_and_then_the_oldest(self, store: Store) -> None:
        """Urgent work overtakes; among equals it is first come, first served."""
        holder = await a_lease(store)
        assert await _asked(store, holder, ONE)
        priorities = [0, 5, -3, 5, 0]
        leases = [await a_lease(store) for _ in priorities]
        for lease, priority in zip(leases, priorities, strict=True):
            assert not await _asked(store, lease, ONE.with_priority(priority))
        assert await _served(store, holder, leases) == [1, 3, 0, 4, 2]

    async def test_the_tenant_that_holds_fewest_slots_goes_before_one_that_holds_more(self, store: Store) -> None:
        """A tenant with a long queue does not push the others out."""
        limit = Limit("fair", at_once=2)
        a1, a2 = [await a_lease(store, tenant="a") for _ in range(2)]
        assert [await _asked(store, lease, limit) for lease in (a1, a2)] == [True, True]
        leases = [await a_lease(store, tenant=tenant) for tenant in "aaabc"]
        for lease in leases:
            assert not await _asked(store, lease, limit)
        await store.free(a1, STEP)
        assert [await _asked(store, lease, limit) for lease in leases] == [False, False, False, True, False]
        await store.free(a2, STEP)
        # Nobody of a or c holds any now: among equals the oldest goes first.
        assert [await _asked(store, lease, limit) for lease in leases] == [True, False, False, True, False]
        await store.free(leases[3], STEP)
        assert [await _asked(store, leases[n], limit) for n in (0, 1, 2, 4)] == [True, False, False, True]

    async def test_steps_start_no_faster_than_the_rate_in_any_span(self, store: Store, clock: MovingClock) -> None:
        """Not on average but always: never more than `rate` starts within `per` seconds, however they are spread."""
        limit = Limit("rate", rate=3, per=10.0)
        started: list[int] = []
        for seconds in (0.0, 0.0, 4.0, 0.0, 3.0, 3.0, 0.0, 0.5, 3.5, 0.0, 6.0, 0.0, 0.0, 0.0):
            clock.advance(seconds)
            lease = await a_lease(store)
            if await _asked(store, lease, limit):
                started.append(store.now())
            await store.free(lease, STEP)
        first = started[0]
        assert [(at - first) / 1e6 for at in started] == [0.0, 0.0, 4.0, 10.0, 10.0, 14.0, 20.0, 20.0]

    async def test_whoever_is_next_is_told_when_the_rate_lets_it_start(self, store: Store, clock: MovingClock) -> None:
        """It need not ask before, and at that moment it has its turn; those behind it wait to be woken."""
        limit = Limit("rate", rate=2, per=3.0)
        leases = [await a_lease(store) for _ in range(4)]
        assert [await _asked(store, lease, limit) for lease in leases] == [True, True, False, False]
        turn = await store.acquire(leases[2], STEP, limit)
        assert turn == Queued(store.now() + 3_000_000)
        behind = await store.acquire(leases[3], STEP, limit)
        assert isinstance(behind, Queued)
        assert behind.ask_again_at > store.now() + 3_000_000
        clock.advance(2.9)
        assert not await _asked(store, leases[2], limit)
        clock.advance(0.1)
        assert await _asked(store, leases[2], limit)
        assert await _asked(store, leases[3], limit)

    async def test_a_start_counts_once_however_it_ends(self, store: Store, clock: MovingClock) -> None:
        """A slot that is given back at once, or whose worker died, was a start all the same."""
        limit = Limit("rate", rate=2, per=60.0, at_once=9)
        one, two, three = [await a_lease(store) for _ in range(3)]
        assert await _asked(store, one, limit)
        assert await _asked(store, one, limit)
        await store.free(one, STEP)
        assert await _asked(store, two, limit)
        await store.void(two.worker, why="its lock was free")
        assert not await _asked(store, three, limit)
        clock.advance(60)
        assert await _asked(store, three, limit)

    async def test_a_slot_given_back_by_an_entry_that_came_late_makes_no_start_earlier(
        self, store: Store, clock: MovingClock
    ) -> None:
        """An entry may wait for its commit while others start: their starts stay when they were."""
        first, second, third = [await a_lease(store) for _ in range(3)]
        limit = Limit("paced", rate=1, per=10)
        assert await _asked(store, first, limit)
        late = Pen(store, first).next("done", freed=[STEP])
        clock.advance(10)
        assert await _asked(store, second, limit)
        assert await store.commit(first, late) == Committed(2)
        clock.advance(6)
        assert not await _asked(store, third, limit)
        clock.advance(4)
        assert await _asked(store, third, limit)

    async def test_a_clock_that_is_set_back_holds_nobody_up_for_longer_than_the_span(
        self, open_store: Callable[[Clock], Awaitable[Store]]
    ) -> None:
        """A start that seems to lie ahead counts as one of now."""
        times = [1_000_000_000_000]
        store = await open_store(lambda: times[-1])
        limit = Limit("rate", rate=1, per=3.0)
        assert await _asked(store, await a_lease(store), limit)
        times.append(times[-1] - 3_600_000_000)
        lease = await a_lease(store)
        assert await store.acquire(lease, STEP, limit) == Queued(times[-1] + 3_000_000)
        times.append(times[-1] + 2_999_999)
        assert not await _asked(store, lease, limit)
        times.append(times[-1] + 1)
        assert await _asked(store, lease, limit)
        await store.close()

    @pytest.mark.parametrize("how", ["commit", "transact", "free", "void"])
    async def test_whoever_watches_is_woken_at_its_turn(self, store: Store, how: str) -> None:
        """Nobody has to ask again and again: the bell of its run rings."""
        holder, waiter = await a_lease(store), await a_lease(store)
        assert await _asked(store, holder, ONE)
        bell = store.watch(waiter.row.run, entries=False)
        assert not await _asked(store, waiter, ONE)
        match how:
            case "commit":
                await store.commit(holder, Pen(store, holder).next("done", freed=[STEP]))
            case "transact":
                done = Pen(store, holder).next("done", freed=[STEP])
                await store.transact(holder, lambda _: done, deadline_seconds=5)
            case "free":
                await store.free(holder, STEP)
            case "void":
                await store.void(holder.worker, why="its lock was free")
        async with asyncio.timeout(10):
            # A bell may also ring for what happened before.
            while await _counts(store, "one") != (1, 0):
                await bell.wait(None)
        assert await _asked(store, waiter, ONE)
        bell.close()

    @pytest.mark.parametrize("how", ["commit", "free"])
    async def test_a_step_that_was_given_a_slot_and_gave_it_back_unseen_asks_anew(self, store: Store, how: str) -> None:
        """What it was told belongs to the first time: a slot that it has not got would be one too many."""
        holder, waiter, third = [await a_lease(store) for _ in range(3)]
        bell = store.watch(waiter.row.run, entries=False)
        assert [await _asked(store, lease, ONE) for lease in (holder, waiter)] == [True, False]
        await store.free(holder, STEP)
        if how == "commit":
            await store.commit(waiter, Pen(store, waiter).next("cancelled", freed=[STEP]))
        else:
            await store.free(waiter, STEP)
        assert await _asked(store, third, ONE)
        assert not await _asked(store, waiter, ONE)
        assert await _counts(store, "one") == (1, 1)
        bell.close()

    async def test_steps_of_one_run_hold_a_slot_each(self, store: Store) -> None:
        """The slot is the step's, not the run's."""
        lease = await a_lease(store)
        assert await _asked(store, lease, TWO, "0/a#1")
        assert await _asked(store, lease, TWO, "0/b#1")
        assert not await _asked(store, lease, TWO, "0/c#1")
        await store.free(lease, "0/a#1")
        assert await _asked(store, lease, TWO, "0/c#1")

    async def test_limits_of_other_names_are_not_touched(self, store: Store) -> None:
        """A full limit holds up only those who asked for it."""
        one, two = await a_lease(store), await a_lease(store)
        assert await _asked(store, one, ONE)
        assert await _asked(store, two, Limit("another", at_once=1))
        assert not await _asked(store, two, ONE, "0/b#1")

    async def test_a_limit_is_as_wide_as_it_was_last_declared(self, store: Store) -> None:
        """A deploy that changes a number needs no other step, in either direction."""
        leases = [await a_lease(store) for _ in range(5)]
        assert [await _asked(store, lease, TWO) for lease in leases[:3]] == [True, True, False]
        assert await _asked(store, leases[3], Limit("two", at_once=4, rate=100, per=2.0))
        assert await _asked(store, leases[2], Limit("two", at_once=4, rate=100, per=2.0))
        assert not await _asked(store, leases[4], TWO)
        await store.free(leases[0], STEP)
        assert not await _asked(store, leases[4], TWO)

    async def test_every_limit_is_listed_with_how_full_it_is(self, store: Store) -> None:
        """Whoever looks sees what is declared, held and waited for."""
        assert await store.limits() == []
        leases = [await a_lease(store) for _ in range(3)]
        for lease in leases:
            await store.acquire(lease, STEP, TWO)
        await store.acquire(leases[0], "0/b#1", Limit("arxiv", rate=5, per=60.0))
        assert await store.limits() == [
            LimitRow(name="arxiv", at_once=None, starts=5, span=60_000_000, held=1, queued=0),
            LimitRow(name="two", at_once=2, starts=None, span=0, held=2, queued=1),
        ]

    async def test_a_lease_that_is_ahead_of_its_run_can_ask(self, store: Store) -> None:
        """A run that was leased before its creation is on disk may begin with a limited step."""
        worker = await a_worker(store)
        for number in range(3):
            soon = store.create_soon(a_run(store), worker=worker)
            if soon is None:
                # It may always say that it cannot promise this now.
                await store.pulse(worker)
                continue
            lease, created = soon
            assert await _asked(store, lease, Limit(f"limit {number}", at_once=1))
            await created


async def _asked(store: Store, lease: Lease, limit: Limit, step: str = STEP) -> bool:
    """Ask for a slot and say whether there was one."""
    turn: Turn = await store.acquire(lease, step, limit)
    assert isinstance(turn, Granted | Queued)
    return isinstance(turn, Granted)


async def _counts(store: Store, name: str) -> tuple[int, int]:
    """Return how many slots of a limit are held, and how many are waited for."""
    [row] = [row for row in await store.limits() if row.name == name]
    return row.held, row.queued


async def _served(store: Store, holder: Lease, leases: list[Lease]) -> list[int]:
    """Free the only slot of ONE again and again; return in which order those who wait had it."""
    order: list[int] = []
    waiting = dict(enumerate(leases))
    while waiting:
        await store.free(holder, STEP)
        [turn] = [n for n, lease in waiting.items() if await _asked(store, lease, ONE)]
        holder = waiting.pop(turn)
        order.append(turn)
    return order
