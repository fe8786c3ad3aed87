"""What `post` and `inbox` promise: every message once, and no wake-up lost."""

import pytest

from holdfast.core.errors import NotFound
from holdfast.core.ids import new_run_id
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import Committed, InboxMoved, Posted, RowChange
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import SERVES, Pen, a_lease, a_post, a_run, a_worker, row_of


class InboxContract:
    """A post is idempotent for as long as its run exists, and wakes a run that has not seen it."""

    async def test_posts_wait_in_order_until_they_are_consumed(self, store: Store, clock: MovingClock) -> None:
        """The inbox is a queue of what nobody has taken."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        for n, text in enumerate((b'"a"', b'"b"', b'"c"'), start=1):
            clock.advance(1)
            assert await store.post(a_post(run, f"k{n}", body=text)) == Posted("accepted", n)
        inbox = await store.inbox(run)
        assert [(post.seq, post.kind, post.key, post.body) for post in inbox] == [
            (1, "signal", "k1", b'"a"'),
            (2, "signal", "k2", b'"b"'),
            (3, "signal", "k3", b'"c"'),
        ]
        assert inbox[-1].at == store.now()
        assert await store.commit(pen.lease, pen.next("took two", consumed=[2])) == Committed(2)
        assert [post.seq for post in await store.inbox(run)] == [1, 3]
        assert [[post.seq for post in await store.inbox(run, after=after)] for after in (1, 2, 3)] == [[3], [3], []]

    async def test_the_same_key_is_posted_once_even_after_it_was_consumed(self, store: Store) -> None:
        """A sender that retries, however late, is told that it was heard."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        assert await store.post(a_post(run, "k")) == Posted("accepted", 1)
        assert await store.post(a_post(run, "k", body=b"2")) == Posted("duplicate", 1)
        await store.commit(pen.lease, pen.next("took", consumed=[1]))
        assert await store.post(a_post(run, "k")) == Posted("duplicate", 1)
        await store.commit(pen.lease, pen.next("end", change=RowChange(status=Status.COMPLETED)))
        assert await store.post(a_post(run, "k")) == Posted("duplicate", 1)
        assert (await row_of(store, run)).inbox_seq == 1

    async def test_a_posts_key_is_its_runs_own(self, store: Store) -> None:
        """The same key to two runs is two posts."""
        one, two = await a_lease(store), await a_lease(store)
        assert await store.post(a_post(one.row.run, "k")) == Posted("accepted", 1)
        assert await store.post(a_post(two.row.run, "k")) == Posted("accepted", 1)

    @pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
    async def test_a_finished_run_answers_that_it_has_finished(self, store: Store, status: Status) -> None:
        """A post that comes too late is told so, and is not kept."""
        pen = Pen(store, await a_lease(store))
        await store.commit(pen.lease, pen.next("end", change=RowChange(status=status)))
        assert (await store.post(a_post(pen.lease.row.run, "late"))).outcome == "finished"
        assert await store.inbox(pen.lease.row.run) == []
        assert (await row_of(store, pen.lease.row.run)).inbox_seq == 0

    async def test_a_post_to_nobody_is_not_found(self, store: Store) -> None:
        """There is no inbox without a run."""
        with pytest.raises(NotFound):
            await store.post(a_post(new_run_id(), "k"))
        assert await store.inbox(new_run_id()) == []

    async def test_only_control_posts_raise_control_seq(self, store: Store) -> None:
        """A cancel is seen by an intent and an ending; a flood of signals holds neither up."""
        run = (await a_lease(store)).row.run
        for n, control in enumerate((False, True, False), start=1):
            await store.post(a_post(run, str(n), control=control))
        row = await row_of(store, run)
        assert (row.inbox_seq, row.control_seq, row.seen_seq) == (3, 2, 0)
        assert row.damage == ""

    @pytest.mark.parametrize("moment", ["before the look", "between look and park", "after the park"])
    async def test_a_post_at_any_moment_around_a_park_wakes_the_run(self, store: Store, moment: str) -> None:
        """No wake-up is lost: whichever side of the park a post lands on, the run sees it or is claimed for it."""
        pen = Pen(store, await a_lease(store))
        run = pen.lease.row.run
        if moment == "before the look":
            await store.post(a_post(run, "p"))
        looked = (await row_of(store, run)).inbox_seq
        seen = len(await store.inbox(run)) > 0
        if moment == "between look and park":
            await store.post(a_post(run, "p"))
        rest = RowChange(status=Status.WAITING, seen_seq=looked)
        outcome = await store.commit(pen.lease, pen.next("rest", change=rest, inbox=looked))
        if isinstance(outcome, InboxMoved):
            # What a journal does: it rests all the same, with what it had seen, and so stays claimable.
            pen = Pen(store, pen.lease)
            outcome = await store.commit(pen.lease, pen.next("rest", change=rest, inbox=outcome.inbox_seq))
        assert outcome == Committed(2)
        if moment == "after the park":
            await store.post(a_post(run, "p"))
        woken = len(await store.claim(await a_worker(store), SERVES, limit=9)) == 1
        assert seen or woken

    async def test_a_post_to_a_run_at_work_is_not_forgotten_when_it_rests(self, store: Store) -> None:
        """What came while the run was driven, and was not looked at, wakes it after it rested."""
        pen = Pen(store, await a_lease(store))
        await store.post(a_post(pen.lease.row.run, "p"))
        rest = RowChange(status=Status.WAITING, seen_seq=0)
        assert await store.commit(pen.lease, pen.next("rest", change=rest)) == Committed(2)
        assert len(await store.claim(await a_worker(store), SERVES, limit=9)) == 1

    async def test_a_run_that_never_was_driven_keeps_its_posts(self, store: Store) -> None:
        """A post may come before the first claim."""
        new = a_run(store, delay_seconds=60.0)
        await store.create(new)
        assert await store.post(a_post(new.row.run, "p")) == Posted("accepted", 1)
        (lease,) = await store.claim(await a_worker(store), SERVES, limit=9)
        assert lease.row.inbox_seq == 1
        assert [post.key for post in await store.inbox(new.row.run)] == ["p"]
