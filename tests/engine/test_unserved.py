"""A run whose code nobody has can still be ended, by any worker."""

import pytest

import holdfast as hf
from holdfast.core.status import Status
from holdfast.store.start import Start
from holdfast.store.value import RunFilter
from tests.engine.stage import Stage, ending_of, hear_cancel_and_die, kinds_of, parked, paused

GO = hf.Signal("go", str)
CANCELLED = (Status.CANCELLED, "cancelled: enough")


@hf.durable
async def receives(ctx: hf.Context) -> str:
    """Wait for a signal."""
    return await ctx.receive(GO)


@hf.durable
async def parent(ctx: hf.Context) -> str:
    """Wait for a child."""
    try:
        return await ctx.run(receives)
    except hf.RunError as error:
        return str(error.status)


@hf.durable
async def other(ctx: hf.Context) -> None:
    """Do nothing."""


@pytest.mark.parametrize("stands", ["queued", "waiting", "paused"])
async def test_a_run_that_no_worker_serves_is_ended_by_one_that_does_not(every: Stage, stands: str) -> None:
    """Its code is gone for good: whoever asks for its end still gets it."""
    async with every.open(work=False) as runtime:
        run = await runtime.start(receives)
    if stands != "queued":
        async with every.open(receives) as runtime:
            run = await runtime.get(run.id, of=receives)
            await parked(run, "signal")
            if stands == "paused":
                await run.pause()
                await paused(run)
    async with every.open(other) as runtime:
        run = await runtime.get(run.id, of=receives)
        assert await run.cancel("enough")
        assert await ending_of(run) == CANCELLED
        assert (await kinds_of(run))[-2:] == ["CancelReceived", "RunFinished"]


async def test_its_children_are_told_and_its_parent_hears_of_it(every: Stage) -> None:
    """An end without code is an end like any other for the rest of the family."""
    async with every.open(parent, receives) as runtime:
        top = await runtime.start(parent)
        await parked(top, "child")
        (child,) = [row for row in await runtime.runs() if row.parent == top.id]
        lone = await runtime.start(parent)
        await parked(lone, "child")
        (orphan,) = [row for row in await runtime.runs() if row.parent == lone.id]
    async with every.open(parent) as runtime:
        # The child's code is gone: its parent, whose code is there, hears that it was cancelled.
        assert await (await runtime.get(child.id)).cancel("enough")
        assert await (await runtime.get(top.id)).result(timeout=20) == "cancelled"
    async with every.open(receives) as runtime:
        # The parent's code is gone: its child, whose code is there, is told to end.
        assert await (await runtime.get(lone.id)).cancel("enough")
        status, reason = await ending_of(await runtime.get(orphan.id))
        assert (status, reason) == (Status.CANCELLED, f"cancelled: its parent {lone.id} ended")


async def test_an_end_that_a_dead_worker_had_begun_is_finished_without_its_code(every: Stage) -> None:
    """The cancel has become an entry and its post is taken; that nobody serves the run does not leave it there."""

    async with every.open(receives) as runtime:
        run = await runtime.start(receives)
        await parked(run, "signal")
    await hear_cancel_and_die(every, run.id, "receives")
    async with every.open(other) as runtime:
        run = await runtime.get(run.id, of=receives)
        assert await ending_of(run) == CANCELLED
        assert (await kinds_of(run)).count("CancelReceived") == 1


async def test_a_run_that_somebody_serves_is_left_to_them(every: Stage) -> None:
    """Its code may clean up; whoever does not have it looks on."""
    async with every.open(work=False) as runtime:
        run = await runtime.start(receives)
    async with every.open(receives, concurrency=1) as serving, every.open(other) as runtime:
        first = await serving.get(run.id)
        await parked(first, "signal")
        busy = await serving.start(receives)
        await parked(busy, "signal")
        await (await runtime.get(run.id)).cancel("enough")
        assert await ending_of(first) == CANCELLED
        # Only code that was told records that it left its wait.
        assert "StepFailed" in await kinds_of(first)


async def test_a_pause_of_a_run_that_nobody_serves_waits_for_its_code(every: Stage) -> None:
    """Nothing but its end can be had without it: it is not claimed for that, again and again."""
    async with every.open(work=False) as runtime:
        run = await runtime.start(receives)
        await run.pause()
    async with every.open(other) as runtime:
        run = await runtime.get(run.id, of=receives)
        ended = await runtime.start(other)
        await ended.result(timeout=20)
        orphan = await runtime.client.start(Start(name="nobody", input=b"{}"))  # type: ignore[attr-defined]
        await runtime.client.cancel(orphan, reason="enough")
        assert await ending_of(await runtime.get(orphan)) == CANCELLED
        assert (await run.info()).attempt == 0
    async with every.open(receives) as runtime:
        await paused(await runtime.get(run.id))


async def test_only_runs_whose_end_was_asked_for_and_not_seen_are_looked_for(every: Stage) -> None:
    """One bounded question to the store, which names them and nobody else."""
    async with every.open(work=False) as runtime:
        quiet, signalled, paused_one, wanted, of_other = [
            await runtime.start(code) for code in (receives, receives, receives, receives, other)
        ]
        await signalled.signal(GO, "go")
        await paused_one.pause()
        await wanted.cancel()
        await of_other.cancel()
    store = await every.store()
    found = await store.list(RunFilter(unheard=True, posted="cancel", but=["other"]))
    assert [row.run for row in found] == [wanted.id]
    found = await store.list(RunFilter(unheard=True))
    assert [row.run for row in found] == [of_other.id, wanted.id, paused_one.id]
    found = await store.list(RunFilter(posted="cancel", limit=1))
    assert [row.run for row in found] == [of_other.id]
    assert quiet.id not in {row.run for row in found}
    await store.close()
