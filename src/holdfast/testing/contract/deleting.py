"""What `delete` and `sweep` promise: an ended run goes whole, its key stays, and nothing that is relied on goes."""

import asyncio
from collections.abc import Sequence
from hashlib import sha256

import pytest

from holdfast.core.cursor import START
from holdfast.core.entry import BudgetMove
from holdfast.core.errors import NotFound
from holdfast.core.ids import TENANT, RunId, new_run_id
from holdfast.core.status import TERMINAL, Status
from holdfast.store.protocol import Store
from holdfast.store.value import (
    Committed,
    Deleted,
    Existing,
    Kept,
    KeyTaken,
    Lease,
    LeaseLost,
    NewBlob,
    NewChunk,
    RowChange,
    RunFilter,
    RunRow,
)
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import (
    SERVES,
    Pen,
    a_lease,
    a_post,
    a_run,
    a_worker,
    claimed,
    journal_of,
    row_of,
    words,
)

_DAY_SECONDS = 24 * 3600.0


def _blob(body: bytes) -> NewBlob:
    return NewBlob(sha256(body).hexdigest(), body)


async def _end(store: Store, lease: Lease, status: Status = Status.COMPLETED, *, blobs: Sequence[NewBlob] = ()) -> None:
    pen = Pen(store, lease)
    assert await store.commit(lease, pen.next("end", change=RowChange(status=status), blobs=blobs)) == Committed(
        pen.seq
    )


async def _ended(store: Store, *, parent: RunId | None = None, blobs: Sequence[NewBlob] = ()) -> RunId:
    new = a_run(store, parent=parent)
    await store.create(new)
    await _end(store, await claimed(store, await a_worker(store), new.row.run), blobs=blobs)
    return new.row.run


