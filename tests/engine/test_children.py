"""Children are runs of their own: they end with their parent, and it hears of their end wherever it is."""

import asyncio
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, seen_often, soon


async def act(item: Any) -> Any:
    return item


@hf.durable
async def echo(ctx: hf.Context, item: int) -> int:
    """Return what it was given, by a step."""
    got: int = await ctx.step(act, item)
    return got


def spawned(entries: list[Any]) -> list[str]:
    """Return the children that were spawned."""
    return [entry.child for entry in entries if isinstance(entry, events.ChildSpawned)]


async def test_a_childs_result_is_the_same_live_and_replayed_a_large_one_too(stage: Stage) -> None:
    """It stands in the parent's journal, or in the blob that the child wrote."""
    hurdle, lives = Hurdle(), list[Any]()

    @hf.durable
    async def paint(ctx: hf.Context, size: int) -> str:
        return "x" * size

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        found = [await ctx.run(echo, 5), await ctx.run(paint, 70_000)]
        lives.append(found)
        await ctx.step(hurdle)
        return len(found[1]) if isinstance(found[1], str) else 0

    async with stage.open(tale, echo, paint) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale, echo, paint) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == 70_000
    assert lives[0] == lives[1] == [5, "x" * 70_000]


async def test_a_child_that_fails_raises_the_same_error_live_and_replayed(stage: Stage) -> None:
    """A RunError that names the child, how it ended and why, which the parent may catch."""
    hurdle, lives = Hurdle(), list[Any]()

    @hf.durable
    async def bad(ctx: hf.Context) -> None:
        raise ValueError("no")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.run(bad)
        except hf.RunError as error:
            lives.append((error.run, str(error.status), error.reason, error.error))
        await ctx.step(hurdle)

    async with stage.open(tale, bad) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        (child,) = spawned(await entries_of(run))
    hurdle.open.set()
    async with stage.open(tale, bad) as runtime:
        await (await runtime.get(run.id)).result(timeout=20)
    assert lives[0] == lives[1]
    assert lives[0][:3] == (child, "failed", "no")
    assert lives[0][3]["type"] == "ValueError"


async def test_a_child_that_ends_while_its_parent_is_dead_is_found_ended(stage: Stage) -> None:
    """The settlement waits in the parent's inbox; the child is neither started nor asked again."""
    hurdle = Hurdle()

    @hf.durable
    async def child(ctx: hf.Context) -> str:
        await ctx.step(hurdle)
        return "done"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.run(child)

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        (one,) = spawned(await entries_of(run))
    hurdle.open.set()
    async with stage.open(child) as runtime:
        assert await (await runtime.get(one)).result(timeout=20) == "done"
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        assert await run.result(timeout=20) == "done"
        kinds = await kinds_of(run)
    assert (kinds.count("ChildSpawned"), kinds.count("ChildSettled")) == (1, 1)


async def test_the_order_in_which_children_settled_is_recorded(stage: Stage) -> None:
    """A replay gives the same endings, in whatever order the code asks for them."""
    hurdles = [Hurdle(), Hurdle()]
    after = Hurdle()

    @hf.durable
    async def child(ctx: hf.Context, place: int) -> int:
        await ctx.step(hurdles[place])
        return place

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        children = [await ctx.spawn(child, place) for place in range(2)]
        found = list(await ctx.gather(*(one.result() for one in children)))
        await ctx.step(after)
        return found

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        for hurdle in hurdles:
            await soon(hurdle.reached.wait())
        hurdles[1].open.set()
        await seen(run, lambda entry: isinstance(entry, events.ChildSettled))
        hurdles[0].open.set()
        await soon(after.reached.wait())
        settled = [entry.value for entry in await entries_of(run) if isinstance(entry, events.ChildSettled)]
        assert settled == [1, 0]
    after.open.set()
    async with stage.open(tale, child) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == [0, 1]


