"""A map is a branch for every item: bounded at once, in order, and few commits for many."""

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.journal.replay import replay_of
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Pending
from holdfast.store.value import Commit, Lease, Outcome
from tests.engine.stage import Hurdle, Stage, entries_of, parked, seen, soon
from tests.engine.test_cancel import Unhurried


async def double(item: int) -> int:
    return item * 2


class Counting(MemoryStore):
    """A store that counts its commits and acknowledges each only when the loop has come round."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Count the entries of a commit."""
        self.sizes.append(len(change.entries))
        return super().commit(lease, change)


async def test_a_map_of_ten_thousand_items_is_written_in_few_commits(stage: Stage) -> None:
    """What branches wrote meanwhile becomes one commit: their number at once, not the items, sets the commits."""
    store = Counting()

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return sum(await ctx.map(double, range(10_000)))

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=120) == 99_990_000
        assert len([1 for entry in await entries_of(run) if isinstance(entry, events.StepCompleted)]) == 10_000
    assert len(store.sizes) < 10_000 / 16


async def test_a_map_goes_on_with_so_many_at_once_and_no_more(stage: Stage) -> None:
    """The bound holds live and when it is resumed in the middle; results keep the order of their items."""
    going, most = 0, 0
    full, go_on = asyncio.Event(), asyncio.Event()

    async def work(item: int) -> int:
        nonlocal going, most
        going += 1
        most = max(most, going)
        if going == 3:
            full.set()
        try:
            if item >= 3:
                await go_on.wait()
        finally:
            going -= 1
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        return await ctx.map(work, range(9), at_once=3)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(full.wait())
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted) and entry.step == "0/map#1.3/work#1")
    go_on.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == list(range(9))
    assert most == 3


async def test_errors_are_raised_by_place_or_stand_in_their_place(stage: Stage) -> None:
    """Every item has its turn whatever became of the others, live and replayed alike."""
    hurdle, lives = Hurdle(), list[list[str]]()

    async def picky(item: int) -> int:
        if item % 2:
            raise ValueError(f"no {item}")
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        found: list[Any] = await ctx.map(picky, range(4), errors="return")
        life = [str(one) for one in found]
        try:
            await ctx.map(picky, range(4), at_once=1)
        except hf.StepError as error:
            life.append(f"{error.step} {error.__notes__[0]}")
        lives.append(life)
        await ctx.step(hurdle)
        return life

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        life = await (await runtime.get(run.id)).result(timeout=20)
    assert lives == [life, life]
    assert (life[0], life[2]) == ("0", "2")
    assert "step 0/map#1.2/picky#1 failed after 1 attempt: ValueError: no 1" in life[1]
    assert life[4] == "0/map#2.2/picky#1 1 more of 4 branches failed"


async def test_items_with_keys_may_come_in_another_order(stage: Stage) -> None:
    """A key names the branch by its item: what was done for an item is found again wherever it stands."""
    performed: list[str] = []
    hurdle, order = Hurdle(), ["a/b", "é", "c.d"]

    async def work(item: str) -> str:
        performed.append(item)
        if item == "c.d":
            await hurdle()
        return item.upper()

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        return await ctx.map(work, order, key=str)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        for step in ("0/map#1.=a%2Fb/work#1", "0/map#1.=%C3%A9/work#1"):
            await seen(run, lambda entry, step=step: getattr(entry, "step", "") == step)  # type: ignore[misc]
    hurdle.open.set()
    order.reverse()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == ["C.D", "É", "A/B"]
    assert sorted(performed) == ["a/b", "c.d", "c.d", "é"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (lambda item: "same", "gives 'same' to two items"), (lambda item: item, "must be text, not int"),
        (lambda item: "", "is empty"), (lambda item: "\ud800", "lone surrogate"), (lambda item: "x" * 257, "257 bytes"),
    ],
    ids=["twice", "number", "empty", "surrogate", "long"],
)  # fmt: skip
async def test_keys_that_cannot_be_kept_are_refused_before_any_item_is_begun(stage: Stage, key: Any, said: str) -> None:
    """A wrong key is the code's error, and costs no branch."""
    performed: list[int] = []

    async def work(item: int) -> None:
        performed.append(item)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.map(work, [1, 2], key=key)
        except hf.HoldfastError as error:
            return f"{error.code}: {error}"
        return "never"

    async with stage.open(tale) as runtime:
        found = await soon(runtime.run(tale))
    assert found.startswith("invalid_input")
    assert said in found
    assert performed == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"at_once": 0}, "at least 1"), ({"at_once": True}, "at least 1"), ({"errors": "ignore"}, "or 'return'"),
        ({"function": lambda item: item}, "give ctx.map a name="), ({"function": 5}, ""), ({"colour": 1}, "colour"),
    ],
    ids=["none at once", "true at once", "unknown errors", "lambda", "no function", "unknown keyword"],
)  # fmt: skip
async def test_a_map_that_cannot_be_is_refused(stage: Stage, wrong: dict[str, Any], said: str) -> None:
    """With what would help."""
    function = wrong.pop("function", double)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            await ctx.map(function, [1, 2], **wrong)
        except hf.HoldfastError as error:
            return f"{error.code}: {error}"
        return "never"

    async with stage.open(tale) as runtime:
        found = await soon(runtime.run(tale))
    assert found.startswith("invalid_input")
    assert said in found


async def test_a_lambda_with_a_name_maps(stage: Stage) -> None:
    """The name is what stays."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        return await ctx.map(lambda item: item + 1, [1, 2], name="next")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == [2, 3]
        assert {getattr(entry, "step", "") for entry in await entries_of(run)} >= {"0/map#1.1/next#1"}


async def test_a_retry_in_one_item_holds_up_no_other_and_is_waited_for_at_rest(stage: Stage) -> None:
    """The others go on while it waits; when they are done the run rests until it is due."""
    healthy = asyncio.Event()
    performed: list[int] = []

    async def work(item: int) -> int:
        performed.append(item)
        if item == 0 and not healthy.is_set():
            raise ConnectionError("down")
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> list[int]:
        return await ctx.map(work, range(5), at_once=2, retry=hf.Retry(attempts=3, first=600.0))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "retry")
        assert sorted(performed) == [0, 1, 2, 3, 4]
        healthy.set()
        stage.clock.advance(600)
        assert await run.result(timeout=20) == list(range(5))
    assert sorted(performed) == [0, 0, 1, 2, 3, 4]


async def test_a_cancellation_passed_over_in_one_item_does_not_close_the_next_that_is_recorded() -> None:
    """The task that works through the items goes from one that is fresh to one that another life recorded."""
    store, hurdle, at_once, limits = Unhurried(), Hurdle(), [2], list[asyncio.Timeout]()

    async def work(item: int) -> int:
        if item == 0:
            await hurdle()
            store.slow = True
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                await ctx.map(work, range(2), at_once=at_once[0])
        except TimeoutError:
            return "timed out"
        return "ended"

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await seen(run, lambda entry: getattr(entry, "step", "") == "0/map#1.2/work#1")
        await soon(hurdle.reached.wait())
        at_once[0] = 1
        hurdle.reached.clear()
        for worker in await store.workers():
            await store.void(worker.worker, why="test")
        await soon(hurdle.reached.wait())
        hurdle.open.set()
        await soon(store.asked.wait())
        loop = asyncio.get_running_loop()
        limits[-1].reschedule(loop.time())
        came = asyncio.Event()
        loop.call_later(0, loop.call_soon, came.set)
        await soon(came.wait())
        store.acknowledge()
        assert await run.result(timeout=20) == "ended"
        replay_of(await entries_of(run))
