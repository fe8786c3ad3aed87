"""Branches go on beside each other, and each replays by itself."""

import asyncio
import contextlib
import sys
from datetime import timedelta
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.engine import context as context_module
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, seen_often, soon
from tests.engine.test_cancel import Unhurried


async def act(item: Any) -> Any:
    return item


def steps_of(entries: list[Any]) -> list[str]:
    """Return the steps that have a result."""
    return [entry.step for entry in entries if isinstance(entry, events.StepCompleted)]


# Places and results


async def test_branches_have_their_own_paths_and_results_keep_their_order(stage: Stage) -> None:
    """A set is numbered in its parent, a branch in its set, a step in its branch, however they end."""
    first = asyncio.Event()

    async def wait(for_: bool) -> bool:
        (await first.wait()) if for_ else first.set()
        return for_

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def deep(item: int) -> Any:
            return list(await ctx.gather(ctx.step(act, item), ctx.step(act, item + 1)))

        outer = await ctx.gather(deep(1), ctx.step(wait, True), ctx.step(wait, False))
        return [*outer, *await ctx.gather(ctx.step(act, 9))]

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == [[1, 2], True, False, 9]
        steps = steps_of(await entries_of(run))
    assert set(steps) == {
        "0/gather#1.1/gather#1.1/act#1", "0/gather#1.1/gather#1.2/act#1", "0/gather#1.2/wait#1", "0/gather#1.3/wait#1",
        "0/gather#2.1/act#1",
    }  # fmt: skip
    assert steps.index("0/gather#1.3/wait#1") < steps.index("0/gather#1.2/wait#1")


async def test_sets_that_record_nothing_leave_no_place(stage: Stage) -> None:
    """An empty set or one that only computes may stand anywhere, and goes unseen by a replay."""
    hurdle = Hurdle()

    async def compute() -> int:
        return 1

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        nothing: tuple[Any, ...] = await ctx.gather()
        computed = await ctx.gather(compute(), compute())
        mapped = await ctx.map(act, [])
        await ctx.step(act, 1)
        await ctx.gather(compute())
        await ctx.step(hurdle)
        return [*nothing, *computed, *mapped]

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        assert await kinds_of(run) == ["RunStarted", "StepCompleted"]
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == [1, 1]


async def test_steps_named_like_a_set_do_not_share_its_key(stage: Stage) -> None:
    """A function called `gather`, `map` or `result` is a step like any other."""
    hurdle = Hurdle()

    async def gather() -> str:
        return "step"

    @hf.durable(name="map")
    async def child(ctx: hf.Context) -> str:
        return "child"

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        said = [await ctx.step(gather), *await ctx.gather(ctx.step(act, "branch")), await ctx.step(gather)]
        said += [await ctx.run(child), *await ctx.map(act, ["mapped"]), await ctx.step(act, 1, name="result")]
        await ctx.step(hurdle)
        return said

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale, child) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == ["step", "branch", "step", "child", "mapped", 1]


async def test_what_is_taken_in_a_branch_is_the_same_in_whatever_order_they_end(stage: Stage) -> None:
    """Time, chance and ids belong to the branch, not to the moment."""
    hurdle, turns = Hurdle(), [asyncio.Event(), asyncio.Event()]
    lives: list[dict[int, Any]] = []

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        life: dict[int, Any] = {}
        lives.append(life)

        async def one(place: int) -> None:
            before = [str(ctx.now()), ctx.random.random(), str(ctx.uuid())]
            # In the first life the second branch goes first, in the next one the first.
            if place == (len(lives) - 1) % 2:
                await turns[len(lives) - 1].wait()
            else:
                turns[len(lives) - 1].set()
            await ctx.step(act, place)
            stage.clock.advance(1)
            life[place] = [*before, str(ctx.now()), ctx.random.random(), str(ctx.uuid())]

        await ctx.gather(one(0), one(1))
        await ctx.step(hurdle)
        return life[0] + life[1]

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        taken = await (await runtime.get(run.id)).result(timeout=20)
    # What was taken last was noted for a commit that never came; only what was written must come again.
    assert [lives[0][place][:3] for place in (0, 1)] == [lives[1][place][:3] for place in (0, 1)]
    assert [lives[0][place][4:] for place in (0, 1)] == [lives[1][place][4:] for place in (0, 1)]
    drawn = [value for place in (0, 6) for value in (*taken[place + 1 : place + 3], *taken[place + 4 : place + 6])]
    assert len(set(drawn)) == 8


