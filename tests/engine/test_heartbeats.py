"""A long step that owes a sign of life is given up when it gives none."""

import asyncio
import threading
import time

import pytest

import holdfast as hf
from holdfast import events
from tests.engine.stage import Stage, entries_of


async def test_a_step_that_beats_may_take_longer_than_its_heartbeat(stage: Stage) -> None:
    """Each sign of life begins the time anew; what is emitted is one, too."""

    async def long(step: hf.Step[None]) -> int:
        step.emit("begun")
        began = time.monotonic()
        while time.monotonic() < began + 2.2:
            await asyncio.sleep(0)
            step.beat()
        return 6

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.step(long, heartbeat=1.0)

    async with stage.open(tale) as runtime:
        assert await runtime.run(tale) == 6


@pytest.mark.parametrize("plain", [False, True], ids=["async", "in a thread"])
async def test_a_step_without_a_sign_of_life_fails(stage: Stage, plain: bool) -> None:
    """It fails as by a timeout, and is tried again where that was declared."""
    attempts: list[int] = []
    never = threading.Event()

    async def hang(step: hf.Step[None]) -> str:
        attempts.append(step.attempt)
        if step.attempt == 1:
            await asyncio.Event().wait()
        return "woke"

    def hang_in_thread(step: hf.Step[None]) -> str:
        attempts.append(step.attempt)
        if step.attempt == 1:
            never.wait(20)
        return "woke"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(hang_in_thread if plain else hang, heartbeat=0.1, retry=hf.Retry(first=0.0))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        assert await run.result(timeout=20) == "woke"
        never.set()
        [failed] = [entry for entry in await entries_of(run) if isinstance(entry, events.StepFailed)]
    assert failed.error.message == "no sign of life for 0.1 s"
    assert attempts == [1, 2]


async def test_a_once_step_without_a_sign_of_life_is_in_doubt(stage: Stage) -> None:
    """Nobody knows what it did before it fell silent."""

    async def pay(step: hf.Step[None]) -> str:
        await asyncio.Event().wait()
        return "paid"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            return await ctx.step(pay, effect="once", heartbeat=0.05)
        except hf.InDoubt as doubt:
            return doubt.message

    async with stage.open(tale) as runtime:
        assert "no sign of life" in await runtime.run(tale)


async def test_a_heartbeat_of_a_function_that_cannot_beat_is_refused(stage: Stage) -> None:
    """Otherwise it would always be given up."""

    async def deaf() -> int:
        return 1

    @hf.durable
    async def tale(ctx: hf.Context) -> int:
        return await ctx.step(deaf, heartbeat=1.0)

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="heartbeat= is for a function that can beat"):
            await runtime.run(tale)