async def test_two_branches_may_wait_for_the_same_child(stage: Stage) -> None:
    """Its settlement is taken once and told to both, and to whoever asks later."""

    @hf.durable
    async def tale(ctx: hf.Context) -> Any:
        child = await ctx.spawn(echo, 5)
        return [*await ctx.gather(child.result(), child.result()), await child.result()]

    async with stage.open(tale, echo) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == [5, 5, 5]
        assert (await kinds_of(run)).count("ChildSettled") == 1


async def test_a_timeout_around_a_childs_result_is_taken_again_though_the_child_ended_since(stage: Stage) -> None:
    """The code went on without it: a replay that finds it settled must go the same way."""
    hurdle, ways = Hurdle(), list[str]()
    childs = Hurdle()

    @hf.durable
    async def child(ctx: hf.Context) -> str:
        await ctx.step(childs)
        return "child"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        one = await ctx.spawn(child)
        try:
            async with asyncio.timeout(0.05):
                await one.result()
            ways.append("had it")
        except TimeoutError:
            ways.append("timed out")
            await ctx.step(act, "without it")
        late = await one.result()
        await ctx.step(hurdle)
        return late

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await seen(run, lambda entry: getattr(entry, "step", "") == "0/act#1")
        childs.open.set()
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(tale, child) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "child"
    assert set(ways) == {"timed out"}


