"""A step in the entry's own transaction happens exactly as often as it is recorded."""

import asyncio
import threading
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import limits
from holdfast.store.memory import MemoryStore
from tests.engine.stage import Hurdle, Stage, kinds_of, soon

TABLE = "CREATE TABLE IF NOT EXISTS ledger (what TEXT, cents INTEGER)"


def add(tx: hf.Transaction, what: str, cents: int) -> int:
    """Write a line into the ledger and return how many there are."""
    tx.execute(TABLE)
    tx.execute("INSERT INTO ledger VALUES (?, ?)", (what, cents))
    ((count,),) = tx.execute("SELECT count(*) FROM ledger WHERE what = :what", {"what": what})
    return int(count)


def ledger(stage: Stage) -> list[tuple[str, int]]:
    """Return every line."""
    return stage.execute("SELECT what, cents FROM ledger")


async def test_it_writes_with_its_entry_and_not_again_after_a_resume(stage: Stage) -> None:
    """Exactly once: the line and the record that it was written are one commit."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        count = await ctx.step(add, "book", 5)
        await ctx.step(hurdle)
        return count

    async with stage.open(tale) as runtime:
        await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.start(tale, key="k")
        assert await run.result(timeout=20) == 1
        assert (await kinds_of(run)).count("StepCompleted") == 2
        assert "StepStarted" not in await kinds_of(run)
    assert ledger(stage) == [("book", 5)]


async def test_a_shutdown_in_its_middle_leaves_both_or_neither(stage: Stage) -> None:
    """Nobody parts the line from its record: a transaction under way is finished before the store closes."""
    began, may_end = threading.Event(), threading.Event()

    def slow(tx: hf.Transaction) -> None:
        tx.execute(TABLE)
        tx.execute("INSERT INTO ledger VALUES ('slow', 1)")
        began.set()
        may_end.wait(20)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.step(slow)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await asyncio.to_thread(began.wait, 20)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
    async with stage.open(work=False) as runtime:
        recorded = (await kinds_of(await runtime.get(run.id))).count("StepCompleted")
    assert len(ledger(stage)) == recorded
    async with stage.open(tale) as runtime:
        await (await runtime.get(run.id)).result(timeout=20)
    assert ledger(stage) == [("slow", 1)]


async def test_what_it_raises_undoes_it_and_fails_the_step(stage: Stage) -> None:
    """A transaction that raised did not happen: no doubt, whatever effect was declared."""
    calls: list[int] = []

    def refuse(tx: hf.Transaction) -> None:
        calls.append(1)
        tx.execute(TABLE)
        tx.execute("INSERT INTO ledger VALUES ('refused', 1)")
        raise LookupError("no such account")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(refuse, effect="once")
        except hf.StepError as error:
            return f"{type(error).__name__} {error.type}: {error.message}"
        return "never"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == "StepError LookupError: no such account"
        assert "StepDoubted" not in await kinds_of(run)
    assert calls == [1]
    assert stage.execute("SELECT name FROM sqlite_master WHERE name = 'ledger'") == []


async def test_a_retried_one_leaves_the_last_attempts_writes_only(stage: Stage) -> None:
    """Failed attempts leave nothing behind."""
    tries: list[int] = []

    def flaky(tx: hf.Transaction) -> int:
        tries.append(1)
        tx.execute(TABLE)
        tx.execute("INSERT INTO ledger VALUES ('try', ?)", (len(tries),))
        if len(tries) < 3:
            raise ConnectionError
        return len(tries)

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.step(flaky, retry=hf.Retry(attempts=5, first=0.0))

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == 3
    assert ledger(stage) == [("try", 3)]


@pytest.mark.parametrize(
    "sql", ["COMMIT", "ROLLBACK", "SELECT * FROM hf_runs", "PRAGMA synchronous=OFF", "ATTACH 'other.db' AS other"]
)
async def test_it_cannot_leave_its_transaction_or_touch_what_is_ours(stage: Stage, sql: str) -> None:
    """The step fails with the reason; the run may catch it and go on."""

    def escape(tx: hf.Transaction) -> None:
        tx.execute(sql)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(escape)
        except hf.StepError as error:
            await ctx.step(add, "after", 1)
            return error.type
        return "escaped"

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == "InvalidInput"
    assert ledger(stage) == [("after", 1)]


async def test_it_is_a_plain_function(stage: Stage) -> None:
    """An async one could hold the transaction open for ever, and is refused."""

    async def later(tx: hf.Transaction) -> None:
        tx.execute(TABLE)

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        function: Any = later
        await ctx.step(function)

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="plain function, not an async one"):
            await soon(runtime.run(tale))


async def test_its_result_is_small_and_comes_back_as_it_was(stage: Stage) -> None:
    """It is committed with the entry, so it must fit there; and live equals replayed here too."""

    def large(tx: hf.Transaction) -> str:
        return "x" * limits.INLINE_BYTES

    def pair(tx: hf.Transaction) -> tuple[int, int]:
        return (1, 2)

    @hf.durable
    async def tale(ctx: hf.Context) -> tuple[int, int]:
        with pytest.raises(hf.StepError, match="at most 65,536 bytes"):
            await ctx.step(large)
        return await ctx.step(pair)

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == (1, 2)


async def test_it_is_stopped_at_its_timeout(stage: Stage) -> None:
    """A statement without an end fails the step, and the store goes on."""

    def endless(tx: hf.Transaction) -> None:
        tx.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n")

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.step(endless, timeout=0.05)
        except hf.StepError as error:
            return f"{error.type} {await ctx.step(add, 'after', 1)}"
        return "never"

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == "TimeoutError 1"


async def test_a_time_taken_before_it_is_recorded_with_it() -> None:
    """What was noted for the next entry is not lost in a transaction that is tried twice."""
    tries: list[int] = []

    def flaky(tx: hf.Transaction) -> int:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return 1

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        ctx.now()
        await ctx.step(flaky, retry=hf.Retry(first=0.0))

    async with hf.open(MemoryStore(), hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await run.result(timeout=20)
        assert await kinds_of(run) == ["RunStarted", "ValueTaken", "StepFailed", "StepCompleted", "RunFinished"]


async def test_many_runs_may_use_it_at_once(stage: Stage) -> None:
    """Transactions of different runs follow each other; none is lost."""

    @hf.durable
    async def tale(ctx: hf.Context, cents: int) -> None:
        await ctx.step(add, "many", cents)

    async with stage.open(tale) as runtime:
        await soon(asyncio.gather(*(runtime.run(tale, n) for n in range(20))))
    assert sorted(cents for _, cents in ledger(stage)) == list(range(20))