class DeleteContract:
    """What has ended may be deleted, whole and once; what has not, or is relied on, stays whole."""

    async def remains(self, store: Store, row: RunRow) -> Sequence[str]:
        """Return the places that still hold something of a run, its key's aside; looked at behind the store's back."""
        raise NotImplementedError

    @pytest.mark.parametrize("status", sorted(TERMINAL))
    async def test_an_ended_run_is_deleted_with_all_that_is_its_own(self, store: Store, status: Status) -> None:
        """No entry, post, chunk, blob's name or budget of it is left; it is as if it had never been."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        await store.post(a_post(run, "taken"))
        await store.post(a_post(run, "waiting"))
        budget = [BudgetMove("tokens", total=10)]
        await store.commit(pen.lease, pen.next("one", consumed=[1], blobs=[_blob(b'"large"')], budget=budget))
        assert await store.chunks(pen.lease, [NewChunk(1, "0/s#1", 1, 0, b'"preview"')])
        await store.commit(pen.lease, pen.next("end", change=RowChange(status=status)))
        row = await row_of(store, run)
        assert await self.remains(store, row) != []
        assert await store.delete([run]) == Deleted([run], {})
        assert await self.remains(store, row) == []
        assert await store.get(run) is None
        assert await store.last(run) is None
        assert await store.inbox(run) == []
        assert await store.list(RunFilter()) == []
        with pytest.raises(NotFound):
            await store.read(run, START)
        with pytest.raises(NotFound):
            await store.post(a_post(run, "late"))
        assert await store.check() == []

    async def test_a_deleted_runs_key_answers_for_it(self, store: Store) -> None:
        """The same start makes no second run, another is a conflict, and the key finds nothing."""
        lease = await a_lease(store, key="k")
        run = lease.row.run
        await _end(store, lease)
        await store.delete([run])
        assert await store.create(a_run(store, key="k")) == Existing(run, None)
        assert await store.create(a_run(store, key="k", input=b"[2]")) == KeyTaken(run, ("input",))
        assert await store.find(TENANT, "k") is None
        assert await store.holder(TENANT, "k") == run
        assert await store.holder(TENANT, "another") is None
        assert await store.delete([run]) == Deleted([], {})
        assert await store.create(a_run(store, key="k")) == Existing(run, None)

    @pytest.mark.parametrize("rest", [None, *(status for status in Status if not status.terminal)])
    async def test_a_run_that_has_not_ended_is_kept(self, store: Store, rest: Status | None) -> None:
        """Whether somebody drives it (None) or it rests, and wherever: it keeps all it has and goes on."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        change = RowChange(status=rest, due_at=store.now()) if rest not in (None, Status.RUNNING) else None
        await store.commit(pen.lease, pen.next("one", change=change))
        before = await row_of(store, run)
        assert await store.delete([run]) == Deleted([], {run: Kept.OPEN})
        assert await row_of(store, run) == before
        assert words(await journal_of(store, run)) == ["one"]

    async def test_a_run_that_nobody_has_claimed_is_kept(self, store: Store) -> None:
        """What waits to be driven for the first time is open, too."""
        new = a_run(store)
        await store.create(new)
        assert await store.delete([new.row.run]) == Deleted([], {new.row.run: Kept.OPEN})
        assert len(await store.claim(await a_worker(store), SERVES, limit=9)) == 1

    async def test_the_neighbours_of_a_deleted_run_are_untouched(self, store: Store) -> None:
        """Their rows, journals, inboxes and budgets are what they were."""
        before, after = Pen(store, await a_lease(store)), Pen(store, await a_lease(store))
        middle = await _ended(store)
        for pen in (before, after):
            await store.post(a_post(pen.lease.row.run, "p"))
            await store.commit(pen.lease, pen.next("kept", budget=[BudgetMove("tokens", total=3)]))
        rows = [await row_of(store, pen.lease.row.run) for pen in (before, after)]
        places = [await self.remains(store, row) for row in rows]
        await store.delete([middle])
        for pen, row, held in zip((before, after), rows, places, strict=True):
            assert await row_of(store, row.run) == row
            assert words(await journal_of(store, row.run)) == ["kept"]
            assert [post.key for post in await store.inbox(row.run)] == ["p"]
            assert await self.remains(store, row) == held
            assert await store.commit(pen.lease, pen.next("goes on")) == Committed(3)

    async def test_deleting_again_deletes_nothing(self, store: Store) -> None:
        """Whoever asks twice, or for what never was, or for one run twice at once, does no harm."""
        run = await _ended(store)
        assert await store.delete([run, run]) == Deleted([run], {})
        assert await store.delete([run]) == Deleted([], {})
        assert await store.delete([new_run_id()]) == Deleted([], {})
        assert await store.delete([]) == Deleted([], {})

    async def test_several_are_deleted_at_once_and_each_kept_one_says_why(self, store: Store) -> None:
        """One that must stay does not keep the others."""
        gone, open_run = [await _ended(store), await _ended(store)], (await a_lease(store)).row.run
        deleted = await store.delete([gone[0], open_run, gone[1]])
        assert sorted(deleted.runs) == sorted(gone)
        assert deleted.kept == {open_run: Kept.OPEN}

    async def test_a_child_stays_until_its_parent_has_ended(self, store: Store) -> None:
        """A parent that waits finds its child's ending, however old that is."""
        lease = await a_lease(store)
        parent = lease.row.run
        child = await _ended(store, parent=parent)
        assert await store.delete([child]) == Deleted([], {child: Kept.PARENT})
        assert words(await journal_of(store, child)) == ["end"]
        await _end(store, lease)
        assert await store.delete([child]) == Deleted([child], {})

    async def test_a_parent_stays_until_its_children_have_ended(self, store: Store) -> None:
        """A tree loses no branch's origin while the branch still grows."""
        lease = await a_lease(store)
        parent = lease.row.run
        new = a_run(store, parent=parent)
        await store.create(new)
        await _end(store, lease)
        assert await store.delete([parent]) == Deleted([], {parent: Kept.CHILDREN})
        await _end(store, await claimed(store, await a_worker(store), new.row.run))
        assert await store.delete([parent]) == Deleted([parent], {})
        assert await store.delete([new.row.run]) == Deleted([new.row.run], {})

    async def test_a_trial_deletes_nothing_and_says_the_same(self, store: Store) -> None:
        """What would happen can be seen before it does."""
        run, open_run = await _ended(store), (await a_lease(store)).row.run
        row = await row_of(store, run)
        told = await store.delete([run, open_run, new_run_id()], trial=True)
        assert told == Deleted([run], {open_run: Kept.OPEN})
        assert await row_of(store, run) == row
        assert words(await journal_of(store, run)) == ["end"]
        assert await store.delete([run, open_run]) == told

    async def test_nobody_writes_to_a_deleted_run(self, store: Store) -> None:
        """A worker that wakes after its run ended and was deleted writes nothing."""
        lease = await a_lease(store)
        late = Pen(store, lease)
        await _end(store, lease)
        row = await row_of(store, lease.row.run)
        await store.delete([row.run])
        assert await store.commit(lease, late.next("late")) == LeaseLost()
        assert not await store.chunks(lease, [NewChunk(1, "0/s#1", 1, 0, b"1")])
        assert await self.remains(store, row) == []

    async def test_two_that_delete_at_once_delete_each_run_once(self, store: Store) -> None:
        """However many clean up at the same moment, nobody waits for ever and nothing is counted twice."""
        runs = [await _ended(store) for _ in range(10)]
        answers = await asyncio.gather(*(store.delete(order) for order in (runs, runs[::-1], runs[5:])))
        assert sorted(run for answer in answers for run in answer.runs) == sorted(runs)

    async def test_a_watcher_of_a_deleted_run_is_woken(self, store: Store) -> None:
        """Whoever waits for a run learns that there is none to wait for."""
        run = await _ended(store)
        bell = store.watch(run)
        try:
            await store.delete([run])
            assert await asyncio.wait_for(bell.wait(), 10) is None
        finally:
            bell.close()


