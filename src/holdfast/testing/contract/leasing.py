"""What `claim`, `release`, `void` and the workers' verbs promise: one owner, and nobody waits for the dead."""

import asyncio

import pytest

from holdfast.core import limits
from holdfast.core.ids import new_worker_id
from holdfast.core.status import Status
from holdfast.core.version import begun, left_to_others
from holdfast.store.protocol import Store
from holdfast.store.value import Committed, Created, Lease, LeaseLost, RowChange, RunFilter
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import (
    NAME,
    SERVES,
    Pen,
    a_lease,
    a_post,
    a_run,
    a_worker,
    claimed,
    journal_of,
    row_of,
)


class LeaseContract:
    """A lease is the right to write one run; a claim counts before anything is loaded."""

    async def test_a_claim_takes_what_is_due_and_counts_it(self, store: Store) -> None:
        """The attempt is in the row before the run's journal is read, so that a poison run is counted too."""
        new = a_run(store)
        await store.create(new)
        worker = await a_worker(store)
        (lease,) = await store.claim(worker, SERVES, limit=9)
        assert (lease.worker, lease.fence, lease.row.owner) == (worker, 1, worker)
        assert (lease.row.attempt, lease.row.stalls) == (1, 1)
        assert lease.row == await row_of(store, new.row.run)
        assert await store.claim(worker, SERVES, limit=9) == []

    async def test_a_claim_takes_only_names_it_serves(self, store: Store) -> None:
        """A run whose code this worker does not have waits for one that has it."""
        await store.create(a_run(store, name="other"))
        worker = await a_worker(store)
        assert await store.claim(worker, SERVES, limit=9) == []
        assert await store.claim(worker, {}, limit=9) == []
        assert len(await store.claim(worker, {"other": "v1", **SERVES}, limit=9)) == 1

    async def test_a_version_that_diverged_is_not_given_the_run_again(self, store: Store) -> None:
        """Code that refused a run does not meet it again; other code does."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.WAITING, reason="diverged", due_at=store.now(), refused="|v1|v2|")
        await store.commit(pen.lease, pen.next("rest", change=change))
        worker = await a_worker(store)
        for version in ("v1", "v2"):
            assert await store.claim(worker, {NAME: version}, limit=9) == []
            assert await store.claim(worker, {NAME: version}, limit=9, runs=[pen.lease.row.run]) == []
        assert len(await store.claim(worker, {NAME: "v"}, limit=9)) == 1

    @pytest.mark.parametrize("left", [True, False], ids=["left", "not left"])
    async def test_what_is_asked_of_a_run_wakes_it_for_any_version_until_it_is_left_to_its_own(
        self, store: Store, left: bool
    ) -> None:
        """Anybody may apply a cancel; one who could not clean up leaves it to those who can, and is not given it."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        await store.post(a_post(run, "cancel", kind="cancel", control=True))
        word = left_to_others(begun("v1", 1, pin=True)) if left else begun("v1", 1, pin=True)
        change = RowChange(status=Status.WAITING, reason="pinned", due_at=store.now(), refused=word, seen_seq=0)
        await store.commit(pen.lease, pen.next("rest", change=change))
        worker = await a_worker(store)
        for runs in (None, [run]):
            taken = await store.claim(worker, {NAME: "v2"}, limit=9, runs=runs)
            assert len(taken) == (0 if left else 1)
            await store.release(worker)
        assert [row.run for row in await store.list(RunFilter(unheard=True, posted="cancel"))] == [run]
        assert len(await store.claim(worker, {NAME: "v1"}, limit=9)) == 1

    @pytest.mark.parametrize("narrowed", [True, False], ids=["by id", "any"])
    @pytest.mark.parametrize("status", [Status.PAUSED, Status.EXHAUSTED, Status.QUARANTINED, Status.COMPLETED])
    async def test_only_queued_and_waiting_runs_are_claimed(self, store: Store, status: Status, narrowed: bool) -> None:
        """A run that a person or a verdict put to rest stays there, even if it is due and has post."""
        pen = Pen(store, await a_lease(store))
        await store.post(a_post(pen.lease.row.run, "p"))
        change = RowChange(status=status, due_at=store.now(), seen_seq=0)
        assert await store.commit(pen.lease, pen.next("rest", change=change)) == Committed(2)
        runs = [pen.lease.row.run] if narrowed else None
        assert await store.claim(await a_worker(store), SERVES, limit=9, runs=runs) == []

    async def test_a_claim_takes_no_more_than_its_limit_and_the_longest_due_first(
        self, store: Store, clock: MovingClock
    ) -> None:
        """Whoever has waited longest goes first; the others are left for other workers."""
        new = [a_run(store, delay_seconds=delay) for delay in (30.0, 10.0, 20.0)]
        for run in new:
            await store.create(run)
        clock.advance(60)
        worker = await a_worker(store)
        leases = await store.claim(worker, SERVES, limit=2)
        assert [lease.row.run for lease in leases] == [new[1].row.run, new[2].row.run]
        assert await store.claim(worker, SERVES, limit=0) == []
        assert len(await store.claim(worker, SERVES, limit=9)) == 1

    async def test_a_claim_by_id_takes_those_runs_only_and_only_if_due(self, store: Store) -> None:
        """A worker for one tree takes nothing else, and nothing before its time."""
        due, later, other = a_run(store), a_run(store, delay_seconds=9.0), a_run(store)
        for new in (due, later, other):
            await store.create(new)
        leases = await store.claim(await a_worker(store), SERVES, limit=9, runs=[due.row.run, later.row.run])
        assert [lease.row.run for lease in leases] == [due.row.run]
        assert await store.claim(await a_worker(store), SERVES, limit=9, runs=[]) == []

    async def test_a_worker_that_nobody_knows_claims_nothing(self, store: Store) -> None:
        """No lease without a worker's row to void it by."""
        await store.create(a_run(store))
        assert await store.claim(new_worker_id(), SERVES, limit=9) == []

    async def test_workers_that_claim_at_once_share_without_overlap(self, store: Store) -> None:
        """Every run goes to exactly one of them."""
        runs = {(new := a_run(store)).row.run: await store.create(new) for _ in range(20)}
        workers = [await a_worker(store) for _ in range(5)]
        claims = await asyncio.gather(*(store.claim(worker, SERVES, limit=6) for worker in workers))
        taken = [lease.row.run for leases in claims for lease in leases]
        assert sorted(taken) == sorted(runs)

    async def test_a_post_makes_a_resting_run_due(self, store: Store) -> None:
        """A run without a timer wakes by what it is sent, once."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("rest", change=RowChange(status=Status.WAITING), inbox=0))
        worker = await a_worker(store)
        assert await store.claim(worker, SERVES, limit=9) == []
        await store.post(a_post(pen.lease.row.run, "p"))
        (lease,) = await store.claim(worker, SERVES, limit=9)
        pen = Pen(store, lease)
        await store.commit(lease, pen.next("again", change=RowChange(status=Status.WAITING, seen_seq=1), inbox=1))
        assert await store.claim(worker, SERVES, limit=9) == []

    async def test_a_released_lease_is_given_back_without_a_charge(self, store: Store) -> None:
        """A shutdown is not a death: the run is due as before and nothing counts against it."""
        worker = await a_worker(store)
        lease, kept = await a_lease(store, worker), await a_lease(store, worker)
        other = await a_lease(store)
        assert await store.release(worker, keep=[kept.row.run]) == 1
        row = await row_of(store, lease.row.run)
        assert (row.owner, row.stalls, row.damage) == (None, 0, "")
        assert (await row_of(store, kept.row.run)).owner == worker
        assert (await row_of(store, other.row.run)).owner == other.worker
        assert await store.commit(lease, Pen(store, lease).next("late")) == LeaseLost()
        assert await store.commit(kept, Pen(store, kept).next("mine")) == Committed(2)
        assert (await claimed(store, worker, lease.row.run)).fence == 2
        assert await store.release(new_worker_id()) == 0

    async def test_a_voided_workers_runs_are_due_at_once(self, store: Store) -> None:
        """Nothing stays running without a live lease: what a dead worker held can be claimed by the next."""
        worker, other = await a_worker(store), await a_worker(store)
        leases = [await a_lease(store, worker) for _ in range(3)]
        for lease in leases:
            pen = Pen(store, lease)
            await store.commit(lease, pen.next("progress"))
        assert await store.void(worker, why="its lock was free") == 3
        taken = await store.claim(other, SERVES, limit=9)
        assert {lease.row.run for lease in taken} == {lease.row.run for lease in leases}
        assert {(lease.fence, lease.row.attempt) for lease in taken} == {(2, 2)}
        assert await store.void(worker, why="again") == 0

    async def test_runs_left_without_progress_are_leased_one_at_a_time(self, store: Store) -> None:
        """A run that kills its worker must not take its neighbours along: only the one being driven is charged."""
        worker, other = await a_worker(store), await a_worker(store)
        left = {(await a_lease(store, worker)).row.run for _ in range(3)}
        await store.void(worker, why="its lock was free")
        healthy = await store.create(a_run(store))
        assert isinstance(healthy, Created)
        taken = [lease.row.run for lease in await store.claim(other, SERVES, limit=9)]
        assert (len(taken), len(left & set(taken)), healthy.row.run in taken) == (2, 1, True)
        assert await store.claim(other, SERVES, limit=9, suspects=False) == []
        await store.void(other, why="its lock was free")
        third = await a_worker(store)
        (least,) = await store.claim(third, SERVES, limit=1)
        assert least.row.run not in left & set(taken), "the least suspicious comes first"

    async def test_a_suspect_that_only_a_post_wakes_is_woken_like_any_other_suspect(self, store: Store) -> None:
        """No wake-up is lost by a worker's death, and a post makes no suspect less suspicious."""
        resting = []
        for _ in range(2):
            pen = Pen(store, await a_lease(store))
            await store.commit(pen.lease, pen.next("rest", change=RowChange(status=Status.WAITING), inbox=0))
            await store.post(a_post(pen.lease.row.run, "p"))
            resting.append(pen.lease.row.run)
        dying = await a_worker(store)
        assert len(await store.claim(dying, SERVES, limit=9)) == 2
        await store.void(dying, why="its lock was free")
        worker = await a_worker(store)
        assert await store.claim(worker, SERVES, limit=9, suspects=False) == []
        (one,) = await store.claim(worker, SERVES, limit=9)
        (other,) = await store.claim(worker, SERVES, limit=9)
        assert {one.row.run, other.row.run} == set(resting)

    async def test_a_voided_worker_learns_it_from_its_pulse(self, store: Store) -> None:
        """A worker that was declared dead hears of it, and claims nothing more."""
        worker, other = await a_worker(store), await a_worker(store)
        assert await store.pulse(worker)
        await store.void(worker, why="test")
        await store.create(a_run(store))
        assert not await store.pulse(worker)
        assert await store.claim(worker, SERVES, limit=9) == []
        assert await store.pulse(other)

    async def test_a_workers_row_shows_its_pulse_and_its_leases(self, store: Store) -> None:
        """A contender can see whether the pulse moved; registering twice sets only what it says of itself anew."""
        worker = new_worker_id()
        await store.register(worker, lock="a/lock", about={"host": "Grünau", "serves": '["a"]'})
        await a_lease(store, worker)
        for _ in range(3):
            await store.pulse(worker)
        await store.register(worker, lock="another", about={"host": "elsewhere"})
        (row,) = [row for row in await store.workers() if row.worker == worker]
        assert (row.pulse, row.started_at, row.lock, row.leases) == (3, store.now(), "a/lock", 1)
        assert dict(row.about) == {"host": "elsewhere"}
        assert row.beat_at in (None, store.now())

    async def test_a_heart_beats_from_another_thread_until_its_worker_is_declared_dead(self, store: Store) -> None:
        """Where a store has hearts, theirs are pulses like any other; it is no heart's matter how the loop fares."""
        worker = await a_worker(store)
        heart = store.heart(worker)
        if heart is None:
            return
        [before] = [row.pulse for row in await store.workers() if row.worker == worker]
        assert await asyncio.to_thread(heart.beat)
        assert [row.pulse for row in await store.workers() if row.worker == worker] == [before + 1]
        await store.void(worker, why="test")
        assert not await asyncio.to_thread(heart.beat)
        await asyncio.to_thread(heart.close)

    async def test_a_run_that_makes_no_progress_is_quarantined(self, store: Store) -> None:
        """A run that kills its worker again and again is set aside with the reason, its journal untouched."""
        new = a_run(store)
        await store.create(new)
        for attempt in range(1, limits.STALLS + 1):
            (lease,) = await store.claim(worker := await a_worker(store), SERVES, limit=9)
            assert (lease.row.attempt, lease.row.stalls) == (attempt, attempt)
            pen = Pen(store, lease)
            assert isinstance(await store.commit(lease, pen.next("resumed", progress=False)), Committed)
            await store.void(worker, why="died")
        assert await store.claim(await a_worker(store), SERVES, limit=9) == []
        row = await row_of(store, new.row.run)
        assert (row.status, row.owner, row.due_at, row.damage) == (Status.QUARANTINED, None, None, "")
        assert row.reason.startswith("no_progress")
        assert len(await journal_of(store, new.row.run)) == 1 + limits.STALLS
        assert await store.claim(await a_worker(store), SERVES, limit=9, runs=[new.row.run]) == []

    async def test_a_quarantined_run_holds_nobody_up(self, store: Store) -> None:
        """The claim that sets a poison run aside still finds its neighbours, or the next one does."""
        poison = a_run(store)
        await store.create(poison)
        for _ in range(limits.STALLS):
            await store.claim(worker := await a_worker(store), SERVES, limit=1)
            await store.void(worker, why="died")
        neighbour = a_run(store)
        await store.create(neighbour)
        worker = await a_worker(store)
        leases = [*await store.claim(worker, SERVES, limit=1), *await store.claim(worker, SERVES, limit=1)]
        assert [lease.row.run for lease in leases] == [neighbour.row.run]

    async def test_progress_clears_the_count_of_stalls(self, store: Store) -> None:
        """Only claims without a new fact count: a long run on a shaky machine is not quarantined."""
        lease = await a_lease(store)
        for _ in range(limits.STALLS + 2):
            pen = Pen(store, lease)
            assert isinstance(await store.commit(lease, pen.next("resumed", progress=False)), Committed)
            assert (await row_of(store, lease.row.run)).stalls == 1
            assert isinstance(await store.commit(lease, pen.next("a step")), Committed)
            assert (await row_of(store, lease.row.run)).stalls == 0
            assert isinstance(await store.commit(lease, pen.next("a retry", progress=False)), Committed)
            assert (await row_of(store, lease.row.run)).stalls == 0
            await store.void(lease.worker, why="died")
            lease = await claimed(store, await a_worker(store), lease.row.run)
        assert lease.row.attempt == limits.STALLS + 3

    async def test_a_lease_is_a_value_that_any_opening_of_the_store_accepts(self, store: Store) -> None:
        """What counts is what the row says, not which object the lease is."""
        lease = await a_lease(store)
        pen = Pen(store, Lease(lease.row, lease.worker, lease.fence, lease.why))
        assert await store.commit(pen.lease, pen.next("one")) == Committed(2)
        assert await store.commit(lease, pen.next("two")) == Committed(3)
        assert (await row_of(store, lease.row.run)).damage == ""