async def test_a_branch_that_is_past_its_records_logs_while_another_replays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence is for what was said before, branch by branch."""
    monkeypatch.setattr(context_module, "SILENT", "silent")
    hurdle, logged = Hurdle(), list[list[bool]]()

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        life: list[bool] = []
        logged.append(life)

        async def replayed() -> None:
            life.append(ctx.log == "silent")
            await ctx.step(act, 1)
            life.append(ctx.log == "silent")
            await ctx.step(hurdle)

        async def fresh() -> None:
            life.append(ctx.log == "silent")
            await hurdle.reached.wait()

        await ctx.gather(fresh(), replayed())

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        await (await runtime.get(run.id)).result(timeout=20)
    assert logged == [[False, False, False], [False, True, False]]


# Errors


async def test_the_first_error_by_branch_is_raised_when_all_have_ended(stage: Stage) -> None:
    """A failure ends no neighbour; live and on replay it is the same one, with a note of the others."""
    caught: list[tuple[str, str]] = []
    late, hurdle = asyncio.Event(), Hurdle()

    async def fail(item: int) -> None:
        if item == 1:
            await late.wait()
        raise ValueError(f"no {item}")

    async def work() -> str:
        late.set()
        return "worked"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        async def then() -> str:
            await ctx.step(work)
            return await ctx.step(act, "to the end")

        try:
            await ctx.gather(ctx.step(fail, 1), ctx.step(fail, 2), then())
        except hf.StepError as error:
            caught.append((error.message, error.__notes__[0]))
        await ctx.step(hurdle)
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        assert "0/gather#1.3/act#1" in steps_of(await entries_of(run))
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        await (await runtime.get(run.id)).result(timeout=20)
    assert caught == [("no 1", "1 more of 3 branches failed")] * 2


async def test_an_error_that_a_branch_returns_is_its_value(stage: Stage) -> None:
    """Whoever catches an error to look at it later gets it, and it is not raised again."""

    async def fail() -> None:
        raise ValueError("no")

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def try_() -> Any:
            try:
                return await ctx.step(fail)
            except hf.StepError as error:
                return error

        found = await ctx.gather(try_(), ctx.step(act, 1))
        return [type(found[0]).__name__, found[1]]

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == ["StepError", 1]


@pytest.mark.parametrize("how", ["exit", "a cancellation of its own"])
async def test_a_branch_that_leaves_in_an_odd_way_ends_neither_its_neighbours_nor_the_process(
    stage: Stage, how: str
) -> None:
    """What ends a run in its outermost code ends it in a branch: by name, when all have ended."""

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        async def leave() -> None:
            if how == "exit":
                sys.exit(3)
            task = asyncio.create_task(asyncio.sleep(60))
            task.cancel()
            await task

        await ctx.gather(leave(), ctx.step(act, 1), ctx.step(act, 2))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        with pytest.raises(hf.RunError, match="SystemExit: 3" if how == "exit" else "CancelledError"):
            await run.result(timeout=20)
        assert sorted(steps_of(await entries_of(run))) == ["0/gather#1.2/act#1", "0/gather#1.3/act#1"]


# What is refused


@pytest.mark.parametrize("what", ["no awaitable", "a function", "twice", "used up"])
async def test_what_cannot_be_a_branch_is_refused_before_any_has_begun(stage: Stage, what: str) -> None:
    """The message says which one; nothing was performed and nobody is warned of a coroutine never awaited."""
    performed: list[int] = []

    async def note() -> None:
        performed.append(1)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        used = note()
        code = ctx.step(note)
        if what == "used up":
            await used
            performed.clear()
        others: Any = {"no awaitable": 5, "a function": note, "twice": code, "used up": used}[what]
        try:
            await ctx.gather(code, others)
        except hf.HoldfastError as error:
            used.close()
            return f"{error.code}: {error}"
        return "never"

    async with stage.open(tale) as runtime:
        said = await soon(runtime.run(tale))
    assert said.startswith("invalid_input: ctx.gather")
    assert "number 2" in said
    assert performed == []


async def test_a_verb_of_a_foreign_task_is_refused_in_a_branch_too(stage: Stage) -> None:
    """A task that a branch started by itself has no place in the journal."""

    @hf.durable
    async def tale(ctx: hf.Context) -> list[str]:
        async def stray() -> str:
            child = None
            task = asyncio.create_task(ctx.gather(ctx.step(act, 1)))
            try:
                await task
            except hf.HoldfastError as error:
                return f"{error.code} {child}"
            return "never"

        return list(await ctx.gather(stray(), stray()))

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == ["misuse None"] * 2


async def test_branches_nested_without_an_end_are_refused(stage: Stage) -> None:
    """A path is bounded; a recursion that never ends is the code's error and not the worker's."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        async def down() -> None:
            await ctx.gather(down())

        try:
            await down()
        except hf.HoldfastError as error:
            return str(error)
        return "never"

    async with stage.open(tale) as runtime:
        assert await soon(runtime.run(tale)) == "branches are nested too deeply"


