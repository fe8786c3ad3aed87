"""What `transact` promises: a user's writes and the entry that records them are one fact."""

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import new_worker_id
from holdfast.store.protocol import Store, Transaction
from holdfast.store.value import Commit, Committed, HeadMoved, InboxMoved, Lease, LeaseLost, Outcome
from holdfast.testing.contract.story import Pen, a_lease, a_post, a_worker, claimed, journal_of, row_of, words

_SECONDS = 10.0


class TransactContract:
    """A function on the store's own connection, in its own transaction with the entry, unable to end it."""

    FORBIDDEN: ClassVar[Sequence[str]] = (
        "COMMIT",
        "END",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT mine",
        "SELECT 1; COMMIT",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "PRAGMA user_version = 99",
        "PRAGMA journal_mode = DELETE",
        "SELECT * FROM hf_runs",
        "SELECT count(*) FROM HF_ENTRIES",
        "DELETE FROM hf_entries",
        "UPDATE hf_runs SET fence = 99",
        "INSERT INTO hf_keys VALUES ('t', 'k', x'00', 'n', 'd', NULL)",
        "INSERT INTO accounts SELECT worker, 1 FROM hf_workers",
        "DROP TABLE hf_posts",
        "ALTER TABLE hf_runs ADD COLUMN mine",
        "CREATE TABLE hf_mine (n INTEGER)",
        "CREATE INDEX mine ON hf_runs (name)",
        "CREATE TRIGGER mine AFTER INSERT ON hf_entries BEGIN SELECT 1; END",
    )
    """Statements that must be refused, each by itself; override them where the dialect differs."""

    ENDLESS: ClassVar[str] = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
    ENDS_ITSELF: ClassVar[str] = "INSERT OR ROLLBACK INTO accounts VALUES ('ann', 5)"
    """A write that breaks a constraint and would take the whole transaction with it."""

    async def test_what_the_function_wrote_is_there_with_its_entry(self, store: Store) -> None:
        """The entry and the user's rows are committed at once."""
        pen = await _with_accounts(store)
        entries = words(await journal_of(store, pen.lease.row.run))
        assert entries == ["accounts"]
        assert await _balances(store, pen) == [("ann", 1)]

    async def test_what_it_raises_is_raised_and_nothing_is_written(self, store: Store) -> None:
        """The user's own exception comes back as it is; neither rows nor entry remain, and it was called once."""
        pen = await _with_accounts(store)
        calls: list[int] = []

        def work(transaction: Transaction) -> Commit:
            calls.append(1)
            transaction.execute("UPDATE accounts SET balance = 7")
            raise LookupError("no such account")

        with pytest.raises(LookupError, match="no such account"):
            await store.transact(pen.lease, work, deadline_seconds=_SECONDS)
        assert calls == [1]
        assert await _balances(store, pen) == [("ann", 1)]

    @pytest.mark.parametrize("why", ["lease", "unknown worker", "head", "inbox"])
    async def test_a_refused_entry_takes_the_functions_writes_with_it(self, store: Store, why: str) -> None:
        """A worker that lost its run cannot write through a transaction step either."""
        pen = await _with_accounts(store)
        lease, expected = pen.lease, dict[str, Outcome]()
        expected["lease"] = expected["unknown worker"] = LeaseLost()
        expected["head"], expected["inbox"] = HeadMoved(2), InboxMoved(1, 1)
        writer = Pen(store, lease)
        writer.seq, writer.head = pen.seq, pen.head
        match why:
            case "lease":
                await store.void(lease.worker, why="test")
                pen = await _continued(store, pen)
            case "unknown worker":
                writer.lease = Lease(lease.row, new_worker_id(), lease.fence, "stolen")
            case "head":
                writer.seq = 9
            case "inbox":
                await store.post(a_post(lease.row.run, "cancel", control=True))

        def work(transaction: Transaction) -> Commit:
            transaction.execute("UPDATE accounts SET balance = 7")
            return writer.next("late", control=0)

        assert await store.transact(writer.lease, work, deadline_seconds=_SECONDS) == expected[why]
        assert await _balances(store, pen) == [("ann", 1)]

    @pytest.mark.parametrize("reacts", ["raises", "swallows"])
    async def test_it_can_neither_end_its_transaction_nor_touch_what_is_ours(
        self, store: Store, forbidden: str, reacts: str
    ) -> None:
        """Such a statement is refused; whether the function gives up or goes on, nothing is half done."""
        pen = await _with_accounts(store)
        refused: list[str] = []

        def work(transaction: Transaction) -> Commit:
            transaction.execute("UPDATE accounts SET balance = 7")
            try:
                transaction.execute(forbidden)
            except InvalidInput as error:
                refused.append(str(error))
                if reacts == "raises":
                    raise
            transaction.execute("UPDATE accounts SET balance = balance + 1")
            return pen.next("done")

        if reacts == "raises":
            with pytest.raises(InvalidInput):
                await store.transact(pen.lease, work, deadline_seconds=_SECONDS)
        else:
            assert await store.transact(pen.lease, work, deadline_seconds=_SECONDS) == Committed(3)
        assert len(refused) == 1
        assert await _balances(store, pen) == [("ann", 1 if reacts == "raises" else 8)]
        assert (await row_of(store, pen.lease.row.run)).fence == pen.lease.fence
        assert await store.check() == []

    async def test_a_write_that_rolls_everything_back_is_not_taken_for_done(self, store: Store) -> None:
        """If the transaction ended under the function, no entry says that its step completed."""
        pen = await _with_accounts(store)
        place = (pen.seq, pen.head)

        def work(transaction: Transaction) -> Commit:
            transaction.execute("UPDATE accounts SET balance = 7")
            with pytest.raises(Exception, match=r"."):
                transaction.execute(self.ENDS_ITSELF)
            return pen.next("done")

        with pytest.raises(InvalidInput):
            await store.transact(pen.lease, work, deadline_seconds=_SECONDS)
        pen.seq, pen.head = place
        assert await _balances(store, pen) == [("ann", 1)]
        assert "done" not in words(await journal_of(store, pen.lease.row.run))

    async def test_it_is_stopped_at_its_deadline(self, store: Store) -> None:
        """A statement that never ends is interrupted, its writes are undone, and the store goes on."""
        pen = await _with_accounts(store)

        def work(transaction: Transaction) -> Commit:
            transaction.execute("UPDATE accounts SET balance = 7")
            transaction.execute(self.ENDLESS)
            return pen.next("done")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_called(store, pen.lease, work, seconds=0.05), timeout=_SECONDS)
        assert await _balances(store, pen) == [("ann", 1)]

    async def test_swallowing_the_deadline_does_not_pass_it(self, store: Store) -> None:
        """A function that catches everything is still over its time."""
        pen = await _with_accounts(store)
        place = (pen.seq, pen.head)

        def work(transaction: Transaction) -> Commit:
            with pytest.raises(Exception, match=r"."):
                transaction.execute(self.ENDLESS)
            return pen.next("done")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(_called(store, pen.lease, work, seconds=0.05), timeout=_SECONDS)
        pen.seq, pen.head = place
        assert await _balances(store, pen) == [("ann", 1)]

    async def test_the_transaction_ends_with_the_function(self, store: Store) -> None:
        """An object kept for later is dead: nothing can be written outside the entry's transaction."""
        pen = await _with_accounts(store)
        kept: list[Transaction] = []

        def work(transaction: Transaction) -> Commit:
            kept.append(transaction)
            return pen.next("done")

        assert await store.transact(pen.lease, work, deadline_seconds=_SECONDS) == Committed(3)
        with pytest.raises(InvalidInput):
            kept[0].execute("UPDATE accounts SET balance = 7")
        assert await _balances(store, pen) == [("ann", 1)]

    async def test_a_failed_one_spoils_no_neighbour(self, store: Store) -> None:
        """Commits of other runs asked for at the same moment are written, before and behind it."""
        pens = [Pen(store, await a_lease(store)) for _ in range(4)]

        def work(transaction: Transaction) -> Commit:
            raise LookupError

        before = [store.commit(pen.lease, pen.next("word")) for pen in pens[:2]]
        failing = asyncio.ensure_future(_called(store, pens[3].lease, work))
        await asyncio.sleep(0)
        behind = [store.commit(pen.lease, pen.next("word")) for pen in pens[:3]]
        assert [await pending for pending in (*before, *behind)] == [
            Committed(2),
            Committed(2),
            Committed(3),
            Committed(3),
            Committed(2),
        ]
        with pytest.raises(LookupError):
            await failing

    async def test_after_a_failed_one_the_run_goes_on_in_order(self, store: Store) -> None:
        """Places are still taken when commits are called, and refusals still say what they are."""
        pen = await _with_accounts(store)

        def work(transaction: Transaction) -> Commit:
            raise LookupError

        with pytest.raises(LookupError):
            await store.transact(pen.lease, work, deadline_seconds=_SECONDS)
        one, two = store.commit(pen.lease, pen.next("one")), store.commit(pen.lease, pen.next("two"))
        assert (await two, await one) == (Committed(4), Committed(3))
        with pytest.raises(LookupError):
            await store.transact(pen.lease, work, deadline_seconds=_SECONDS)
        await store.post(a_post(pen.lease.row.run, "cancel", control=True))
        assert await store.commit(pen.lease, pen.next("overtaken", control=0)) == InboxMoved(1, 1)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Try every forbidden statement of this driver."""
        if "forbidden" in metafunc.fixturenames:
            metafunc.parametrize("forbidden", self.FORBIDDEN)


async def _called(
    store: Store, lease: Lease, work: Callable[[Transaction], Commit], *, seconds: float = _SECONDS
) -> Outcome:
    return await store.transact(lease, work, deadline_seconds=seconds)


async def _with_accounts(store: Store) -> Pen:
    """Return a pen whose run made a table of accounts with one row, in a transaction of its own."""
    pen = Pen(store, await a_lease(store))

    def work(transaction: Transaction) -> Commit:
        transaction.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
        transaction.execute("INSERT INTO accounts VALUES ('ann', 1)")
        return pen.next("accounts")

    assert await store.transact(pen.lease, work, deadline_seconds=_SECONDS) == Committed(2)
    return pen


async def _continued(store: Store, pen: Pen) -> Pen:
    """Return a pen for the same run under a new lease."""
    return Pen(store, await claimed(store, await a_worker(store), pen.lease.row.run))


async def _balances(store: Store, pen: Pen) -> list[tuple[object, ...]]:
    """Return the accounts, read by a transaction of another run that leaves nothing behind."""
    found: list[tuple[object, ...]] = []
    reader = Pen(store, await a_lease(store))

    def work(transaction: Transaction) -> Commit:
        found.extend(transaction.execute("SELECT name, balance FROM accounts ORDER BY name"))
        return reader.next("looked")

    assert await store.transact(reader.lease, work, deadline_seconds=_SECONDS) == Committed(2)
    return found