class SweepContract:
    """A blob goes when no entry names it and nobody has stored it for as long as is asked."""

    async def test_a_blob_stays_until_it_is_swept_and_goes_then(self, store: Store, clock: MovingClock) -> None:
        """Deleting takes the name away; only a sweep takes the bytes."""
        blob = _blob(b'"mine"')
        run = await _ended(store, blobs=[blob])
        clock.advance(1)
        assert await store.sweep(store.now()) == 0
        await store.delete([run])
        assert await store.blob(TENANT, blob.digest) == blob.body
        assert await store.sweep(store.now()) == 1
        with pytest.raises(NotFound):
            await store.blob(TENANT, blob.digest)
        assert await store.sweep(store.now()) == 0

    async def test_a_blob_that_another_run_names_is_not_swept(self, store: Store, clock: MovingClock) -> None:
        """Content is shared: the last one that names it decides."""
        blob = _blob(b'"ours"')
        first, second = await _ended(store, blobs=[blob]), await _ended(store, blobs=[blob])
        clock.advance(_DAY_SECONDS)
        await store.delete([first])
        assert await store.sweep(store.now()) == 0
        assert await store.blob(TENANT, blob.digest) == blob.body
        await store.delete([second])
        assert await store.sweep(store.now()) == 1

    async def test_a_blob_that_was_stored_again_since_is_not_swept(self, store: Store, clock: MovingClock) -> None:
        """Whoever has just stored it may be about to name it."""
        blob = _blob(b'"again"')
        old = await _ended(store, blobs=[blob])
        clock.advance(_DAY_SECONDS)
        before = store.now()
        new = await _ended(store, blobs=[blob])
        await store.delete([old, new])
        assert await store.sweep(before) == 0
        assert await store.blob(TENANT, blob.digest) == blob.body
        clock.advance(1)
        assert await store.sweep(store.now()) == 1

    async def test_a_childs_input_outlives_its_parent(self, store: Store, clock: MovingClock) -> None:
        """A blob that came with a child is the child's, although the parent's commit brought it."""
        lease = await a_lease(store)
        blob = _blob(b'"%s"' % (b"x" * 100_000))
        child = a_run(store, input=blob.body, parent=lease.row.run)
        pen = Pen(store, lease)
        ends = pen.next("end", children=[child], change=RowChange(status=Status.COMPLETED))
        await store.commit(lease, ends)
        await _end(store, await claimed(store, await a_worker(store), child.row.run))
        clock.advance(_DAY_SECONDS)
        await store.delete([lease.row.run])
        assert await store.sweep(store.now()) == 0
        assert await store.blob(TENANT, blob.digest) == blob.body
        await store.delete([child.row.run])
        assert await store.sweep(store.now()) == 1

    async def test_any_number_of_blobs_is_swept(self, store: Store, clock: MovingClock) -> None:
        """Those at the end of a long row of blobs that are in use are found too."""
        used = [_blob(b'"used %d"' % number) for number in range(700)]
        unused = [_blob(b'"unused %d"' % number) for number in range(700)]
        await _ended(store, blobs=used)
        run = await _ended(store, blobs=unused)
        await store.delete([run])
        clock.advance(1)
        assert await store.sweep(store.now()) == 700
        assert await store.blob(TENANT, used[-1].digest) == used[-1].body

    async def test_tenants_sweep_nothing_of_each_other(self, store: Store, clock: MovingClock) -> None:
        """The same bytes of two tenants are two blobs, each with its own names."""
        blob = _blob(b'"same"')
        leases = [await a_lease(store, tenant=tenant) for tenant in ("ours", "theirs")]
        for lease in leases:
            await _end(store, lease, blobs=[blob])
        await store.delete([leases[0].row.run])
        clock.advance(1)
        assert await store.sweep(store.now()) == 1
        assert await store.blob("theirs", blob.digest) == blob.body
