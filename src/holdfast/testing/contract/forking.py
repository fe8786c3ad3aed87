"""What a store promises of forks: runs whose journal begins with another's entries."""

import asyncio
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from holdfast.core.cursor import Cursor
from holdfast.core.fork import LooseEnds
from holdfast.core.ids import TENANT, RunId, new_run_id
from holdfast.core.status import Status
from holdfast.store.fork import new_fork
from holdfast.store.protocol import Store
from holdfast.store.value import BaseMoved, Created, Deleted, Existing, Forked, NewBlob, NewFork, RowChange
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import Pen, a_lease, a_post, a_run, a_worker, claimed, journal_of, row_of, words

_BLOB = b'"shared"'
_DIGEST = sha256(_BLOB).hexdigest()


async def a_base(store: Store, **start: Any) -> RunId:
    """Return a run of five entries that failed: its start, `2` with a blob, `3`, `4` and its ending."""
    pen = Pen(store, await a_lease(store, **start))
    await store.commit(pen.lease, pen.next("2", blobs=[NewBlob(_DIGEST, _BLOB)]))
    await store.commit(pen.lease, pen.next("3", "4"))
    await store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.FAILED)))
    return pen.lease.row.run


async def a_fork(store: Store, base: RunId, at: int, *, retry: bool = False) -> NewFork:
    """Return a fork to create, behind entry `at` of a run."""
    page = await store.read(base, Cursor(at - 1), limit=1)
    return new_fork(page.row, page.entries[0], page.shares, LooseEnds(), now=store.now(), retry=retry)


async def forked(store: Store, base: RunId, at: int, *, retry: bool = False) -> RunId:
    """Create a fork and return its id."""
    created = await store.fork(await a_fork(store, base, at, retry=retry))
    assert isinstance(created, Created)
    return created.row.run


async def ended(store: Store, run: RunId, *texts: str) -> None:
    """Claim a fork, let it say `texts`, and end it."""
    pen = Pen(store, await claimed(store, await a_worker(store), run))
    await store.commit(pen.lease, pen.next(*texts, "end", change=RowChange(status=Status.COMPLETED)))


