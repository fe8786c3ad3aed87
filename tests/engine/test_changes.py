"""Code that changes under a live run is refused before any new effect, unless it says what it does about old runs."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, parked, seen, soon

performed: list[str] = []


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    """Every test begins with a clean world."""
    performed.clear()


async def a() -> str:
    performed.append("a")
    return "a"


async def b() -> str:
    performed.append("b")
    return "b"


async def c() -> str:
    performed.append("c")
    return "c"


async def act(item: str) -> str:
    performed.append(item)
    return item


Code = Callable[[hf.Context], Awaitable[Any]]


async def serial(ctx: hf.Context) -> None:
    await ctx.step(a)
    await ctx.step(b)


async def parallel(ctx: hf.Context) -> None:
    await ctx.gather(ctx.step(a), ctx.step(b))


async def swapped(ctx: hf.Context) -> None:
    await ctx.gather(ctx.step(b), ctx.step(a))


async def one_more(ctx: hf.Context) -> None:
    await ctx.gather(ctx.step(a), ctx.step(b), ctx.step(c))


async def one_less(ctx: hf.Context) -> None:
    await ctx.gather(ctx.step(a))


async def longer(ctx: hf.Context) -> None:
    async def both() -> None:
        await ctx.step(b)
        await ctx.step(c)

    await ctx.gather(ctx.step(a), both())


async def nested(ctx: hf.Context) -> None:
    async def inner() -> None:
        await ctx.gather(ctx.step(b))

    await ctx.gather(ctx.step(a), inner())


async def nested_longer(ctx: hf.Context) -> None:
    async def inner() -> None:
        await ctx.gather(ctx.step(b), ctx.step(c))

    await ctx.gather(ctx.step(a), inner())


async def nothing(ctx: hf.Context) -> None:
    await ctx.gather()


async def mapped(ctx: hf.Context) -> None:
    await ctx.map(act, ["x", "y"])


async def mapped_otherwise(ctx: hf.Context) -> None:
    await ctx.map(act, ["y", "x"])


async def mapped_less(ctx: hf.Context) -> None:
    await ctx.map(act, ["x"])


async def mapped_more(ctx: hf.Context) -> None:
    await ctx.map(act, ["x", "y", "z"])


async def keyed(ctx: hf.Context) -> None:
    await ctx.map(act, ["x", "y"], key=str)


async def keyed_less(ctx: hf.Context) -> None:
    await ctx.map(act, ["y"], key=str)


async def keyed_more(ctx: hf.Context) -> None:
    await ctx.map(act, ["x", "y", "z"], key=str)


async def resumed_by(stage: Stage, old: Code, new: Code) -> tuple[hf.RunInfo, list[str]]:
    """Let a run pass `old` and come to a step behind it, let other code go on, and tell where it rests."""
    hurdle = Hurdle()

    @hf.durable(name="tale")
    async def first(ctx: hf.Context) -> str:
        await old(ctx)
        await ctx.step(act, "after")
        await ctx.step(hurdle)
        return "done"

    @hf.durable(name="tale")
    async def second(ctx: hf.Context) -> str:
        await new(ctx)
        await ctx.step(act, "after")
        await ctx.step(act, "new")
        return "done"

    async with stage.open(first, version="1") as runtime:
        run = await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
    performed.clear()
    async with stage.open(second, version="2") as runtime:
        run = await runtime.get(key="k", of=second)
        info = await parked(run, "diverged")
    return info, list(performed)


@pytest.mark.parametrize(
    ("old", "new", "recorded", "asked"),
    [
        (serial, parallel, "0/a#1", "0/gather#1"),
        (parallel, serial, "0/gather#1", "0/a#1"),
        (parallel, swapped, "0/gather#1.1/a#1", "0/gather#1.1/b#1"),
        (parallel, one_more, "0/act#1", "0/gather#1.3/c#1"),
        (parallel, one_less, "0/gather#1.2/b#1", "without that branch"),
        (parallel, longer, "0/act#1", "0/gather#1.2/c#1"),
        (longer, parallel, "0/gather#1.2/c#1", "the end of branch"),
        (nested, parallel, "0/gather#1.2/gather#1", "0/gather#1.2/b#1"),
        (parallel, nested, "0/gather#1.2/b#1", "0/gather#1.2/gather#1"),
        (nested, nested_longer, "0/act#1", "0/gather#1.2/gather#1.2/c#1"),
        (nested_longer, nested, "0/gather#1.2/gather#1.2/c#1", "without that branch"),
        (parallel, nothing, "0/gather#1.1/a#1", "without that branch"),
        (nothing, parallel, "0/act#1", "0/gather#1"),
        (parallel, mapped, "0/gather#1", "0/map#1"),
        (mapped, mapped_otherwise, "0/map#1.1/act#1", "another input"),
        (mapped, mapped_less, "0/map#1.2/act#1", "without that branch"),
        (mapped, mapped_more, "0/act#1", "0/map#1.3/act#1"),
        (mapped, keyed, "0/map#1.1/act#1", "without that branch"),
        (keyed, keyed_less, "0/map#1.=x/act#1", "without that branch"),
        (keyed, keyed_more, "0/act#1", "0/map#1.=z/act#1"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_a_changed_set_of_branches_is_refused_before_any_new_effect(
    stage: Stage, old: Code, new: Code, recorded: str, asked: str
) -> None:
    """Whatever was turned, added, taken away or moved: recorded stands against asked, and nothing is performed."""
    info, done = await resumed_by(stage, old, new)
    assert recorded in info.reason.partition(" but ")[0], info.reason
    assert asked in info.reason.partition(" but ")[2], info.reason
    assert done == []


async def test_a_branch_taken_away_is_refused_before_its_neighbours_act(stage: Stage) -> None:
    """The set itself is under way: the branches that are left would go on with fresh steps."""
    hurdle = Hurdle()

    async def two(ctx: hf.Context, others: int) -> None:
        async def long() -> None:
            await ctx.step(a)
            await ctx.step(hurdle)

        await ctx.gather(long(), *(ctx.step(b) for _ in range(others)))

    @hf.durable(name="tale")
    async def first(ctx: hf.Context) -> None:
        await two(ctx, 1)

    @hf.durable(name="tale")
    async def second(ctx: hf.Context) -> None:
        await two(ctx, 0)

    async with stage.open(first, version="1") as runtime:
        run = await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
        await seen(run, lambda entry: isinstance(entry, events.StepCompleted) and entry.step == "0/gather#1.2/b#1")
    hurdle.reached.clear()
    async with stage.open(second, version="2") as runtime:
        info = await parked(await runtime.get(key="k", of=second), "diverged")
    assert "0/gather#1.2/b#1" in info.reason
    assert not hurdle.reached.is_set()


async def test_a_step_turned_child_and_a_child_turned_step_are_refused(stage: Stage) -> None:
    """Key and input are the same, but what was recorded is no answer to what is asked."""
    hurdle = Hurdle()

    @hf.durable(name="pay")
    async def pay(ctx: hf.Context, cents: int) -> str:
        return await ctx.step(act, f"child paid {cents}")

    @hf.step(name="pay")
    async def pay_step(cents: int) -> str:
        performed.append(f"step paid {cents}")
        return "by step"

    @hf.durable(name="tale")
    async def by_step(ctx: hf.Context) -> str:
        paid = await ctx.step(pay_step, 5)
        await ctx.step(hurdle)
        return paid

    @hf.durable(name="tale")
    async def by_child(ctx: hf.Context) -> str:
        paid = await ctx.run(pay, 5)
        await ctx.step(hurdle)
        return paid

    for key, old, new in (("s", by_step, by_child), ("c", by_child, by_step)):
        performed.clear()
        hurdle.reached.clear()
        async with stage.open(old, pay, version=f"{key}1") as runtime:
            await runtime.start(old, key=key)
            await soon(hurdle.reached.wait())
        before = list(performed)
        async with stage.open(new, pay, version=f"{key}2") as runtime:
            info = await parked(await runtime.get(key=key, of=new), "diverged")
        assert "0/pay#1" in info.reason
        assert performed == before


async def test_a_time_turned_step_is_refused(stage: Stage) -> None:
    """What has no input must not be taken for the result of something that has one."""
    hurdle = Hurdle()

    async def now() -> int:
        performed.append("now")
        return 1

    @hf.durable(name="tale")
    async def first(ctx: hf.Context) -> None:
        ctx.now()
        await ctx.step(a)
        await ctx.step(hurdle)

    @hf.durable(name="tale")
    async def second(ctx: hf.Context) -> None:
        await ctx.step(now)
        await ctx.step(a)
        await ctx.step(hurdle)

    async with stage.open(first, version="1") as runtime:
        await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
    async with stage.open(second, version="2") as runtime:
        info = await parked(await runtime.get(key="k", of=second), "diverged")
    assert "'0/now#1' as a value but the code asked for it as a step" in info.reason
    assert performed == ["a"]


async def test_code_that_fails_before_its_last_record_is_refused_and_not_failed(stage: Stage) -> None:
    """A slip in new code must not end a run for good: where it raised, the run once went on."""
    hurdle, slip = Hurdle(), [False]

    @hf.durable(name="tale")
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(a)
        if slip[0]:
            raise TypeError("a slip of the new release")
        await ctx.step(b)
        await ctx.step(hurdle)
        return "done"

    async with stage.open(tale, version="1") as runtime:
        await runtime.start(tale, key="k")
        await soon(hurdle.reached.wait())
    slip[0] = True
    async with stage.open(tale, version="2") as runtime:
        info = await parked(await runtime.get(key="k", of=tale), "diverged")
        assert "0/b#1" in info.reason
        assert "a slip of the new release" in info.reason
    slip[0] = False
    hurdle.open.set()
    async with stage.open(tale, version="3") as runtime:
        assert await (await runtime.get(key="k", of=tale)).result(timeout=20) == "done"
    assert performed == ["a", "b"]


# Saying what is done about old runs


@pytest.mark.parametrize("where", ["root", "branch"])
async def test_patched_keeps_the_old_path_for_runs_that_had_passed_and_gives_others_the_new_one(
    stage: Stage, where: str
) -> None:
    """An old run replays the old path and a young one takes the new; both hold on every later replay."""
    hurdle = Hurdle()

    async def old_part(ctx: hf.Context) -> str:
        return await ctx.step(a)

    async def new_part(ctx: hf.Context) -> str:
        return await (ctx.step(b) if ctx.patched("b for a") else ctx.step(a))

    def tale_of(part: Callable[[hf.Context], Awaitable[str]]) -> Any:
        async def tale(ctx: hf.Context) -> str:
            said = await part(ctx) if where == "root" else (await ctx.gather(part(ctx)))[0]
            await ctx.step(hurdle)
            return said + await ctx.step(c)

        return hf.durable(name="tale")(tale)

    old, new = tale_of(old_part), tale_of(new_part)
    async with stage.open(old, version="1") as runtime:
        await runtime.start(old, key="old")
        await soon(hurdle.reached.wait())
    hurdle.reached.clear()
    async with stage.open(new, version="2") as runtime:
        await runtime.start(new, key="young")
        await soon(hurdle.reached.wait())
        await seen(await runtime.get(key="young", of=new), lambda entry: isinstance(entry, events.ValueTaken))
    hurdle.open.set()
    async with stage.open(new, version="2") as runtime:
        assert await (await runtime.get(key="old", of=new)).result(timeout=20) == "ac"
        assert await (await runtime.get(key="young", of=new)).result(timeout=20) == "bc"
        assert "ValueTaken" not in await kinds_of(await runtime.get(key="old", of=new))
    assert sorted(performed) == ["a", "b", "c", "c"]


async def test_patched_in_a_loop_changes_over_once_and_replays_so(stage: Stage) -> None:
    """Rounds that were recorded keep the old path, the others take the new one, on every replay alike."""
    hurdles = [Hurdle(), Hurdle()]

    def tale_of(patched: bool, hurdle: Hurdle, at: int) -> Any:
        async def tale(ctx: hf.Context) -> list[str]:
            said = []
            for place in range(4):
                if place == at:
                    await ctx.step(hurdle, key=f"hurdle {at}") if place == 2 else None
                said.append(await (ctx.step(b) if patched and ctx.patched("p") else ctx.step(a)))
            return said

        return hf.durable(name="tale")(tale)

    old, new = tale_of(False, hurdles[0], 2), tale_of(True, hurdles[0], 2)
    async with stage.open(old, version="1") as runtime:
        await runtime.start(old, key="k")
        await soon(hurdles[0].reached.wait())
    hurdles[0].open.set()
    async with stage.open(new, version="2") as runtime:
        run = await runtime.get(key="k", of=new)
        assert await run.result(timeout=20) == ["a", "a", "b", "b"]
        taken = [entry.step for entry in await entries_of(run) if isinstance(entry, events.ValueTaken)]
    assert taken == ["0/patched%20p#1", "0/patched%20p#2"]


async def test_a_kept_result_counts_though_the_input_changed(stage: Stage) -> None:
    """`on_input_change="keep"` is the author's word that the old result will do; without it the run is refused."""
    hurdle = Hurdle()

    def tale_of(item: str, policy: Any) -> Any:
        async def tale(ctx: hf.Context) -> list[str]:
            said = await ctx.map(act, [item], on_input_change=policy)
            said.append(await ctx.step(act, item, on_input_change=policy))
            await ctx.step(hurdle)
            return said

        return hf.durable(name="tale")(tale)

    first, strict, kept = tale_of("x", "refuse"), tale_of("y", "refuse"), tale_of("y", "keep")
    async with stage.open(first, version="1") as runtime:
        await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(strict, version="2") as runtime:
        assert "another input" in (await parked(await runtime.get(key="k", of=strict), "diverged")).reason
    async with stage.open(kept, version="3") as runtime:
        assert await (await runtime.get(key="k", of=kept)).result(timeout=20) == ["x", "x"]
    assert performed == ["x", "x"]


