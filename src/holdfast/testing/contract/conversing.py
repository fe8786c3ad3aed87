"""What a store promises of conversations: their turns are numbered, and taken one at a time."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.entry import RunStarted, read_entry
from holdfast.core.ids import TENANT, RunId, WorkerId
from holdfast.core.post import CANCEL, RETRY
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import Busy, Committed, Created, Existing, Lease, LeaseLost, NewFork, RowChange, RunFilter
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import (
    SERVES,
    Pen,
    a_post,
    a_run,
    a_worker,
    claimed,
    journal_of,
    row_of,
    words,
)

CHAT = "chat"


async def a_turn(store: Store, conversation: str = CHAT, **start: Any) -> RunId:
    """Create the next turn of a conversation and return its id."""
    created = await store.create(a_run(store, conversation=conversation, **start))
    assert isinstance(created, Created)
    return created.row.run


async def taken(store: Store, worker: WorkerId) -> list[RunId]:
    """Claim all that may be claimed and return which runs those are."""
    return [lease.row.run for lease in await store.claim(worker, SERVES, limit=99)]


async def end(store: Store, lease: Lease, status: Status = Status.COMPLETED) -> None:
    """Write that a run comes to `status`."""
    pen = Pen(store, lease)
    outcome = await store.commit(lease, pen.next("over", change=RowChange(status=status)))
    assert outcome == Committed(pen.seq)


async def active(store: Store, conversation: str = CHAT) -> RunId | None:
    """Return whose turn it is."""
    row = await store.conversation(TENANT, conversation)
    assert row is not None
    return row.active


class ConversationContract:
    """Whoever sends and whoever drives, a conversation is one sequence of turns."""

    async def unseat(self, store: Store, tenant: str, conversation: str) -> None:
        """Make it nobody's turn, behind the store's back."""
        raise NotImplementedError("a store's contract needs `unseat`")

    async def test_turns_are_numbered_in_the_order_of_their_creation(self, store: Store) -> None:
        """The number of a turn is its place in the conversation, and conversations count for themselves."""
        chat = [await a_turn(store) for _ in range(3)]
        other = await a_turn(store, "other")
        foreign = await a_turn(store, tenant="foreign")
        plain = await store.create(a_run(store))
        assert isinstance(plain, Created)
        assert [(await row_of(store, run)).turn for run in (*chat, other, foreign, plain.row.run)] == [
            1, 2, 3, 1, 1, None,
        ]  # fmt: skip
        assert [row.run for row in await store.turns(TENANT, CHAT)] == chat
        assert [row.turn for row in await store.turns(TENANT, CHAT, after=1, limit=1)] == [2]
        assert all(not row.damage for row in await store.turns(TENANT, CHAT))
        assert await store.turns(TENANT, "nobody") == []
        assert [await store.count_turns(TENANT, CHAT, up_to) for up_to in (0, 2, 9)] == [0, 2, 3]

    async def test_turns_created_at_one_time_get_different_numbers(self, store: Store) -> None:
        """However many send at once, no number is given twice and none is left out."""
        await asyncio.gather(*(a_turn(store) for _ in range(20)))
        assert [row.turn for row in await store.turns(TENANT, CHAT)] == list(range(1, 21))
        assert [row.behind for row in await store.turns(TENANT, CHAT)] == [False] + 19 * [True]

    async def test_a_key_that_was_used_takes_no_number(self, store: Store) -> None:
        """A message that is sent twice is one turn, and the next one is numbered behind it."""
        first = await store.create(a_run(store, conversation=CHAT, key="k"))
        again = await asyncio.gather(*(store.create(a_run(store, conversation=CHAT, key="k")) for _ in range(5)))
        assert isinstance(first, Created)
        assert all(isinstance(answer, Existing) and answer.run == first.row.run for answer in again)
        assert (await row_of(store, await a_turn(store))).turn == 2

    async def test_one_turn_is_claimed_at_a_time_and_in_order(self, store: Store) -> None:
        """A turn waits for those before it, whoever asks and however often."""
        worker, other = await a_worker(store), await a_worker(store)
        turns = [await a_turn(store) for _ in range(3)]
        for number, turn in enumerate(turns):
            (lease,) = await store.claim(worker, SERVES, limit=9)
            assert lease.row.run == turn == await active(store)
            assert await taken(store, other) == []
            assert await store.claim(other, SERVES, limit=9, runs=turns[number + 1 :]) == []
            await end(store, lease, (Status.COMPLETED, Status.FAILED, Status.CANCELLED)[number])
        assert await taken(store, worker) == []
        assert await active(store) is None

    async def test_a_turn_is_leased_to_its_creator_only_if_it_is_its_turn(self, store: Store) -> None:
        """Create and claim are one commit where nothing waits; else the turn is nobody's yet."""
        worker = await a_worker(store)
        first = await store.create(a_run(store, conversation=CHAT), worker=worker)
        second = await store.create(a_run(store, conversation=CHAT), worker=worker)
        assert isinstance(first, Created)
        assert isinstance(second, Created)
        assert first.lease is not None
        assert first.lease.row == await row_of(store, first.row.run)
        assert second.lease is None
        assert (second.row.owner, second.row.behind) == (None, True)
        assert store.create_soon(a_run(store, conversation=CHAT), worker=worker) is None
        assert len(await store.turns(TENANT, CHAT)) == 2

    async def test_a_turn_that_rests_keeps_the_others_waiting(self, store: Store, clock: MovingClock) -> None:
        """A turn is over when it has ended: not when it waits, is paused, or its worker dies."""
        worker = await a_worker(store)
        turn, behind = await a_turn(store), await a_turn(store)
        for status in (Status.WAITING, Status.PAUSED, Status.EXHAUSTED):
            lease = await claimed(store, worker, turn)
            pen = Pen(store, lease)
            rest = RowChange(status=status, due_at=store.now() + 1_000_000)
            assert await store.commit(lease, pen.next("rests", change=rest)) == Committed(pen.seq)
            assert await taken(store, worker) == []
            await store.post(a_post(turn, str(status), control=True))
        lease = await claimed(store, worker, turn)
        assert await store.void(worker, why="dead") == 1
        other = await a_worker(store)
        assert await taken(store, other) == [turn]
        assert await store.commit(lease, Pen(store, lease).next("late")) == LeaseLost()
        assert (await row_of(store, behind)).behind

    async def test_what_a_turn_commits_must_be_at_its_turn(self, store: Store) -> None:
        """The conversation's own row is asked in the statement that writes: a lease alone does not do."""
        worker = await a_worker(store)
        run = await a_turn(store)
        lease = await claimed(store, worker, run)
        pen = Pen(store, lease)
        assert await store.commit(lease, pen.next("mine")) == Committed(2)
        await self.unseat(store, TENANT, CHAT)
        assert await store.commit(lease, pen.next("not mine")) == LeaseLost()
        assert words(await journal_of(store, run)) == ["mine"]

    async def test_neighbours_in_a_batch_are_not_held_up_by_a_turn_that_is_refused(self, store: Store) -> None:
        """Commits that are made at one time stand and fall by themselves, turns or not."""
        worker = await a_worker(store)
        runs = [await a_turn(store, f"chat {n}") for n in range(4)]
        plain = await store.create(a_run(store))
        assert isinstance(plain, Created)
        pens = [Pen(store, lease) for lease in await store.claim(worker, SERVES, limit=9)]
        assert len(pens) == 5
        await self.unseat(store, TENANT, "chat 2")
        changes = [(pen.lease, pen.next("x", change=RowChange(status=Status.COMPLETED))) for pen in pens]
        outcomes = await asyncio.gather(*(store.commit(*change) for change in changes))
        refused = {pen.lease.row.run for pen, outcome in zip(pens, outcomes, strict=True) if outcome == LeaseLost()}
        assert refused == {runs[2]}
        assert [await active(store, f"chat {n}") for n in range(4)] == [None] * 4
        assert (await row_of(store, runs[2])).status is Status.QUEUED

    @pytest.mark.parametrize("how", ["by its code", "without progress"])
    async def test_a_quarantined_turn_lets_the_next_one_begin_and_cannot_return_behind_it(
        self, store: Store, how: str
    ) -> None:
        """A poison turn holds nobody up; once a later one has written something, the story went on without it."""
        worker = await a_worker(store)
        poison, later = await a_turn(store), await a_turn(store)
        if how == "by its code":
            await end(store, await claimed(store, worker, poison), Status.QUARANTINED)
        else:
            for _ in range(limits.STALLS):
                assert await store.claim(worker, SERVES, limit=9, runs=[poison])
                await store.void(worker, why="died")
                worker = await a_worker(store)
            assert await store.claim(worker, SERVES, limit=9, runs=[poison]) == []
        assert (await row_of(store, poison)).status is Status.QUARANTINED
        (lease,) = await store.claim(worker, SERVES, limit=9)
        assert lease.row.run == later
        await store.post(a_post(poison, RETRY, kind=RETRY, control=True))
        assert await taken(store, worker) == []
        await end(store, lease)
        assert await taken(store, worker) == []
        assert await store.claim(worker, SERVES, limit=9, runs=[poison]) == []

    async def test_a_quarantined_turn_returns_while_no_later_one_has_written(self, store: Store) -> None:
        """What was set aside may be tried again, in its old place, and new turns wait for it."""
        worker = await a_worker(store)
        turn = await a_turn(store)
        await end(store, await claimed(store, worker, turn), Status.QUARANTINED)
        assert await taken(store, worker) == []
        await store.post(a_post(turn, RETRY, kind=RETRY, control=True))
        (lease,) = await store.claim(worker, SERVES, limit=9)
        assert (lease.row.run, lease.row.behind, await active(store)) == (turn, False, turn)
        later = await a_turn(store)
        assert await taken(store, worker) == []
        await end(store, lease)
        assert await taken(store, worker) == [later]

    async def test_a_turn_whose_end_was_asked_for_need_not_wait_for_its_turn(self, store: Store) -> None:
        """A message that is taken back ends at once, and is passed over when its turn would come."""
        worker = await a_worker(store)
        first, second, third = [await a_turn(store) for _ in range(3)]
        lease = await claimed(store, worker, first)
        await store.post(a_post(second, "hello"))
        await store.post(a_post(second, "pause", kind="pause", control=True))
        assert await taken(store, worker) == []
        await store.post(a_post(second, CANCEL, kind=CANCEL, control=True))
        (ending,) = await store.claim(worker, SERVES, limit=9)
        assert (ending.row.run, ending.row.behind) == (second, True)
        await end(store, ending, Status.CANCELLED)
        assert await active(store) == first
        await end(store, lease)
        assert await taken(store, worker) == [third]

    async def test_a_quarantined_turn_that_cannot_return_can_be_ended(self, store: Store) -> None:
        """Nothing is open for ever."""
        worker = await a_worker(store)
        poison, later = await a_turn(store), await a_turn(store)
        await end(store, await claimed(store, worker, poison), Status.QUARANTINED)
        await end(store, await claimed(store, worker, later))
        await store.post(a_post(poison, CANCEL, kind=CANCEL, control=True))
        (lease,) = await store.claim(worker, SERVES, limit=9)
        await end(store, lease, Status.CANCELLED)
        assert (await row_of(store, poison)).status is Status.CANCELLED
        assert await active(store) is None

    async def test_turns_that_wait_hide_nothing_else_that_is_due(self, store: Store) -> None:
        """However many messages wait in one conversation, a claim finds the runs behind them."""
        worker = await a_worker(store)
        for _ in range(30):
            await a_turn(store)
        assert len(await taken(store, worker)) == 1
        for run in [row.run for row in await store.turns(TENANT, CHAT)][1:]:
            await store.post(a_post(run, "hello", control=True))
        plain = await store.create(a_run(store))
        assert isinstance(plain, Created)
        (lease,) = await store.claim(worker, SERVES, limit=1)
        assert lease.row.run == plain.row.run

    async def test_a_deleted_turn_gives_its_number_to_nobody(self, store: Store) -> None:
        """Numbers go up for ever; what is left of a conversation stays in order."""
        worker = await a_worker(store)
        turns = [await a_turn(store) for _ in range(3)]
        for turn in turns[:2]:
            await end(store, await claimed(store, worker, turn))
        assert set((await store.delete(turns)).runs) == set(turns[:2])
        assert [row.turn for row in await store.turns(TENANT, CHAT)] == [3]
        assert [await store.count_turns(TENANT, CHAT, up_to) for up_to in (0, 2, 3, 9)] == [0, 0, 1, 1]
        assert await taken(store, worker) == turns[2:]
        assert (await row_of(store, await a_turn(store))).turn == 4

    async def test_a_delayed_turn_keeps_its_place(self, store: Store, clock: MovingClock) -> None:
        """A later message does not overtake one that is sent for later."""
        worker = await a_worker(store)
        delayed, later = await a_turn(store, delay_seconds=60.0), await a_turn(store)
        assert await taken(store, worker) == []
        clock.advance(60)
        assert await taken(store, worker) == [delayed]
        assert (await row_of(store, later)).behind

    async def test_a_fork_that_stands_in_for_a_turn_is_the_next_one(self, store: Store) -> None:
        """A retry of a failed turn takes a number of its own, and waits like any other."""
        worker = await a_worker(store)
        failed, later = await a_turn(store), await a_turn(store)
        await end(store, await claimed(store, worker, failed), Status.FAILED)
        first = (await journal_of(store, failed))[0]
        new = a_run(store, conversation=CHAT)
        pen = Pen(store, Lease(new.row, worker, new.row.fence, "forked"))
        pen.seq, pen.head = 1, first.checksum
        own = pen.next("again").entries[0]
        forked = await store.fork(NewFork(row=new.row, first=own, base=failed, previous=first.checksum))
        assert isinstance(forked, Created)
        assert (forked.row.turn, forked.row.behind) == (3, True)
        await end(store, await claimed(store, worker, later))
        assert await taken(store, worker) == [forked.row.run]

    async def test_workers_that_claim_at_one_time_get_one_turn(self, store: Store) -> None:
        """Two who see that the last turn is over do not both begin the next."""
        workers = [await a_worker(store) for _ in range(4)]
        turns = [await a_turn(store) for _ in range(5)]
        for turn in turns:
            claims = await asyncio.gather(*(store.claim(worker, SERVES, limit=9) for worker in workers))
            (lease,) = [lease for leases in claims for lease in leases]
            assert lease.row.run == turn
            await asyncio.gather(end(store, lease), a_turn(store, "other"))
            (beside,) = [row.run for row in await store.turns(TENANT, "other") if not row.status.terminal]
            await end(store, await claimed(store, workers[0], beside))

    async def test_a_turn_that_is_not_to_wait_is_refused_while_another_is_open(self, store: Store) -> None:
        """Of many who send at once only if nobody is answered, one is; a key that was used is found all the same."""
        news = [replace(a_run(store, conversation=CHAT, key=f"k{n}"), if_idle=True) for n in range(5)]
        answers = await asyncio.gather(*(store.create(new) for new in news))
        (made,) = [answer for answer in answers if isinstance(answer, Created)]
        assert answers.count(Busy()) == 4
        again = replace(a_run(store, conversation=CHAT, key=made.row.key), if_idle=True)
        assert isinstance(await store.create(again), Existing)
        queued = await a_turn(store)
        await store.post(a_post(queued, CANCEL, kind=CANCEL, control=True))
        worker = await a_worker(store)
        for lease in await store.claim(worker, SERVES, limit=9):
            await end(store, lease, Status.CANCELLED)
        free = await store.create(replace(a_run(store, conversation=CHAT), if_idle=True))
        assert isinstance(free, Created)
        assert (free.row.turn, free.row.behind) == (3, False)

    async def test_a_turn_may_come_of_anothers_ending(self, store: Store) -> None:
        """What is created in the commit that ends a turn is the next one, behind those that wait."""
        worker = await a_worker(store)
        first, second = await a_turn(store), await a_turn(store)
        lease = await claimed(store, worker, first)
        new = a_run(store, conversation=CHAT, key="left over")
        pen = Pen(store, lease)
        over = pen.next("over", change=RowChange(status=Status.FAILED), children=[new])
        assert await store.commit(lease, over) == Committed(pen.seq)
        assert [(row.run, row.turn, row.damage) for row in await store.turns(TENANT, CHAT, after=1)] == [
            (second, 2, ""),
            (new.row.run, 3, ""),
        ]
        await end(store, await claimed(store, worker, second))
        assert await taken(store, worker) == [new.row.run]

    async def test_a_turn_that_comes_of_an_ending_is_made_though_its_key_is_taken(self, store: Store) -> None:
        """What was said is not lost, and the conversation goes on: only the key stays with whom it belongs to."""
        worker = await a_worker(store)
        first = await a_turn(store)
        other = await store.create(a_run(store, conversation="elsewhere", key="k", input=b"[1]"))
        assert isinstance(other, Created)
        lease = await claimed(store, worker, first)
        new = a_run(store, conversation=CHAT, key="k", input=b'{"message":"hello"}')
        pen = Pen(store, lease)
        over = pen.next("over", change=RowChange(status=Status.COMPLETED), children=[new])
        assert await store.commit(lease, over) == Committed(pen.seq)
        made = await row_of(store, new.row.run)
        assert (made.key, made.turn, made.damage) == (None, 2, "")
        entry = read_entry(made.run, (await journal_of(store, made.run))[0])
        assert isinstance(entry, RunStarted)
        assert (entry.key, bytes(entry.raw)) == (None, b'{"message":"hello"}')
        assert await store.holder(TENANT, "k") == other.row.run
        await end(store, await claimed(store, worker, made.run))

    async def test_a_turn_that_was_made_before_does_not_come_of_an_ending_again(self, store: Store) -> None:
        """The same message under the same key is one turn, whichever way it came, and takes one number."""
        worker = await a_worker(store)
        first = await a_turn(store)
        lease = await claimed(store, worker, first)
        second = await a_turn(store, key="k")
        pen = Pen(store, lease)
        again = a_run(store, conversation=CHAT, key="k")
        over = pen.next("over", change=RowChange(status=Status.COMPLETED), children=[again])
        assert await store.commit(lease, over) == Committed(pen.seq)
        assert await store.get(again.row.run) is None
        await end(store, await claimed(store, worker, second))
        assert (await row_of(store, await a_turn(store))).turn == 3
        assert len(await taken(store, worker)) == 1

    async def test_a_conversations_turns_can_be_listed(self, store: Store) -> None:
        """By their conversation and by a post that came for them."""
        turns = [await a_turn(store) for _ in range(2)]
        other = await a_turn(store, "other")
        for run in (turns[1], other):
            await store.post(a_post(run, "hello"))
        of = RunFilter(conversation=(TENANT, CHAT))
        assert [row.run for row in await store.list(of)] == turns[::-1]
        assert [row.run for row in await store.list(replace(of, posted="hello"))] == turns[1:]
        assert await store.list(RunFilter(conversation=("foreign", CHAT))) == []

    async def test_metadata_is_kept_whole_and_apart_from_the_turns(self, store: Store) -> None:
        """What a caller keeps with a conversation may be there before it begins, and the last word counts."""
        assert await store.conversation(TENANT, CHAT) is None
        await store.annotate(TENANT, CHAT, b'{"title":"one"}')
        await a_turn(store)
        await store.annotate(TENANT, CHAT, b'{"title":"two"}')
        row = await store.conversation(TENANT, CHAT)
        assert row is not None
        assert (row.metadata, row.last_turn) == (b'{"title":"two"}', 1)
        await a_turn(store, "bare")
        bare = await store.conversation(TENANT, "bare")
        assert bare is not None
        assert bare.metadata == b"{}"