class ForkContract:
    """What the engine, the feed and the client rely on in forks."""

    async def test_a_fork_has_its_bases_entries_and_goes_on_with_its_own(self, store: Store) -> None:
        """One journal without a gap: what the base wrote up to there, the fork's first entry, and what it adds."""
        base = await a_base(store)
        fork = await forked(store, base, 3)
        before = await journal_of(store, fork)
        assert before[:3] == (await journal_of(store, base))[:3]
        assert [entry.kind for entry in before] == ["RunStarted", "Emitted", "Emitted", "RunForked"]
        await ended(store, fork, "mine")
        assert words(await journal_of(store, fork)) == ["2", "3", "mine", "end"]
        assert words(await journal_of(store, base)) == ["2", "3", "4", "end"]

    async def test_a_page_of_a_fork_may_begin_and_end_anywhere(self, store: Store) -> None:
        """However its journal is cut into pages, the same entries come, each behind the one before it."""
        first = await a_base(store)
        middle = await forked(store, first, 3)
        await ended(store, middle, "m")
        fork = await forked(store, middle, 5)
        await ended(store, fork, "mine")
        whole = await journal_of(store, fork)
        assert words(whole) == ["2", "3", "m", "mine", "end"]
        for limit in range(1, len(whole) + 1):
            for after in range(len(whole) + 1):
                page = await store.read(fork, Cursor(after), limit=limit)
                assert list(page.entries) == whole[after : after + limit]
                assert page.previous == (whole[after - 1].checksum if after else bytes(16))
                assert page.more == (after + limit < len(whole))

    async def test_a_fork_is_due_at_once_and_begins_as_a_new_run(self, store: Store) -> None:
        """Whatever became of its base: it is queued, nobody has tried it, and it has no key and no family."""
        base = await a_base(store, key="mine", parent=new_run_id(), conversation="talk")
        fork = await forked(store, base, 2)
        row, of = await row_of(store, fork), await row_of(store, base)
        assert (row.status, row.last_seq, row.attempt, row.fence, row.refused) == (Status.QUEUED, 3, 0, 0, "")
        assert (row.name, row.digest, row.code, row.tenant) == (of.name, of.digest, of.code, of.tenant)
        assert (row.key, row.parent, row.root, row.conversation) == (None, None, fork, None)
        assert (await claimed(store, await a_worker(store), fork)).why == "started"

    async def test_a_fork_of_a_fork_begins_with_the_entries_of_both(self, store: Store) -> None:
        """Also where it ends among those that its base has of another run: then it has nothing of its base's own."""
        first = await a_base(store)
        middle = await forked(store, first, 3)
        await ended(store, middle, "m")
        late, early, like = [await forked(store, middle, at) for at in (5, 2, 3)]
        assert words(await journal_of(store, late)) == ["2", "3", "m"]
        assert words(await journal_of(store, early)) == ["2"]
        assert words(await journal_of(store, like)) == ["2", "3"]
        begin = await store.forks([first, middle, late, early, new_run_id()])
        assert begin == {middle: Forked(first, 3, None), late: Forked(middle, 5, None), early: Forked(first, 2, None)}
        assert list(await store.forked(first)) == [middle, early, like]
        assert list(await store.forked(middle)) == [late]
        assert await store.forked(late) == {}

    async def test_a_fork_outlives_its_base(self, store: Store, clock: MovingClock) -> None:
        """What it shares stays as long as it does, blobs included, through however many hands it went."""
        first = await a_base(store)
        middle = await forked(store, first, 3)
        await ended(store, middle, "m")
        fork = await forked(store, middle, 5)
        whole = await journal_of(store, fork)
        assert set((await store.delete([first, middle])).runs) == {first, middle}
        clock.advance(1)
        assert await store.sweep(store.now()) == 0
        assert await journal_of(store, fork) == whole
        assert await store.blob(TENANT, _DIGEST) == _BLOB
        again = await forked(store, fork, 2)
        await ended(store, fork)
        assert await store.delete([fork]) == Deleted([fork], {})
        assert words(await journal_of(store, again)) == ["2"]
        assert await store.check() == []

    async def test_what_the_first_of_several_entries_stored_stays_for_a_fork_behind_it(
        self, store: Store, clock: MovingClock
    ) -> None:
        """Entries of one commit may be parted by a fork; none of those that it has may lose its blob."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("2", "3", "4", blobs=[NewBlob(_DIGEST, _BLOB)]))
        await store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.COMPLETED)))
        await forked(store, pen.lease.row.run, 2)
        await store.delete([pen.lease.row.run])
        clock.advance(1)
        assert await store.sweep(store.now()) == 0
        assert await store.blob(TENANT, _DIGEST) == _BLOB

    async def test_a_base_that_is_not_as_it_was_seen_is_not_forked(self, store: Store) -> None:
        """Deleted, shorter, or with another entry there: it is refused, and nothing was written."""
        base = await a_base(store)
        new = await a_fork(store, base, 3)
        beyond = replace(new, first=new.first._replace(seq=9))
        assert await store.fork(beyond) == BaseMoved()
        assert await store.fork(replace(new, previous=bytes(16))) == BaseMoved()
        await store.delete([base])
        assert await store.fork(new) == BaseMoved()
        assert await store.get(new.row.run) is None
        assert await store.forks([new.row.run]) == {}

    async def test_a_run_is_forked_while_it_goes_on(self, store: Store) -> None:
        """Its owner notices nothing, and what it writes afterwards is its own."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("2"))
        fork = await forked(store, pen.lease.row.run, 2)
        await store.commit(pen.lease, pen.next("3"))
        assert words(await journal_of(store, fork)) == ["2"]
        assert words(await journal_of(store, pen.lease.row.run)) == ["2", "3"]

    async def test_a_retry_takes_the_key_over(self, store: Store) -> None:
        """The key leads to the new run; the old one is still found by its id, and has none."""
        base = await a_base(store, key="mine", conversation="talk")
        fork = await forked(store, base, 4, retry=True)
        found = await store.find(TENANT, "mine")
        assert found is not None
        assert (found.run, found.key, found.conversation) == (fork, "mine", "talk")
        assert (await row_of(store, base)).key is None
        assert not (await row_of(store, base)).damage
        again = await store.create(a_run(store, key="mine", conversation="talk"))
        assert isinstance(again, Existing)
        assert again.run == fork
        assert await store.check() == []
        await ended(store, fork)
        assert set((await store.delete([base, fork])).runs) == {base, fork}
        assert await store.create(a_run(store, key="mine", conversation="talk")) == Existing(fork, None)

    async def test_a_run_is_retried_once_however_many_ask(self, store: Store) -> None:
        """Whoever comes second is given what the first one made; a fork of another kind does not count."""
        base = await a_base(store, key="mine")
        await forked(store, base, 4)
        asked = [await a_fork(store, base, 4, retry=True) for _ in range(4)]
        made = await asyncio.gather(*(store.fork(new) for new in asked))
        runs = {answer.row.run if isinstance(answer, Created) else answer.run for answer in made}  # type: ignore[union-attr]
        assert len(runs) == 1
        assert sorted(type(answer).__name__ for answer in made) == ["Created", "Existing", "Existing", "Existing"]
        assert [found.word for found in (await store.forked(base)).values()] == [None, "retry"]

    async def test_a_fork_finds_in_its_inbox_what_it_was_made_with(self, store: Store) -> None:
        """In the same commit: whoever claims it sees it, and the same key is not posted again."""
        new = await a_fork(store, await a_base(store), 4, retry=True)
        await store.fork(replace(new, posts=[a_post(new.row.run, "one"), a_post(new.row.run, "two")]))
        assert [(post.seq, post.key) for post in await store.inbox(new.row.run)] == [(1, "one"), (2, "two")]
        assert (await store.post(a_post(new.row.run, "two"))).outcome == "duplicate"

    async def test_a_fork_that_is_deleted_takes_nothing_with_it(self, store: Store) -> None:
        """Its base keeps every entry, and can be forked again."""
        base = await a_base(store)
        whole = await journal_of(store, base)
        fork = await forked(store, base, 4, retry=True)
        await ended(store, fork)
        await store.delete([fork])
        assert await journal_of(store, base) == whole
        assert await store.forked(base) == {}
        assert words(await journal_of(store, await forked(store, base, 4, retry=True))) == ["2", "3", "4"]