async def test_a_renamed_step_goes_by_its_aliases(stage: Stage) -> None:
    """What was recorded under a former name counts, and what follows is recorded under the new one."""
    hurdle = Hurdle()

    @hf.step(aliases=["act"])
    async def do(item: str) -> str:
        performed.append(f"do {item}")
        return item

    @hf.durable(name="tale")
    async def first(ctx: hf.Context) -> list[str]:
        await ctx.step(act, "x")
        await ctx.step(act, "y")
        await ctx.step(hurdle)
        return []

    @hf.durable(name="tale")
    async def second(ctx: hf.Context) -> list[str]:
        said = [await ctx.step(do, "x"), await ctx.step(do, "y")]
        await ctx.step(hurdle)
        return [*said, await ctx.step(do, "z")]

    async with stage.open(first, version="1") as runtime:
        await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(second, version="2") as runtime:
        run = await runtime.get(key="k", of=second)
        assert await run.result(timeout=20) == ["x", "y", "z"]
        steps = [entry.step for entry in await entries_of(run) if isinstance(entry, events.StepCompleted)]
    assert steps == ["0/act#1", "0/act#2", "0/Hurdle#1", "0/do#3"]
    assert performed == ["x", "y", "do z"]


@pytest.mark.parametrize("effect", ["keyed", "once"])
async def test_a_step_renamed_under_way_is_still_the_same_step(stage: Stage, effect: Any) -> None:
    """Its intent stands under the former name: the request is sent with the same key, and doubt names the same step."""
    reached, keys = asyncio.Event(), list[str]()
    stuck = asyncio.Event()

    async def pay(step: hf.Step[None]) -> str:
        keys.append(step.idempotency_key)
        reached.set()
        if not stuck.is_set():
            stuck.set()
            await asyncio.Event().wait()
        return "paid"

    @hf.step(aliases=["pay"])
    async def pay_out(step: hf.Step[None]) -> str:
        keys.append(step.idempotency_key)
        return "paid"

    @hf.durable(name="tale")
    async def first(ctx: hf.Context) -> str:
        return await ctx.step(pay, effect=effect)

    @hf.durable(name="tale")
    async def second(ctx: hf.Context) -> str:
        try:
            return await ctx.step(pay_out, effect=effect)
        except hf.InDoubt as doubt:
            return doubt.step
        finally:
            await ctx.step(c)

    async with stage.open(first, version="1") as runtime:
        run = await runtime.start(first, key="k")
        await soon(reached.wait())
    async with stage.open(second, version="2") as runtime:
        run = await runtime.get(key="k", of=second)
        assert await run.result(timeout=20) == ("paid" if effect == "keyed" else "0/pay#1")
        steps = {entry.step for entry in await entries_of(run) if hasattr(entry, "step")}
        assert steps == {"0/pay#1", "0/c#1"}
        assert [finding async for finding in runtime.client.verify()] == []
    assert len(set(keys)) == 1