# Waiting


async def test_a_run_rests_only_when_all_its_branches_wait_and_wakes_for_each(stage: Stage) -> None:
    """Sleep, signal, question, child and retry in one set: each ends by its own event, over several rests."""
    go: hf.Signal[int] = hf.Signal("go", int)
    hurdle, healthy = Hurdle(), asyncio.Event()
    performed: list[str] = []

    async def flaky() -> str:
        performed.append("flaky")
        if not healthy.is_set():
            raise ConnectionError("down")
        return "up"

    @hf.durable
    async def child(ctx: hf.Context) -> str:
        got = await ctx.receive(go)
        return f"child {got}"

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def sleeper() -> str:
            await ctx.sleep(timedelta(hours=1))
            return await ctx.step(act, "slept")

        async def asker() -> bool:
            return bool(await ctx.ask("Shall it?"))

        codes: list[Any] = [sleeper(), ctx.receive(go), asker(), ctx.run(child), ctx.step(hurdle)]
        return list(await ctx.gather(*codes, ctx.step(flaky, retry=hf.Retry(attempts=9, first=120.0))))

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await seen(run, lambda entry: isinstance(entry, events.StepFailed))
        # A branch that works keeps the run from resting.
        assert "RunParked" not in await kinds_of(run)
        hurdle.open.set()
        info = await parked(run, "ask")
        assert "Shall it?" in info.reason
        (rest,) = [entry for entry in await entries_of(run) if isinstance(entry, events.RunParked)]
        assert sorted(wait.kind for wait in rest.waits) == ["ask", "child", "retry", "signal", "sleep"]
        (spawned,) = [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)]
        child_run = await runtime.get(spawned.child)
    healthy.set()
    async with stage.open(tale, child) as runtime:
        run, child_run = await runtime.get(run.id), await runtime.get(spawned.child)
        await child_run.signal(go, 7)
        await seen(run, lambda entry: isinstance(entry, events.ChildSettled))
        stage.clock.advance(120)
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted) and "flaky" in entry.step)
        await run.signal(go, 8)
        await seen(run, lambda entry: isinstance(entry, events.SignalReceived))
        (question,) = await runtime.questions()
        await runtime.answer(question, yes=True)
        await seen(run, lambda entry: isinstance(entry, events.QuestionAnswered))
        stage.clock.advance(3600)
        assert await run.result(timeout=20) == ["slept", 8, True, "child 7", None, "up"]
    assert performed == ["flaky", "flaky"]


async def test_two_branches_that_want_the_same_signal_each_get_one(stage: Stage) -> None:
    """A post ends one wait; the next one ends the other."""
    go: hf.Signal[int] = hf.Signal("go", int)

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        return sorted(await ctx.gather(ctx.receive(go), ctx.receive(go)))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await parked(run, "signal")
        await run.signal(go, 1)
        await run.signal(go, 2)
        assert await run.result(timeout=20) == [1, 2]


# Effects


async def test_once_steps_of_branches_cut_by_a_death_are_each_in_doubt(stage: Stage) -> None:
    """Those that were under way are doubted, those that were done are not, and none is performed twice."""
    performed: list[int] = []
    reached, stuck = asyncio.Event(), asyncio.Event()

    async def pay(item: int) -> int:
        performed.append(item)
        if item > 1:
            if len(performed) == 3:
                reached.set()
            await stuck.wait()
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def safe(item: int) -> Any:
            try:
                return await ctx.step(pay, item, effect="once")
            except hf.InDoubt as doubt:
                return doubt.step

        return list(await ctx.gather(*(safe(item) for item in (1, 2, 3))))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(reached.wait())
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted))
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == [1, "0/gather#1.2/pay#1", "0/gather#1.3/pay#1"]
        assert [finding async for finding in runtime.client.verify()] == []
    assert sorted(performed) == [1, 2, 3]


async def test_transactions_of_branches_are_each_written_once_and_keep_what_others_note(stage: Stage) -> None:
    """One that fails takes nothing along of what another branch took meanwhile."""
    began, taken, hurdle = asyncio.Event(), asyncio.Event(), Hurdle()
    loop = asyncio.get_running_loop()

    def book(transaction: hf.Transaction, item: int) -> int:
        transaction.execute("CREATE TABLE IF NOT EXISTS bookings (item INTEGER)")
        transaction.execute("INSERT INTO bookings VALUES (?)", (item,))
        if item == 0:
            loop.call_soon_threadsafe(began.set)
            asyncio.run_coroutine_threadsafe(soon(taken.wait()), loop).result(20)
            raise ValueError("no")
        return item

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def clock() -> str:
            await began.wait()
            at = ctx.now()
            taken.set()
            await ctx.step(act, 1)
            return str(at)

        async def failing() -> str:
            try:
                await ctx.step(book, 0)
            except hf.StepError as error:
                return error.type
            return "never"

        found = await ctx.gather(failing(), clock(), ctx.step(book, 1), ctx.step(book, 2))
        await ctx.step(hurdle)
        return list(found)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        found = await (await runtime.get(run.id)).result(timeout=20)
    assert (found[0], found[2:]) == ("ValueError", [1, 2])
    assert sorted(stage.execute("SELECT item FROM bookings")) == [(1,), (2,)]