async def test_a_childs_result_is_refused_in_a_foreign_task(stage: Stage) -> None:
    """It is a verb like any other."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        child = await ctx.spawn(echo, 1)
        try:
            await asyncio.create_task(child.result())
        except hf.HoldfastError as error:
            return error.code
        return "never"

    async with stage.open(tale, echo) as runtime:
        assert await soon(runtime.run(tale)) == "misuse"


async def test_a_child_is_sent_a_signal_once_and_a_cancel_once(stage: Stage) -> None:
    """However often the parent is resumed behind them."""
    go: hf.Signal[int] = hf.Signal("go", int)
    hurdle = Hurdle()

    @hf.durable
    async def child(ctx: hf.Context) -> list[int]:
        got = [await ctx.receive(go), await ctx.receive(go)]
        await ctx.receive(go)
        return got

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        one = await ctx.spawn(child)
        await one.signal(go, 1)
        await one.signal(go, 1)
        await ctx.step(hurdle)
        await one.cancel("enough")
        try:
            await one.result()
        except hf.RunError as error:
            return str(error.status)
        return "never"

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        (one,) = spawned(await entries_of(run))
        # A cancel overtakes what was not yet received, so both must have been.
        await seen_often(await runtime.get(one), events.SignalReceived, 2)
    hurdle.open.set()
    async with stage.open(tale, child) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "cancelled"
        received = [e for e in await entries_of(await runtime.get(one)) if isinstance(e, events.SignalReceived)]
    assert [entry.value for entry in received] == [1, 1]


async def test_a_parent_that_ends_ends_the_children_that_it_leaves_and_theirs(stage: Stage) -> None:
    """Whether it returned or failed; who has ended already is left alone."""
    reached = [asyncio.Event(), asyncio.Event()]

    @hf.durable
    async def grandchild(ctx: hf.Context) -> None:
        reached[0].set()
        await ctx.sleep(3600)

    @hf.durable
    async def child(ctx: hf.Context) -> None:
        await ctx.spawn(grandchild)
        reached[1].set()
        await ctx.sleep(3600)

    @hf.durable
    async def tale(ctx: hf.Context, fails: bool) -> None:
        await ctx.run(echo, 1)
        await ctx.spawn(child)
        for event in reached:
            await event.wait()
        if fails:
            raise ValueError("no")

    async with stage.open(tale, child, grandchild, echo) as runtime:
        for fails in (False, True):
            run = await runtime.start(tale, fails)
            if fails:
                with pytest.raises(hf.RunError, match="ValueError"):
                    await run.result(timeout=20)
            else:
                await run.result(timeout=20)
            first, second = spawned(await entries_of(run))
            assert await (await runtime.get(first)).result(timeout=20) == 1
            with pytest.raises(hf.RunError, match="its parent"):
                await (await runtime.get(second)).result(timeout=20)
            (third,) = spawned(await entries_of(await runtime.get(second)))
            with pytest.raises(hf.RunError, match="its parent"):
                await (await runtime.get(third)).result(timeout=20)
            for event in reached:
                event.clear()


async def test_a_cancelled_parents_clean_up_is_replayed_though_it_waits_for_a_child(stage: Stage) -> None:
    """The process died after the clean-up step: the wait is left again, and the ending is written."""
    hurdle, cleaning, cleaned = Hurdle(), Hurdle(), list[str]()

    @hf.durable
    async def child(ctx: hf.Context) -> None:
        await ctx.step(hurdle)

    async def clean() -> None:
        cleaned.append("cleaned")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        try:
            await ctx.run(child)
        finally:
            await ctx.step(clean)
            await cleaning()

    async with stage.open(tale, child) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        await run.cancel()
        await soon(cleaning.reached.wait())
    cleaning.open.set()
    async with stage.open(tale, child) as runtime:
        with pytest.raises(hf.RunError, match="cancelled"):
            await (await runtime.get(run.id)).result(timeout=20)
    assert cleaned == ["cleaned"]


async def test_a_child_of_a_child_knows_its_root(stage: Stage) -> None:
    """A tree is found by its root, however deep."""
    roots: list[str] = []

    @hf.durable
    async def deep(ctx: hf.Context, left: int) -> int:
        return await ctx.run(deep, left - 1) if left else 0

    async with stage.open(deep) as runtime:
        run = await runtime.start(deep, 3)
        assert await run.result(timeout=20) == 0
        below: list[str] = [run.id]
        while below:
            (started,) = [e for e in await entries_of(await runtime.get(below[0])) if isinstance(e, events.RunStarted)]
            roots.append(started.root)
            below = spawned(await entries_of(await runtime.get(below[0])))
    assert roots == [run.id] * 4


async def test_a_worker_with_one_place_drives_a_parent_and_its_children(stage: Stage) -> None:
    """The parent gives its place up while it waits, however deep the tree is."""

    @hf.durable
    async def deep(ctx: hf.Context, left: int) -> int:
        return 1 + sum(await ctx.map(deep, [left - 1] * 2)) if left else 1

    async with stage.open(deep, concurrency=1) as runtime:
        assert await soon(runtime.run(deep, 3)) == 15


async def test_a_child_whose_code_is_elsewhere_is_driven_there(stage: Stage) -> None:
    """The parent rests meanwhile; nothing here tries what it does not know."""

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.run(echo, 5)

    async with stage.open(tale) as here:
        run = await here.start(tale)
        await parked(run, "child")
        async with stage.open(echo):
            assert await run.result(timeout=20) == 5


async def test_a_child_whose_result_has_another_type_now_is_refused(stage: Stage) -> None:
    """What the journal holds does not fit the code: the run waits for other code instead of failing for good."""
    hurdle = Hurdle()

    @hf.durable(name="child")
    async def first(ctx: hf.Context) -> int:
        return 5

    @hf.durable(name="child")
    async def second(ctx: hf.Context) -> list[int]:
        return [5]

    def tale_of(child: Any) -> Any:
        async def tale(ctx: hf.Context) -> None:
            await ctx.run(child)
            await ctx.step(hurdle)

        return hf.durable(name="tale")(tale)

    old = tale_of(first)
    async with stage.open(old, first, version="1") as runtime:
        run = await runtime.start(old)
        await soon(hurdle.reached.wait())
    async with stage.open(tale_of(second), second, version="2") as runtime:
        info = await parked(await runtime.get(run.id), "diverged")
    assert "0/child#1" in info.reason


async def test_many_children_settle_one_parent(stage: Stage) -> None:
    """Spawned at once and asked for one by one, or mapped: every one is found, and none is left."""

    @hf.durable
    async def tale(ctx: hf.Context, count: int) -> int:
        children = await ctx.gather(*(ctx.spawn(echo, item) for item in range(count)))
        total = 0
        for child in children:
            total += await child.result()
        return total + sum(await ctx.map(echo, range(count)))

    async with stage.open(tale, echo) as runtime:
        run = await runtime.start(tale, 200)
        assert await run.result(timeout=120) == 2 * 19_900
        kinds = await kinds_of(run)
    assert (kinds.count("ChildSpawned"), kinds.count("ChildSettled")) == (400, 400)


def test_a_plain_program_drives_the_children_of_its_run_and_theirs(stage: Stage) -> None:
    """`hf.run` drives its own tree, whose code it was given by whoever spawned, and nothing else."""

    @hf.durable
    async def middle(ctx: hf.Context) -> int:
        return await ctx.run(echo, 5)

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.run(middle)

    async def start_another() -> None:
        async with stage.open(work=False) as runtime:
            await runtime.start(tale, key="another")

    asyncio.run(start_another())
    assert hf.run(tale, store=f"sqlite:///{stage.path}") == 5
    assert stage.execute("SELECT count(*) FROM hf_runs WHERE key = 'another' AND fence = 0") == [(1,)]


def test_a_plain_program_goes_on_with_a_tree_that_rests(stage: Stage) -> None:
    """The parents have nothing to do, yet only their code tells whose code the child below them is."""
    go: hf.Signal[int] = hf.Signal("go", int)

    @hf.durable
    async def child(ctx: hf.Context) -> int:
        return await ctx.receive(go)

    @hf.durable
    async def middle(ctx: hf.Context) -> int:
        return await ctx.run(child)

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.run(middle)

    async def rest_and_be_told() -> None:
        async with stage.open(tale, middle, child) as runtime:
            run = await runtime.start(tale, key="tale")
            (below,) = spawned(await until_parked(run))
            (lowest,) = spawned(await until_parked(await runtime.get(below)))
            await parked(await runtime.get(lowest), "signal")
        async with stage.open(work=False) as runtime:
            await (await runtime.get(lowest)).signal(go, 7)

    async def until_parked(run: hf.Run[Any]) -> list[Any]:
        await parked(run, "child")
        return await entries_of(run)

    asyncio.run(rest_and_be_told())
    assert hf.run(tale, key="tale", store=f"sqlite:///{stage.path}") == 7


def test_a_plain_program_is_told_which_child_holds_its_run_up(stage: Stage) -> None:
    """A doubt below is as much an end of what it can do by itself as one of its own."""

    async def pay() -> None:
        raise ConnectionError("cut")

    @hf.durable
    async def clerk(ctx: hf.Context) -> None:
        await ctx.step(pay, effect="once", in_doubt="wait")

    @hf.durable
    async def tale(ctx: hf.Context) -> None:
        await ctx.run(clerk)

    with pytest.raises(hf.RunError) as held:
        hf.run(tale, store=f"sqlite:///{stage.path}")
    assert held.value.status is hf.Status.WAITING
    assert held.value.reason.startswith("child: clerk ")
    assert "0/pay#1 is in doubt" in held.value.reason


async def test_what_a_child_is_told_holds_no_secret(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its input nor a signal: what a parent sends stands in the store."""
    monkeypatch.setenv("TOKEN", "hush-hush")
    go: hf.Signal[str] = hf.Signal("go", str)

    @hf.durable
    async def child(ctx: hf.Context, given: str) -> str:
        return given + await ctx.receive(go)

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        one = await ctx.spawn(child, "hush-hush")
        await one.signal(go, "hush-hush")
        return await one.result()

    async with stage.open(tale, child, secrets=["TOKEN"]) as runtime:
        assert await soon(runtime.run(tale)) == "[TOKEN][TOKEN]"
    assert stage.execute("SELECT count(*) FROM hf_posts WHERE instr(body, 'hush') > 0") == [(0,)]
