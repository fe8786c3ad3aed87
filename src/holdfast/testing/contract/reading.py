"""What the reading verbs promise: bounded pages in one snapshot, and a bell that is never missed."""

import asyncio
from collections.abc import Awaitable
from hashlib import sha256
from typing import Any

import pytest

from holdfast.core import limits
from holdfast.core.checksum import ZERO
from holdfast.core.cursor import START, Cursor
from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import TENANT, new_run_id
from holdfast.core.status import Status
from holdfast.store.protocol import Store, Watch
from holdfast.store.value import NewBlob, NewChunk, RowChange, RunFilter
from holdfast.testing.contract.story import (
    Pen,
    a_lease,
    a_post,
    a_run,
    a_worker,
    claimed,
    journal_of,
    words,
)


class ReadContract:
    """Every reader sees the same stored bytes for the same number, in pages of bounded size."""

    async def test_a_store_has_a_secret_that_stays(self, store: Store) -> None:
        """What is made with it can be checked by whoever has the store open, and by nobody else."""
        secret = await store.secret()
        assert len(secret) == 32
        assert len(set(secret)) > 8
        assert await store.secret() == secret

    async def test_a_page_ends_at_the_most_entries_it_may_hold(self, store: Store) -> None:
        """A reader's memory is bounded by count, and the pages join without a gap or a repeat."""
        pen = Pen(store, await a_lease(store))
        count = limits.PAGE_ENTRIES + 10
        await store.commit(pen.lease, pen.next(*(str(n) for n in range(count))))
        page = await store.read(pen.lease.row.run, START)
        assert (len(page.entries), page.more, page.previous) == (limits.PAGE_ENTRIES, True, ZERO)
        rest = await store.read(pen.lease.row.run, Cursor(limits.PAGE_ENTRIES))
        assert (len(rest.entries), rest.more, rest.previous) == (11, False, page.entries[-1].checksum)
        assert words(await journal_of(store, pen.lease.row.run)) == [str(n) for n in range(count)]

    async def test_a_page_ends_at_the_most_bytes_it_may_hold(self, store: Store) -> None:
        """A reader's memory is bounded by bytes; an entry larger than a page is a page of its own."""
        pen = Pen(store, await a_lease(store))
        large = "x" * limits.PAGE_BYTES
        await store.commit(pen.lease, pen.next("a", large, "b", large, large, "c"))
        sizes, cursor = [], START
        while True:
            page = await store.read(pen.lease.row.run, cursor)
            sizes.append(len(page.entries))
            assert sum(len(entry.body) for entry in page.entries) < 2 * limits.PAGE_BYTES + 4096
            cursor = Cursor(cursor.seq + len(page.entries))
            if not page.more:
                break
        assert sum(sizes) == 7
        assert max(sizes) < 7

    async def test_a_smaller_page_can_be_asked_for(self, store: Store) -> None:
        """Whoever wants one entry does not pay for a page."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("a", "b", "c"))
        page = await store.read(pen.lease.row.run, Cursor(1), limit=2)
        assert (words(list(page.entries)), page.more) == (["a", "b"], True)
        assert (await store.read(pen.lease.row.run, Cursor(2), limit=2)).more is False

    async def test_reading_past_the_end_finds_nothing(self, store: Store) -> None:
        """A cursor at or beyond the end is no error of the store's; the row tells where the end is."""
        run = (await a_lease(store)).row.run
        for seq in (1, 2, 99):
            page = await store.read(run, Cursor(seq))
            assert (list(page.entries), list(page.chunks), page.more, page.row.last_seq) == ([], [], False, 1)

    async def test_the_last_entry_comes_with_the_row_of_a_run_that_ended(self, store: Store) -> None:
        """Who waits for an ending reads the row, the last entry and the checksum before it in one look."""
        pen = Pen(store, await a_lease(store))
        before = await store.last(pen.lease.row.run)
        assert before is not None
        assert (before.row.last_seq, before.row.status) == (1, Status.QUEUED)
        await store.commit(pen.lease, pen.next("a", "b", "end", change=RowChange(status=Status.COMPLETED)))
        last = await store.last(pen.lease.row.run)
        assert last is not None
        entries = await journal_of(store, pen.lease.row.run)
        assert (list(last.entries), last.previous) == (entries[-1:], entries[-2].checksum)
        assert last.row.status is Status.COMPLETED
        assert await store.last(new_run_id()) is None

    async def test_a_watch_that_brings_the_ending_brings_what_a_look_would_find(self, store: Store) -> None:
        """The ending may come along with the bell; it is then the stored one."""
        pen = Pen(store, await a_lease(store))
        bell = store.watch(pen.lease.row.run, entries=False)
        await store.commit(pen.lease, pen.next("a", "end", change=RowChange(status=Status.FAILED, reason="why")))
        brought, found = await bell.wait(10), await store.last(pen.lease.row.run)
        bell.close()
        assert found is not None
        if brought is not None:
            told = (brought.row.status, brought.row.reason, brought.row.last_seq, brought.row.head, brought.previous)
            assert told == (found.row.status, found.row.reason, found.row.last_seq, found.row.head, found.previous)
            assert list(brought.entries) == list(found.entries)

    async def test_a_run_that_is_not_there_is_not_found(self, store: Store) -> None:
        """Not found is its own answer."""
        with pytest.raises(NotFound):
            await store.read(new_run_id(), START)
        assert await store.get(new_run_id()) is None
        assert await store.find(TENANT, "nowhere") is None