# Cancelling


async def test_a_timeout_around_branches_is_recorded_in_each_and_comes_again(stage: Stage) -> None:
    """On replay nothing is performed: each step under way waits to be cancelled as it was."""
    performed: list[int] = []
    hurdle, never, began = Hurdle(), asyncio.Event(), asyncio.Event()

    async def slow(item: int) -> None:
        performed.append(item)
        if len(performed) >= 3:
            began.set()
        await never.wait()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        async def two(item: int) -> None:
            await ctx.step(act, item)
            await ctx.step(slow, item)

        try:
            async with asyncio.timeout(0.3):
                await ctx.gather(two(1), two(2), ctx.sleep(3600), ctx.map(slow, [3]))
        except TimeoutError:
            await ctx.step(hurdle)
            return "went another way"
        return "never"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await seen_often(run, events.StepFailed, 4)
        cancelled = [e.step for e in await entries_of(run) if isinstance(e, events.StepFailed) and e.cancelled]
        assert sorted(cancelled) == [
            "0/gather#1.1/slow#1", "0/gather#1.2/slow#1", "0/gather#1.3/sleep#1", "0/gather#1.4/map#1.1/slow#1",
        ]  # fmt: skip
    hurdle.open.set()
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == "went another way"
        assert (await kinds_of(run)).count("StepFailed") == 4
    assert sorted(performed) == [1, 2, 3]


async def test_a_timeout_that_comes_when_all_branches_have_ended_comes_too_late(stage: Stage) -> None:
    """The last result was being written: a replay will see that the set ended, and so does the code now."""
    store, limits = Unhurried(), list[asyncio.Timeout]()

    async def last() -> str:
        store.slow = True
        return "last"

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        try:
            async with asyncio.timeout(None) as limit:
                limits.append(limit)
                return list(await ctx.gather(ctx.step(act, "first"), ctx.step(last)))
        except TimeoutError:
            return "timed out"

    async with hf.open(store, hf.App(tale)) as runtime:
        run = await runtime.start(tale)
        await soon(store.asked.wait())
        loop = asyncio.get_running_loop()
        limits[0].reschedule(loop.time())
        came = asyncio.Event()
        loop.call_later(0, loop.call_soon, came.set)
        await soon(came.wait())
        assert limits[0].expired()
        store.acknowledge()
        assert await run.result(timeout=20) == ["first", "last"]


async def test_a_cancel_reaches_every_branch_and_the_children_of_all(stage: Stage) -> None:
    """Steps under way are cancelled, waits are left, open children are asked to end, one clean-up step is taken."""
    hurdle, cleaned = Hurdle(), list[str]()

    @hf.durable
    async def child(ctx: hf.Context) -> None:
        await ctx.sleep(3600)

    async def clean() -> None:
        cleaned.append("cleaned")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.gather(ctx.run(child), ctx.step(hurdle), ctx.sleep(3600))
        finally:
            await ctx.step(clean)

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        spawned: Any = await seen(run, lambda entry: isinstance(entry, events.ChildSpawned))
        await run.cancel("enough")
        with pytest.raises(hf.RunError, match="cancelled: enough"):
            await run.result(timeout=20)
        with pytest.raises(hf.RunError, match="its parent"):
            await (await runtime.get(spawned.child)).result(timeout=20)
    assert cleaned == ["cleaned"]


async def test_a_shutdown_in_the_middle_of_branches_records_nothing(stage: Stage) -> None:
    """A deploy is no cancellation: each branch goes on where it was."""
    hurdles = [Hurdle(), Hurdle()]

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        async def one(hurdle: Hurdle) -> str:
            with contextlib.suppress(Exception):
                await ctx.step(hurdle)
            return "swallowed nothing"

        return list(await ctx.gather(*(one(hurdle) for hurdle in hurdles)))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        for hurdle in hurdles:
            await soon(hurdle.reached.wait())
            hurdle.reached.clear()
    async with stage.open(work=False) as runtime:
        assert await kinds_of(await runtime.get(run.id)) == ["RunStarted"]
    for hurdle in hurdles:
        hurdle.open.set()
    async with stage.open(tale) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == ["swallowed nothing"] * 2
