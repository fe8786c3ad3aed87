"""A loop without an end goes on from the top, and forgets what it recorded."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast as hf
from holdfast import events
from holdfast.store.memory import MemoryStore
from tests.engine.stage import Hurdle, Stage, entries_of, kinds_of, soon


async def act(item: int) -> int:
    return item


async def test_every_generation_has_its_own_step_keys_and_idempotency_keys(stage: Stage) -> None:
    """No key comes again, whether for a step, a branch, a request, an id or chance."""
    sent: list[str] = []

    async def send(step: hf.Step[None], drawn: float) -> str:
        sent.append(step.idempotency_key)
        return step.idempotency_key

    @hf.durable
    async def loop(ctx: hf.Context, left: int, drawn: list[str]) -> list[str]:
        drawn = [*drawn, str(ctx.uuid()), str(ctx.random.random())]
        await ctx.step(send, 1.0, effect="keyed")
        await ctx.map(act, [left])
        if left:
            await ctx.continue_as(left - 1, drawn)
        return drawn

    async with stage.open(loop) as runtime:
        run = await runtime.start(loop, 2, [])
        drawn = await run.result(timeout=20)
        steps = [entry.step for entry in await entries_of(run) if isinstance(entry, events.StepCompleted)]
    assert len(set(drawn)) == 6
    assert len(set(sent)) == 3
    assert steps == [
        "0/send#1", "0/map#1.1/act#1", "1/send#1", "1/map#1.1/act#1", "2/send#1", "2/map#1.1/act#1",
    ]  # fmt: skip


async def test_what_a_former_generation_recorded_is_not_asked_for(stage: Stage) -> None:
    """A resume begins with the last input; steps and branches of the past are neither performed nor missed."""
    performed: list[int] = []
    hurdle = Hurdle()

    async def note(item: int) -> int:
        performed.append(item)
        return item

    @hf.durable
    async def loop(ctx: hf.Context, at: int, big: str) -> str:
        if at < 2:
            await ctx.gather(*(ctx.step(note, at) for _ in range(at + 1)))
            await ctx.continue_as(at + 1, "x" * 70_000)
        await ctx.step(hurdle)
        return f"{at} {len(big)}"

    async with stage.open(loop) as runtime:
        run = await runtime.start(loop, 0, "")
        await soon(hurdle.reached.wait())
    assert performed == [0, 1, 1]
    hurdle.open.set()
    async with stage.open(loop) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "2 70000"
    assert performed == [0, 1, 1]


@pytest.mark.parametrize("args", [(), (1, 2), ("text",), (object(),)], ids=["few", "many", "wrong", "no data"])
async def test_arguments_that_the_function_does_not_take_are_refused_where_they_are_given(
    stage: Stage, args: tuple[Any, ...]
) -> None:
    """It is the code's own error, which it may catch, and no fault of the worker's."""

    @hf.durable
    async def loop(ctx: hf.Context, left: int) -> str:
        try:
            await ctx.continue_as(*args)
        except hf.HoldfastError as error:
            return error.code

    async with stage.open(loop) as runtime:
        assert await soon(runtime.run(loop, 1)) in ("invalid_input", "invalid_value")


async def test_a_step_on_the_way_out_belongs_to_the_generation_that_ends(stage: Stage) -> None:
    """A `finally` block that was recorded before the run died is asked for again, and not missed."""
    performed: list[int] = []

    class Dying(MemoryStore):
        """A store whose worker is declared dead instead of beginning another generation."""

        armed = True

        def commit(self, lease: Any, change: Any) -> Any:
            if self.armed and any(entry.kind == "RunContinued" for entry in change.entries):
                self.armed = False
                self._workers.clear()
                self._rows[lease.row.run] = replace(self._rows[lease.row.run], owner=None)
            return super().commit(lease, change)

    async def note(item: int) -> int:
        performed.append(item)
        return item

    @hf.durable
    async def loop(ctx: hf.Context, left: int) -> str:
        try:
            if left:
                await ctx.continue_as(left - 1)
        finally:
            await ctx.step(note, left)
        return "done"

    store = Dying()
    async with hf.open(store, hf.App(loop)) as runtime:
        run = await runtime.start(loop, 1)
        assert await run.result(timeout=20) == "done"
        kinds = await kinds_of(run)
    assert not store.armed
    assert performed == [1, 0]
    assert kinds == ["RunStarted", "StepCompleted", "RunResumed", "RunContinued", "StepCompleted", "RunFinished"]


async def test_a_child_of_a_former_generation_ends_with_the_run(stage: Stage) -> None:
    """Its handle is forgotten, but the run still has it."""
    hurdle = Hurdle()

    @hf.durable
    async def child(ctx: hf.Context) -> None:
        await ctx.step(hurdle)

    @hf.durable
    async def loop(ctx: hf.Context, left: int) -> str:
        if left:
            await ctx.spawn(child)
            await ctx.continue_as(left - 1)
        await hurdle.reached.wait()
        return "done"

    async with stage.open(loop, child) as runtime:
        run = await runtime.start(loop, 1)
        assert await run.result(timeout=20) == "done"
        (spawned,) = [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)]
        with pytest.raises(hf.RunError, match="cancelled"):
            await (await runtime.get(spawned.child)).result(timeout=20)


async def test_continue_as_in_a_branch_is_refused(stage: Stage) -> None:
    """Only the run as a whole goes on anew."""

    @hf.durable
    async def loop(ctx: hf.Context, left: int) -> str:
        try:
            await ctx.gather(ctx.continue_as(left - 1))
        except hf.HoldfastError as error:
            return error.code
        return "never"

    async with stage.open(loop) as runtime:
        assert await soon(runtime.run(loop, 1)) == "misuse"


async def test_a_journal_of_a_thousand_generations_resumes(stage: Stage) -> None:
    """A run that went on so often is read, checked and goes on once more."""
    hurdle = Hurdle()

    @hf.durable
    async def loop(ctx: hf.Context, at: int) -> int:
        if at == 1000:
            await ctx.step(hurdle)
            return at
        await ctx.step(act, at)
        await ctx.continue_as(at + 1)

    async with stage.open(loop) as runtime:
        run = await runtime.start(loop, 0)
        async with asyncio.timeout(120):
            await hurdle.reached.wait()
    hurdle.open.set()
    async with stage.open(loop) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=60) == 1000