class ChunkContract:
    """Chunks are previews: stamped by the store, in order, gone with their entry."""

    async def test_chunks_are_stamped_with_the_entry_they_follow(self, store: Store) -> None:
        """A preview has a place in the feed, and the store says which."""
        pen = Pen(store, await a_lease(store))
        assert await store.chunks(pen.lease, _chunks(1, 2))
        await store.commit(pen.lease, pen.next("entry"))
        assert await store.chunks(pen.lease, _chunks(3))
        page = await store.read(pen.lease.row.run, START)
        assert [(c.seq, c.fence, c.number) for c in page.chunks] == [(1, 1, 1), (1, 1, 2), (2, 1, 3)]
        chunk = page.chunks[1]
        assert (chunk.step, chunk.attempt, chunk.offset, chunk.body, chunk.at) == ("0/s#1", 1, 2, b"2", store.now())

    async def test_chunks_and_commits_of_a_run_keep_the_order_they_were_asked_in(self, store: Store) -> None:
        """A chunk sent before an entry is never stamped as coming after it."""
        pen = Pen(store, await a_lease(store))
        asked: list[Awaitable[object]] = [
            store.chunks(pen.lease, _chunks(1)),
            store.commit(pen.lease, pen.next("entry")),
            store.chunks(pen.lease, _chunks(2)),
        ]
        for pending in asked:
            await pending
        page = await store.read(pen.lease.row.run, START)
        assert [(c.seq, c.number) for c in page.chunks] == [(1, 1), (2, 2)]

    async def test_a_cursor_gets_the_chunks_behind_it(self, store: Store) -> None:
        """Chunks are read from where the reader stands, not from the start of their entry."""
        pen = Pen(store, await a_lease(store))
        await store.chunks(pen.lease, _chunks(1, 2, 3))
        run = pen.lease.row.run
        for cursor, rest in ((Cursor(1), [1, 2, 3]), (Cursor(1, 1, 2), [3]), (Cursor(1, 1, 3), [])):
            assert [c.number for c in (await store.read(run, cursor)).chunks] == rest
        assert (await store.read(run, Cursor(1), chunks=False)).chunks == []

    async def test_chunks_come_only_with_the_last_page(self, store: Store) -> None:
        """A preview before the entries that it follows would be out of order."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("a", "b"))
        await store.chunks(pen.lease, _chunks(1))
        assert (await store.read(pen.lease.row.run, START, limit=2)).chunks == []
        assert len((await store.read(pen.lease.row.run, START, limit=3)).chunks) == 1

    @pytest.mark.parametrize(("drop", "left"), [(["0/s#1"], [2]), (["0/t#1"], [1, 3]), (["*"], []), ([], [1, 2, 3])])
    async def test_chunks_are_dropped_with_their_steps_entry(
        self, store: Store, drop: list[str], left: list[int]
    ) -> None:
        """A preview ends with the entry it previewed; the others stay."""
        pen = Pen(store, await a_lease(store))
        await store.chunks(pen.lease, [*_chunks(1), NewChunk(2, "0/t#1", 1, 0, b"2"), *_chunks(3)])
        await store.commit(pen.lease, pen.next("entry", drop=drop))
        page = await store.read(pen.lease.row.run, START)
        assert [chunk.number for chunk in page.chunks] == left

    async def test_a_worker_that_lost_its_lease_adds_no_chunk(self, store: Store) -> None:
        """Previews are fenced like entries."""
        old = await a_lease(store)
        await store.void(old.worker, why="test")
        assert not await store.chunks(old, _chunks(1))
        new = await claimed(store, await a_worker(store), old.row.run)
        assert not await store.chunks(old, _chunks(1))
        assert await store.chunks(new, _chunks(1))
        page = await store.read(old.row.run, START)
        assert [(c.seq, c.fence, c.number) for c in page.chunks] == [(1, 2, 1)]

    async def test_chunks_of_two_owners_are_ordered_by_fence(self, store: Store) -> None:
        """The feed's order is (seq, fence, number), so a new owner's first chunk follows the old one's last."""
        old = await a_lease(store)
        await store.chunks(old, _chunks(1, 2))
        await store.void(old.worker, why="test")
        new = await claimed(store, await a_worker(store), old.row.run)
        await store.chunks(new, _chunks(1))
        page = await store.read(old.row.run, START)
        assert [(c.fence, c.number) for c in page.chunks] == [(1, 1), (1, 2), (2, 1)]

    async def test_a_page_of_chunks_is_bounded(self, store: Store) -> None:
        """A reader's memory is bounded in chunks too, by count and by bytes, and pages join without a gap."""
        pen = Pen(store, await a_lease(store))
        run, large = pen.lease.row.run, b'"%s"' % (b"x" * (limits.PAGE_BYTES // 4))
        await store.chunks(pen.lease, _chunks(*range(1, limits.PAGE_ENTRIES + 11)))
        last = limits.PAGE_ENTRIES + 10
        await store.chunks(pen.lease, [NewChunk(last + n, "0/s#1", 1, n, large) for n in range(1, 13)])
        numbers, cursor = [], Cursor(1)
        while page := (await store.read(run, cursor)).chunks:
            assert len(page) <= limits.PAGE_ENTRIES
            assert sum(len(chunk.body) for chunk in page) < 2 * limits.PAGE_BYTES
            numbers += [chunk.number for chunk in page]
            cursor = Cursor(page[-1].seq, page[-1].fence, page[-1].number)
        assert numbers == list(range(1, last + 13))


class BlobContract:
    """Blobs are found by their bytes' digest, within their tenant."""

    async def damage_blob(self, store: Store, tenant: str, digest: str) -> None:
        """Change a stored blob's bytes behind the store's back."""
        raise NotImplementedError

    async def test_a_blob_is_its_tenants(self, store: Store) -> None:
        """One tenant cannot read another's bytes by knowing their digest."""
        blob = _blob(b'"secret"')
        pen = Pen(store, await a_lease(store, tenant="ours"))
        await store.commit(pen.lease, pen.next("kept", blobs=[blob]))
        assert await store.blob("ours", blob.digest) == blob.body
        with pytest.raises(NotFound):
            await store.blob("theirs", blob.digest)

    async def test_the_same_bytes_may_be_kept_by_many_entries(self, store: Store) -> None:
        """Content-addressed: a second reference is not a conflict."""
        blob = _blob(b'"twice"')
        for _ in range(2):
            pen = Pen(store, await a_lease(store))
            await store.commit(pen.lease, pen.next("kept", blobs=[blob]))
            await store.commit(pen.lease, pen.next("again", blobs=[blob, blob]))
            assert len(await journal_of(store, pen.lease.row.run)) == 3
        assert await store.blob(TENANT, blob.digest) == blob.body

    @pytest.mark.parametrize("digest", ["00" * 32, "not hex", ""])
    async def test_a_blob_that_is_not_there_is_not_found(self, store: Store, digest: str) -> None:
        """Not found is an answer, whatever was asked for."""
        with pytest.raises(NotFound):
            await store.blob(TENANT, digest)

    async def test_a_damaged_blob_is_told_from_one_that_is_not_there(self, store: Store) -> None:
        """Bytes that are not what their digest says are damage, and never returned."""
        blob = _blob(b'"precious"')
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("kept", blobs=[blob]))
        await self.damage_blob(store, TENANT, blob.digest)
        with pytest.raises(Damaged):
            await store.blob(TENANT, blob.digest)


class ListContract:
    """Runs are listed newest first, in pages, by what their rows say."""

    async def test_pages_join_without_a_gap_or_a_repeat(self, store: Store) -> None:
        """Newest first; `before` is the last number of the page before, and new runs do not shift it."""
        runs = [(await a_lease(store)).row.run for _ in range(7)]
        first = await store.list(RunFilter(limit=3))
        await a_lease(store)
        second = await store.list(RunFilter(limit=3, before=first[-1].run))
        third = await store.list(RunFilter(limit=3, before=second[-1].run))
        assert [row.run for row in (*first, *second, *third)] == runs[::-1]
        assert await store.list(RunFilter(before=third[-1].run)) == []

    async def test_each_filter_narrows(self, store: Store) -> None:
        """Name, key and labels must all match; a label matches by its name and its value."""
        blue = await a_lease(store, key="k1", labels={"team": "blue", "tier": "1"})
        green = await a_lease(store, name="tale", labels={"team": "green"})
        for which, found in (
            (RunFilter(), [green, blue]),
            (RunFilter(name="tale"), [green]),
            (RunFilter(key="k1"), [blue]),
            (RunFilter(labels={"team": "blue"}), [blue]),
            (RunFilter(labels={"team": "blue", "tier": "1"}), [blue]),
            (RunFilter(labels={"team": "blue", "tier": "2"}), []),
            (RunFilter(labels={"blue": "team"}), []),
            (RunFilter(name="tale", key="k1"), []),
        ):
            assert [row.run for row in await store.list(which)] == [lease.row.run for lease in found]

    async def test_runs_that_have_not_heard_a_control_are_found_by_it(self, store: Store) -> None:
        """Those that nobody drives and that have not ended; a post is found by its key whether it was taken or not."""
        quiet, called, asked, other = (a_run(store), a_run(store), a_run(store), a_run(store, name="other"))
        for new in (quiet, called, asked, other):
            await store.create(new)
        held = await a_lease(store)
        await store.post(a_post(called.row.run, "signal/1"))
        for run in (asked.row.run, other.row.run, held.row.run):
            await store.post(a_post(run, "cancel", kind="cancel", control=True))
        for which, found in (
            (RunFilter(unheard=True), [other, asked]),
            (RunFilter(unheard=True, but=["other"]), [asked]),
            (RunFilter(unheard=True, posted="signal/1"), []),
            (RunFilter(posted="signal/1"), [called]),
            (RunFilter(but=[quiet.row.name]), [other]),
        ):
            assert [row.run for row in await store.list(which)] == [new.row.run for new in found]
        pen = Pen(store, held)
        await store.commit(held, pen.next("taken", consumed=(1,)))
        await store.release(held.worker)
        assert [row.run for row in await store.list(RunFilter(unheard=True, posted="cancel", limit=1))] == [
            held.row.run
        ]

    async def test_running_is_a_row_with_a_lease(self, store: Store) -> None:
        """`running` is computed; a run that nobody holds is where its row says."""
        held = await a_lease(store)
        idle = a_run(store)
        await store.create(idle)
        ended = Pen(store, await a_lease(store))
        await store.commit(ended.lease, ended.next("end", change=RowChange(status=Status.FAILED)))
        for status, run in (
            (Status.RUNNING, held.row.run),
            (Status.QUEUED, idle.row.run),
            (Status.FAILED, ended.lease.row.run),
        ):
            assert [row.run for row in await store.list(RunFilter(status=status))] == [run]
        assert await store.list(RunFilter(status=Status.COMPLETED)) == []


class WatchContract:
    """A bell rings for what may be new; whoever listens before looking misses nothing."""

    async def test_a_bell_rings_for_an_entry(self, store: Store) -> None:
        """A reader that waits is woken by the commit it waits for."""
        pen = Pen(store, await a_lease(store))
        bell = store.watch(pen.lease.row.run)
        waiting = asyncio.ensure_future(bell.wait(None))
        await store.commit(pen.lease, pen.next("news"))
        await _rung(waiting)
        bell.close()

    async def test_a_bell_rung_before_the_wait_is_heard(self, store: Store) -> None:
        """Listen, look, wait: what lands between the look and the wait is not missed."""
        pen = Pen(store, await a_lease(store))
        bell = store.watch(pen.lease.row.run)
        await store.commit(pen.lease, pen.next("news"))
        await _rung(asyncio.ensure_future(bell.wait(None)))
        bell.close()

    async def test_a_bell_rings_for_chunks_and_posts(self, store: Store) -> None:
        """Previews are live too, and so is what a waiting run is sent."""
        lease = await a_lease(store)
        bell = store.watch(lease.row.run)
        await store.chunks(lease, _chunks(1))
        await _rung(asyncio.ensure_future(bell.wait(None)))
        await store.post(a_post(lease.row.run, "p"))
        await _rung(asyncio.ensure_future(bell.wait(None)))
        bell.close()

    async def test_who_waits_for_the_end_is_woken_when_the_run_rests(self, store: Store) -> None:
        """A watcher of where a run stands hears every commit that moves it."""
        pen = Pen(store, await a_lease(store))
        bell = store.watch(pen.lease.row.run, entries=False)
        await store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.COMPLETED)))
        await _rung(asyncio.ensure_future(bell.wait(None)))
        bell.close()

    @pytest.mark.parametrize("what", ["create", "post", "park", "child", "void"])
    async def test_a_worker_is_woken_by_whatever_may_be_claimed(self, store: Store, what: str) -> None:
        """A new run, a post, a park, a child and a dead worker's leases all ring for whoever claims."""
        pen = Pen(store, await a_lease(store))
        bell = store.watch(None)
        match what:
            case "create":
                await store.create(a_run(store))
            case "post":
                await store.post(a_post(pen.lease.row.run, "p"))
            case "park":
                change = RowChange(status=Status.WAITING, due_at=store.now())
                await store.commit(pen.lease, pen.next("rest", change=change))
            case "child":
                await store.commit(pen.lease, pen.next("spawn", children=[a_run(store)]))
            case "void":
                await store.void(pen.lease.worker, why="died")
        await _rung(asyncio.ensure_future(bell.wait(None)))
        bell.close()

    async def test_a_wait_ends_when_its_time_is_over(self, store: Store) -> None:
        """Hints are hints: nobody depends on one to go on."""
        bell = store.watch((await a_lease(store)).row.run)
        await asyncio.wait_for(bell.wait(0.01), timeout=10)
        bell.close()

    async def test_many_may_watch_one_run(self, store: Store) -> None:
        """One watcher's waking takes nothing from another, nor does its leaving."""
        pen = Pen(store, await a_lease(store))
        bells: list[Watch] = [store.watch(pen.lease.row.run) for _ in range(3)]
        bells[0].close()
        bells[0].close()
        await store.commit(pen.lease, pen.next("news"))
        await _rung(*(asyncio.ensure_future(bell.wait(None)) for bell in bells[1:]))
        for bell in bells[1:]:
            bell.close()


def _chunks(*numbers: int) -> list[NewChunk]:
    return [NewChunk(number, "0/s#1", 1, number, str(number).encode()) for number in numbers]


def _blob(body: bytes) -> NewBlob:
    return NewBlob(sha256(body).hexdigest(), body)


async def _rung(*waiting: "asyncio.Future[Any]") -> None:
    _, left = await asyncio.wait(waiting, timeout=10)
    for wait in left:
        wait.cancel()
    assert not left, "no bell rang"
