"""What `create` and `find` promise: one run per key, for ever."""

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from holdfast.core import limits
from holdfast.core.cursor import START
from holdfast.core.ids import TENANT, RunId, new_worker_id
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import Committed, Created, Existing, KeyTaken
from holdfast.testing.clock import MovingClock
from holdfast.testing.contract.story import SERVES, Pen, a_lease, a_run, a_worker, journal_of, row_of, words


class CreateContract:
    """Starting a run is writing its first entry, once per (tenant, key)."""

    async def test_a_created_run_reads_back_as_it_was_given(self, store: Store) -> None:
        """What `create` acknowledged is there: its row, and its first entry byte for byte."""
        new = a_run(store, key="k", labels={"team": "blue"}, conversation="chat", pin=True)
        created = await store.create(new)
        assert isinstance(created, Created)
        assert created.lease is None
        row = await row_of(store, new.row.run)
        assert row == created.row
        assert await journal_of(store, row.run) == [new.first]
        assert (row.name, row.key, row.tenant, row.digest) == (new.row.name, "k", TENANT, new.row.digest)
        assert (dict(row.labels), row.conversation, row.pin) == ({"team": "blue"}, "chat", True)
        assert (row.status, row.last_seq, row.head) == (Status.QUEUED, 1, new.first.checksum)
        assert (row.root, row.parent, row.owner) == (row.run, None, None)
        assert (row.created_at, row.due_at, row.fence, row.attempt) == (store.now(), store.now(), 0, 0)
        assert not row.damage

    async def test_the_same_key_and_input_give_the_same_run(self, store: Store) -> None:
        """A retry of a start lands on the run that the first one made, and writes nothing."""
        first = await store.create(a_run(store, key="k", input=b'{"n":1}'))
        again = await store.create(a_run(store, key="k", input=b'{"n":1}'))
        assert isinstance(first, Created)
        assert again == Existing(first.row.run, first.row)
        assert len(await journal_of(store, first.row.run)) == 1

    @pytest.mark.parametrize(
        ("other", "differs"),
        [
            ({"input": b'{"n":2}'}, ("input",)),
            ({"name": "tale"}, ("name",)),
            ({"conversation": "other"}, ("conversation",)),
            ({"conversation": None}, ("conversation",)),
            ({"name": "tale", "input": b"[]", "conversation": None}, ("name", "input", "conversation")),
        ],
    )
    async def test_a_key_used_for_something_else_names_what_differs(
        self, store: Store, other: dict[str, Any], differs: tuple[str, ...]
    ) -> None:
        """A key never changes its meaning: the second use is refused, and says in what it differs."""
        asked: dict[str, Any] = {"key": "k", "input": b'{"n":1}', "conversation": "chat"}
        first = await store.create(a_run(store, **asked))
        assert isinstance(first, Created)
        new = a_run(store, **{**asked, **other})
        assert await store.create(new) == KeyTaken(first.row.run, differs)
        assert await store.get(new.row.run) is None

    async def test_labels_and_version_do_not_make_a_key_conflict(self, store: Store) -> None:
        """What a key stands for is name, input and conversation; a retry after a deploy is still a retry."""
        first = await store.create(a_run(store, key="k", code="v1"))
        assert isinstance(first, Created)
        again = await store.create(a_run(store, key="k", code="v2", labels={"try": "second"}))
        assert again == Existing(first.row.run, first.row)

    async def test_a_key_belongs_to_its_tenant(self, store: Store) -> None:
        """Two tenants may use one key; neither sees the other's run."""
        ours = await store.create(a_run(store, key="k", tenant="ours"))
        theirs = await store.create(a_run(store, key="k", tenant="theirs", input=b"[1]"))
        assert isinstance(ours, Created)
        assert isinstance(theirs, Created)
        assert await store.find("ours", "k") == ours.row
        assert await store.find("theirs", "k") == theirs.row
        assert await store.find("nobody", "k") is None

    @pytest.mark.parametrize("other", ["K", "k ", "k/", "\u212a", "k\u0301"])
    async def test_keys_are_compared_byte_by_byte(self, store: Store, other: str) -> None:
        """Nothing is folded or trimmed: two keys that look alike are two keys."""
        assert isinstance(await store.create(a_run(store, key="k")), Created)
        assert isinstance(await store.create(a_run(store, key=other)), Created)

    async def test_runs_without_a_key_are_all_different(self, store: Store) -> None:
        """No key is never taken for the same key."""
        runs = [await store.create(a_run(store)) for _ in range(3)]
        assert all(isinstance(run, Created) for run in runs)

    async def test_many_starts_at_once_with_one_key_make_one_run(self, store: Store) -> None:
        """However many ask at the same moment, one run is made and all are told of it."""
        answers = await asyncio.gather(*(store.create(a_run(store, key="k")) for _ in range(20)))
        made = [answer for answer in answers if isinstance(answer, Created)]
        assert len(made) == 1
        assert {answer.run for answer in answers if isinstance(answer, Existing)} == {made[0].row.run}

    async def test_a_run_created_by_a_worker_is_its_own_at_once(self, store: Store) -> None:
        """Create and claim are one commit: nobody can come between."""
        worker, other = await a_worker(store), await a_worker(store)
        lease = await a_lease(store, worker)
        assert (lease.worker, lease.fence, lease.row.owner, lease.row.attempt) == (worker, 1, worker, 1)
        assert await row_of(store, lease.row.run) == lease.row
        assert await store.claim(other, SERVES, limit=9) == []

    async def test_a_run_created_by_an_unknown_worker_is_nobodys(self, store: Store) -> None:
        """A worker that was never registered, or was declared dead, gets no lease; the run waits for another."""
        created = await store.create(a_run(store), worker=new_worker_id())
        assert isinstance(created, Created)
        assert created.lease is None
        (lease,) = await store.claim(await a_worker(store), SERVES, limit=9)
        assert lease.row.run == created.row.run

    async def test_finding_an_existing_run_leases_nothing(self, store: Store) -> None:
        """A second start with the same key takes nothing from whoever drives the run."""
        lease = await a_lease(store, key="k")
        again = await store.create(a_run(store, key="k"), worker=await a_worker(store))
        assert again == Existing(lease.row.run, lease.row)

    async def test_a_run_may_be_driven_while_its_creation_is_written(self, store: Store) -> None:
        """What is committed under the early lease stands behind the creation, whoever is awaited first."""
        worker, made = await a_worker(store), list[RunId]()
        for _ in range(3):
            new = a_run(store)
            soon = store.create_soon(new, worker=worker)
            if soon is None:
                # It may always say that it cannot promise this now; then it has done nothing.
                assert await store.get(new.row.run) is None
                continue
            lease, creation = soon
            pen = Pen(store, lease)
            commit = store.commit(lease, pen.next("first"))
            assert await commit == Committed(2)
            created = await creation
            assert (created.row.run, created.row.number, created.row.owner) == (new.row.run, lease.row.number, worker)
            assert (lease.fence, lease.row.attempt, lease.first) == (1, 1, new.first)
            made.append(new.row.run)
        for run in made:
            assert words(await journal_of(store, run)) == ["first"]
            assert (await row_of(store, run)).damage == ""

    async def test_no_early_lease_is_given_to_a_worker_that_nobody_knows(self, store: Store) -> None:
        """There would be no row to void it by."""
        new = a_run(store)
        assert store.create_soon(new, worker=new_worker_id()) is None
        assert await store.get(new.row.run) is None

    async def test_a_delayed_run_is_due_later(self, store: Store, clock: MovingClock) -> None:
        """Timers follow the store's clock."""
        await store.create(a_run(store, delay_seconds=60.0))
        worker = await a_worker(store)
        clock.advance(59.999)
        assert await store.claim(worker, SERVES, limit=9) == []
        clock.advance(0.001)
        assert len(await store.claim(worker, SERVES, limit=9)) == 1

    async def test_a_large_input_is_stored_beside_its_run(self, store: Store) -> None:
        """An input over the inline limit is a blob, written with the first entry."""
        body = b'"%s"' % (b"x" * limits.INLINE_BYTES)
        new = a_run(store, input=body)
        await store.create(new)
        assert len((await store.read(new.row.run, START)).entries[0].body) < 1000
        assert await store.blob(TENANT, sha256(body).hexdigest()) == body
