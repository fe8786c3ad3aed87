"""What `commit` promises: everything at once or nothing, in order, by one writer."""

import asyncio
from collections.abc import Awaitable
from hashlib import sha256

import pytest

from holdfast.core.budget import Account, Budget
from holdfast.core.cursor import Cursor
from holdfast.core.entry import BudgetMove
from holdfast.core.errors import NotFound
from holdfast.core.ids import TENANT, RunId, new_run_id, new_worker_id
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import (
    Commit,
    Committed,
    HeadMoved,
    InboxMoved,
    Lease,
    LeaseLost,
    NewBlob,
    NewChunk,
    Posted,
    RowChange,
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


class CommitContract:
    """A commit is the only way a run changes; a refusal is a value and has written nothing."""

    async def budget_of(self, store: Store, run: RunId, channel: str) -> tuple[int, int, int, bool] | None:
        """Return a channel's total, reserved, spent and whether something unknown was spent; None if there is none."""
        raise NotImplementedError

    async def cursor_of(self, store: Store, tenant: str, conversation: str) -> tuple[str, bytes] | None:
        """Return a conversation's harness and its cursor; None if there is none."""
        raise NotImplementedError

    async def test_a_committed_entry_reads_back_byte_for_byte(self, store: Store, clock: MovingClock) -> None:
        """What was acknowledged is the journal: the same bytes, the same checksums, and a row that says so."""
        pen = Pen(store, await a_lease(store))
        clock.advance(1)
        commit = pen.next("one", "two")
        assert await store.commit(pen.lease, commit) == Committed(3)
        entries = await journal_of(store, pen.lease.row.run)
        assert entries[1:] == list(commit.entries)
        row = await row_of(store, pen.lease.row.run)
        assert (row.last_seq, row.head, row.updated_at) == (3, pen.head, store.now())
        assert (row.owner, row.status, row.damage) == (pen.lease.worker, Status.QUEUED, "")

    async def test_a_worker_that_lost_its_lease_writes_nothing(self, store: Store) -> None:
        """A paused worker that wakes after another took its run is refused, however late."""
        pen = Pen(store, await a_lease(store))
        await store.void(pen.lease.worker, why="test")
        taken = Pen(store, await claimed(store, await a_worker(store), pen.lease.row.run))
        assert taken.lease.fence == pen.lease.fence + 1
        assert await store.commit(pen.lease, pen.next("late")) == LeaseLost()
        assert await store.commit(taken.lease, taken.next("on time")) == Committed(2)
        assert words(await journal_of(store, pen.lease.row.run)) == ["on time"]

    async def test_a_worker_declared_dead_writes_nothing_even_before_a_new_claim(self, store: Store) -> None:
        """The lease ends with the verdict, not with the successor."""
        pen = Pen(store, await a_lease(store))
        await store.void(pen.lease.worker, why="test")
        assert await store.commit(pen.lease, pen.next("late")) == LeaseLost()
        assert len(await journal_of(store, pen.lease.row.run)) == 1

    async def test_the_right_fence_in_the_wrong_hands_writes_nothing(self, store: Store) -> None:
        """A lease is a worker's: another worker with the same fence is refused, known to the store or not."""
        pen = Pen(store, await a_lease(store))
        for worker in (await a_worker(store), new_worker_id()):
            stolen = Lease(pen.lease.row, worker, pen.lease.fence, "stolen")
            assert await store.commit(stolen, Pen(store, stolen).next("mine")) == LeaseLost()
        assert len(await journal_of(store, pen.lease.row.run)) == 1

    async def test_an_old_lease_of_the_same_worker_writes_nothing(self, store: Store) -> None:
        """The fence decides, not the name: a worker that claimed again cannot write under its former lease."""
        pen = Pen(store, await a_lease(store))
        await store.release(pen.lease.worker)
        again = Pen(store, await claimed(store, pen.lease.worker, pen.lease.row.run))
        assert await store.commit(pen.lease, pen.next("old")) == LeaseLost()
        assert await store.commit(again.lease, again.next("new")) == Committed(2)

    @pytest.mark.parametrize("after", [0, 2, 7])
    async def test_a_commit_behind_another_head_is_refused_and_told_where_it_is(self, store: Store, after: int) -> None:
        """The i-th entry is written once: a commit that expects another place writes nothing."""
        pen = Pen(store, await a_lease(store))
        pen.seq = after
        assert await store.commit(pen.lease, pen.next("elsewhere")) == HeadMoved(1)
        assert len(await journal_of(store, pen.lease.row.run)) == 1

    async def test_of_many_commits_for_one_place_one_wins(self, store: Store) -> None:
        """One history: entries are numbered without a hole and without a repeat, whoever races."""
        lease = await a_lease(store)
        outcomes = await asyncio.gather(
            *(_settled(store.commit(lease, Pen(store, lease).next(str(n)))) for n in range(10))
        )
        assert outcomes.count(Committed(2)) == 1
        assert outcomes.count(HeadMoved(2)) == 9
        assert len(await journal_of(store, lease.row.run)) == 2

    @pytest.mark.parametrize("parks", [True, False], ids=["parking", "going on"])
    @pytest.mark.parametrize("control", [True, False], ids=["cancel", "signal"])
    async def test_a_commit_that_matches_the_inbox_is_refused_once_anything_came(
        self, store: Store, control: bool, parks: bool
    ) -> None:
        """A run cannot rest without having seen what waits for it."""
        pen = Pen(store, await a_lease(store))
        await store.post(a_post(pen.lease.row.run, "p", control=control))
        change = RowChange(status=Status.WAITING) if parks else None
        refused = pen.next("unseen", inbox=0, change=change)
        assert await store.commit(pen.lease, refused) == InboxMoved(1, int(control))
        assert len(await journal_of(store, pen.lease.row.run)) == 1
        pen = Pen(store, pen.lease)
        assert await store.commit(pen.lease, pen.next("seen", inbox=1, change=change)) == Committed(2)

    @pytest.mark.parametrize("ends", [True, False], ids=["ending", "going on"])
    async def test_a_commit_that_matches_control_is_refused_once_a_control_post_came(
        self, store: Store, ends: bool
    ) -> None:
        """No cancel is overtaken by an effect or an ending; an ordinary signal holds neither up."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.COMPLETED) if ends else None
        await store.post(a_post(pen.lease.row.run, "signal"))
        await store.post(a_post(pen.lease.row.run, "cancel", control=True))
        refused = pen.next("overtaken", control=0, change=change)
        assert await store.commit(pen.lease, refused) == InboxMoved(2, 2)
        pen = Pen(store, pen.lease)
        await store.post(a_post(pen.lease.row.run, "another signal"))
        assert await store.commit(pen.lease, pen.next("heard", control=2, change=change)) == Committed(2)

    async def test_a_refused_commit_leaves_nothing_of_itself(self, store: Store) -> None:
        """All of a commit becomes true at once or none of it: rows, children, posts, blobs, budget, cursor."""
        target = await a_lease(store)
        pen = Pen(store, await a_lease(store, conversation="chat"))
        run = pen.lease.row.run
        await store.post(a_post(run, "p"))
        assert await store.chunks(pen.lease, [NewChunk(1, "0/s#1", 1, 0, b"1")])
        whole = await _everything(store, pen, target.row.run)
        child, blob = whole.children[0].row.run, whole.blobs[0].digest
        whole.inbox = 0
        assert await store.commit(pen.lease, whole) == InboxMoved(1, 0)
        assert len(await journal_of(store, run)) == 1
        assert await store.get(child) is None
        assert await store.inbox(target.row.run) == []
        assert [post.seq for post in await store.inbox(run)] == [1]
        assert len((await store.read(run, (await _end(store, run)))).chunks) == 1
        with pytest.raises(NotFound):
            await store.blob(pen.lease.row.tenant, blob)
        assert await self.budget_of(store, run, "tokens") is None
        assert await self.cursor_of(store, pen.lease.row.tenant, "chat") is None

    async def test_an_accepted_commit_makes_all_of_itself_true(self, store: Store) -> None:
        """Entries, children, posts, blobs, budget moves, cursor, consumed posts and dropped chunks are one fact."""
        target = await a_lease(store)
        pen = Pen(store, await a_lease(store, conversation="chat"))
        run = pen.lease.row.run
        await store.post(a_post(run, "p"))
        assert await store.chunks(pen.lease, [NewChunk(1, "0/s#1", 1, 0, b"1")])
        whole = await _everything(store, pen, target.row.run)
        child, blob = whole.children[0], whole.blobs[0]
        assert await store.commit(pen.lease, whole) == Committed(2)
        assert words(await journal_of(store, run)) == ["whole"]
        born = await row_of(store, child.row.run)
        assert (born.parent, born.status, born.owner) == (run, Status.QUEUED, None)
        assert await journal_of(store, born.run) == [child.first]
        assert [(post.key, post.body) for post in await store.inbox(target.row.run)] == [("to target", b"1")]
        assert await store.inbox(run) == []
        assert (await store.read(run, await _end(store, run))).chunks == []
        assert await store.blob(pen.lease.row.tenant, blob.digest) == blob.body
        assert await self.budget_of(store, run, "tokens") == (100, 10, 5, False)
        assert await self.cursor_of(store, pen.lease.row.tenant, "chat") == ("native", b'"c1"')

    async def test_a_run_is_created_with_its_accounts(self, store: Store) -> None:
        """By itself or by its parent's commit; a key that is known opens none again, and no other run has them."""
        worker = await a_worker(store)
        grant = Budget(steps=10, deadline=60)
        new = a_run(store, key="once", budget=grant)
        for _ in range(2):
            await store.create(new, worker=worker)
        opened = {"steps": Account(total=10), "deadline": Account(total=new.row.created_at + 60_000_000)}
        assert await store.budget(new.row.run) == opened
        pen = Pen(store, await a_lease(store, worker))
        child, large = a_run(store, budget=grant), a_run(store, budget=grant, input=b'"' + b"x" * 70_000 + b'"')
        assert isinstance(await store.commit(pen.lease, pen.next("spawned", children=[child, large])), Committed)
        assert await store.budget(child.row.run) == await store.budget(large.row.run) == opened
        assert await store.budget(pen.lease.row.run) == {}
        soon = store.create_soon(a_run(store, budget=grant), worker=worker)
        if soon is not None:
            assert set(await store.budget((await soon[1]).row.run)) == {"steps", "deadline"}

    async def test_accounts_are_read_as_they_were_moved(self, store: Store) -> None:
        """By channel, with what is free of each."""
        pen = Pen(store, await a_lease(store, budget=Budget(steps=10)))
        moves = [BudgetMove(channel="steps", reserved=4, spent=1), BudgetMove(channel="steps", total=5, unknown=True)]
        for move in moves:
            assert isinstance(await store.commit(pen.lease, pen.next("move", budget=[move])), Committed)
        account = (await store.budget(pen.lease.row.run))["steps"]
        assert account == Account(total=15, reserved=4, spent=1, unknown=True)
        assert account.free == 10

    async def test_budget_moves_add_up_per_channel(self, store: Store) -> None:
        """Moves are sums, and an unknown spend marks its channel for good."""
        pen = Pen(store, await a_lease(store))
        moves = [
            [BudgetMove(channel="tokens", total=100), BudgetMove(channel="usd", total=7)],
            [BudgetMove(channel="tokens", reserved=40)],
            [BudgetMove(channel="tokens", reserved=-40, spent=30, unknown=True), BudgetMove(channel="usd", spent=2)],
            [BudgetMove(channel="tokens", spent=1)],
        ]
        for budget in moves:
            assert isinstance(await store.commit(pen.lease, pen.next("move", budget=budget)), Committed)
        assert await self.budget_of(store, pen.lease.row.run, "tokens") == (100, 0, 31, True)
        assert await self.budget_of(store, pen.lease.row.run, "usd") == (7, 0, 2, False)

    async def test_a_cursor_is_its_conversations_and_the_last_one_counts(self, store: Store) -> None:
        """A harness's resume handle moves with the turn that moved it, whichever run took the turn."""
        for turn, cursor in enumerate((b'"c1"', b'"c2"')):
            pen = Pen(store, await a_lease(store, conversation="chat", input=b"[%d]" % turn))
            over = pen.next("t", cursor=("native", cursor), change=RowChange(status=Status.COMPLETED))
            assert await store.commit(pen.lease, over) == Committed(2)
        assert await self.cursor_of(store, TENANT, "chat") == ("native", b'"c2"')
        row = await store.conversation(TENANT, "chat")
        assert row is not None
        assert (row.harness, row.cursor) == ("native", b'"c2"')

    async def test_a_conversation_stays_bound_to_its_first_harness(self, store: Store) -> None:
        """Whatever a commit says, no harness moves the handle of another one's."""
        for turn, (harness, cursor) in enumerate((("first", b'"c1"'), ("other", b'"x"'))):
            pen = Pen(store, await a_lease(store, conversation="chat", input=b"[%d]" % turn))
            over = pen.next("t", cursor=(harness, cursor), change=RowChange(status=Status.COMPLETED))
            assert await store.commit(pen.lease, over) == Committed(2)
        assert await self.cursor_of(store, TENANT, "chat") == ("first", b'"c1"')

    async def test_commits_of_one_run_stay_in_the_order_they_were_asked_for(self, store: Store) -> None:
        """A place is taken when a commit is called, whoever awaits first."""
        pen = Pen(store, await a_lease(store))
        asked = [store.commit(pen.lease, pen.next(str(n))) for n in range(5)]
        for n in reversed(range(5)):
            assert await asked[n] == Committed(n + 2)
        assert words(await journal_of(store, pen.lease.row.run)) == ["0", "1", "2", "3", "4"]

    async def test_a_runs_queued_commits_fail_together(self, store: Store) -> None:
        """What follows a refused commit of the same run is refused too: no fact without the facts before it."""
        pen = Pen(store, await a_lease(store))
        await store.post(a_post(pen.lease.row.run, "cancel", control=True))
        asked = [
            store.commit(pen.lease, pen.next("before")),
            store.commit(pen.lease, pen.next("refused", control=0)),
            store.commit(pen.lease, pen.next("behind it")),
            store.commit(pen.lease, pen.next("and behind that")),
        ]
        outcomes = [await pending for pending in asked]
        assert outcomes == [Committed(2), InboxMoved(1, 1), HeadMoved(2), HeadMoved(2)]
        assert words(await journal_of(store, pen.lease.row.run)) == ["before"]

    async def test_a_refused_commit_spoils_no_neighbour(self, store: Store) -> None:
        """Commits of different runs may share a transaction; a refusal among them costs the others nothing."""
        pens = [Pen(store, await a_lease(store)) for _ in range(9)]
        await store.void(pens[4].lease.worker, why="test")
        pens[6].seq = 3
        asked = [store.commit(pen.lease, pen.next("word")) for pen in pens]
        outcomes = [await pending for pending in asked]
        assert outcomes.pop(6) == HeadMoved(1)
        assert outcomes.pop(4) == LeaseLost()
        assert outcomes == [Committed(2)] * 7
        for n, pen in enumerate(pens):
            expected = [] if n in (4, 6) else ["word"]
            assert words(await journal_of(store, pen.lease.row.run)) == expected

    async def test_a_cancelled_callers_commit_still_lands(self, store: Store) -> None:
        """What is queued is written: cancelling whoever waits for it does not withdraw it."""
        pen = Pen(store, await a_lease(store))
        asked = asyncio.Event()

        async def commit() -> None:
            pending = store.commit(pen.lease, pen.next("written"))
            asked.set()
            await pending

        caller = asyncio.create_task(commit())
        await asked.wait()
        caller.cancel()
        await asyncio.wait([caller], timeout=10)
        assert await store.commit(pen.lease, pen.next("behind it")) == Committed(3)
        assert words(await journal_of(store, pen.lease.row.run)) == ["written", "behind it"]

    async def test_a_commit_that_rests_the_run_gives_up_its_lease(self, store: Store) -> None:
        """Where a run stands and who may write it change in one commit."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.WAITING, reason="retry: soon", due_at=store.now() + 5, refused="|v0|")
        assert await store.commit(pen.lease, pen.next("rest", change=change, inbox=0)) == Committed(2)
        row = await row_of(store, pen.lease.row.run)
        assert (row.status, row.reason, row.due_at, row.refused) == (
            Status.WAITING,
            "retry: soon",
            change.due_at,
            "|v0|",
        )
        assert (row.owner, row.last_seq, row.head, row.damage) == (None, 2, pen.head, "")
        assert await store.commit(pen.lease, pen.next("after")) == LeaseLost()

    async def test_a_change_without_an_entry_leaves_the_journal_alone(self, store: Store) -> None:
        """A run can be set aside without touching a journal that nobody can read."""
        pen = Pen(store, await a_lease(store))
        change = RowChange(status=Status.QUARANTINED, reason="damaged: entry 1")
        assert await store.commit(pen.lease, pen.next(change=change, progress=False)) == Committed(1)
        row = await row_of(store, pen.lease.row.run)
        assert (row.status, row.last_seq, row.head, row.damage) == (Status.QUARANTINED, 1, pen.head, "")

    async def test_a_post_never_refuses_its_senders_commit(self, store: Store) -> None:
        """A settlement to a run that ended, is gone or heard it already is no reason to lose the sender's facts."""
        ended = Pen(store, await a_lease(store))
        run = ended.lease.row.run
        assert await store.post(a_post(run, "heard")) == Posted("accepted", 1)
        await store.commit(ended.lease, ended.next("end", change=RowChange(status=Status.COMPLETED)))
        pen = Pen(store, await a_lease(store))
        posts = [a_post(run, "late"), a_post(run, "heard"), a_post(new_run_id(), "nobody")]
        assert await store.commit(pen.lease, pen.next("sent", posts=posts)) == Committed(2)

    async def test_posts_of_a_commit_are_numbered_for_each_target(self, store: Store) -> None:
        """Two posts to one run in one commit are two posts, in order, and each wakes it."""
        target = await a_lease(store)
        pen = Pen(store, await a_lease(store))
        posts = [a_post(target.row.run, "a"), a_post(target.row.run, "b", control=True), a_post(target.row.run, "a")]
        assert isinstance(await store.commit(pen.lease, pen.next("sent", posts=posts)), Committed)
        assert [(post.seq, post.key) for post in await store.inbox(target.row.run)] == [(1, "a"), (2, "b")]
        row = await row_of(store, target.row.run)
        assert (row.inbox_seq, row.control_seq, row.seen_seq) == (2, 2, 0)

    async def test_a_child_can_be_claimed_once_its_parents_commit_is_there(self, store: Store) -> None:
        """A child is a run like any other, from the moment it exists."""
        pen = Pen(store, await a_lease(store))
        child = a_run(store, parent=pen.lease.row.run)
        assert isinstance(await store.commit(pen.lease, pen.next("spawn", children=[child])), Committed)
        (lease,) = await store.claim(await a_worker(store), SERVES, limit=9)
        assert lease.row.run == child.row.run


async def _settled(pending: Awaitable[object]) -> object:
    return await pending


async def _end(store: Store, run: RunId) -> Cursor:
    return Cursor((await row_of(store, run)).last_seq)


async def _everything(store: Store, pen: Pen, target: RunId) -> Commit:
    """Return a commit that uses every field."""
    body = b'"large"'
    return pen.next(
        "whole",
        posts=[a_post(target, "to target")],
        consumed=[1],
        children=[a_run(store, parent=pen.lease.row.run)],
        blobs=[NewBlob(sha256(body).hexdigest(), body)],
        drop=["0/s#1"],
        budget=[BudgetMove(channel="tokens", total=100, reserved=10, spent=5)],
        cursor=("native", b'"c1"'),
    )