async def test_a_renamed_durable_function_takes_its_old_runs_and_its_old_children(stage: Stage) -> None:
    """Runs started under a former name are driven, and a parent that spawned it under that name goes on."""
    hurdle = Hurdle()

    @hf.durable
    async def old_child(ctx: hf.Context) -> str:
        return await ctx.step(a)

    @hf.durable(name="new_child", aliases=["old_child"])
    async def new_child(ctx: hf.Context) -> str:
        return await ctx.step(a)

    def tale_of(child: Any) -> Any:
        async def tale(ctx: hf.Context) -> list[str]:
            first = await ctx.run(child)
            await ctx.step(hurdle)
            return [first, await ctx.run(child)]

        return tale

    first = hf.durable(name="tale")(tale_of(old_child))
    second = hf.durable(name="story", aliases=["tale"])(tale_of(new_child))
    async with stage.open(first, old_child, version="1") as runtime:
        await runtime.start(first, key="k")
        await soon(hurdle.reached.wait())
    hurdle.open.set()
    async with stage.open(second, new_child, version="2") as runtime:
        run = await runtime.get(key="k", of=second)
        assert await run.result(timeout=20) == ["a", "a"]
        spawned = [entry.step for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)]
    assert spawned == ["0/old_child#1", "0/new_child#2"]
    assert performed == ["a", "a"]
