"""Previews of a step: live while it runs, gone with its entry, never after it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.engine.chunks import Chunks
from holdfast.engine.payload import Secrets
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import a_lease
from tests.engine.stage import Hurdle, Stage, soon


@pytest.fixture
def stage(tmp_path: Path, clock: MovingClock) -> Stage:
    """A store on disk."""
    return Stage(tmp_path / "store.db", clock)


async def watched(run: hf.Run[str]) -> list[str]:
    """Return everything that a live reader sees, in short."""
    told = []
    async for event in run.events():
        told.append(f"chunk {event.value}" if isinstance(event, events.Chunk) else event.type)
    return told


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_a_watcher_sees_a_steps_chunks_before_its_entry(stage: Stage, kind: str) -> None:
    """Numbered over the owner's streams, with offsets in their own, and the step's key and attempt on each."""
    hurdle, in_thread = Hurdle(), threading.Event()

    async def speak(step: hf.Step[None]) -> str:
        for word in ("one", "two", "three"):
            step.emit({"word": word})
        await hurdle()
        return "spoken"

    def speak_plain(step: hf.Step[None]) -> str:
        for word in ("one", "two", "three"):
            step.emit({"word": word})
        in_thread.wait(20)
        return "spoken"

    function: Any = speak if kind == "async" else speak_plain

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(function, name="speak")

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        got = []
        async with asyncio.timeout(20):
            async for event in run.events(after="1"):
                got.append(event)
                if len(got) == 3:
                    break
        assert all(isinstance(event, events.Chunk) for event in got)
        assert [event.value["word"] for event in got if isinstance(event, events.Chunk)] == ["one", "two", "three"]
        assert [event.id for event in got] == ["1:1:1", "1:1:2", "1:1:3"]
        chunk = got[-1]
        assert isinstance(chunk, events.Chunk)
        assert (chunk.step, chunk.attempt, chunk.offset, chunk.fence) == ("0/speak#1", 1, 2, 1)
        hurdle.open.set()
        in_thread.set()
        assert await run.result(timeout=20) == "spoken"
        rest = [event.type async for event in run.events(follow=False)]
    assert rest == ["RunStarted", "StepCompleted", "RunFinished"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_no_chunk_comes_after_its_steps_entry(stage: Stage, kind: str) -> None:
    """A step that emits and returns at once previews nothing that is already there."""
    after = Hurdle()

    async def speak(step: hf.Step[None]) -> str:
        step.emit("last words")
        return "spoken"

    def speak_plain(step: hf.Step[None]) -> str:
        step.emit("last words")
        return "spoken"

    function: Any = speak if kind == "async" else speak_plain

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        said: str = await ctx.step(function, name="speak")
        await ctx.step(after)
        return said

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        watching = asyncio.create_task(watched(run))
        await soon(after.reached.wait())
        assert [event.type async for event in run.events(follow=False)] == ["RunStarted", "StepCompleted"]
        after.open.set()
        told = await soon(watching)
    entry = told.index("StepCompleted")
    assert not any(word.startswith("chunk") for word in told[entry:])


async def test_a_cancelled_steps_thread_previews_nothing_more(stage: Stage) -> None:
    """A thread that nobody waits for any more may finish, but not show up behind its step's entry."""
    goes_on, spoke, after = threading.Event(), threading.Event(), Hurdle()

    def speak(step: hf.Step[None]) -> str:
        goes_on.wait(20)
        step.emit("from the grave")
        spoke.set()
        return "too late"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        try:
            async with asyncio.timeout(0.05):
                return await ctx.step(speak)
        except TimeoutError:
            await ctx.step(after)
            return "went on"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        watching = asyncio.create_task(watched(run))
        await soon(after.reached.wait())
        goes_on.set()
        await asyncio.to_thread(spoke.wait, 20)
        after.open.set()
        told = await soon(watching)
    assert told == ["RunStarted", "StepFailed", "StepCompleted", "RunFinished"]


async def test_a_retried_steps_chunks_do_not_mix_with_the_failed_attempts(stage: Stage) -> None:
    """The failed attempt's preview ends with its entry; the next one begins at offset 0 under its own attempt."""
    hurdle = Hurdle()

    async def speak(step: hf.Step[None]) -> str:
        step.emit(f"attempt {step.attempt}")
        step.emit("more")
        if step.attempt == 1:
            raise ConnectionError("cut")
        await hurdle()
        return "spoken"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(speak, retry=hf.Retry(first=0.0))

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        await soon(hurdle.reached.wait())
        got = []
        async with asyncio.timeout(20):
            async for event in run.events():
                if isinstance(event, events.Chunk) and event.attempt == 2:
                    got.append((event.value, event.offset))
                    if len(got) == 2:
                        break
        left = [event async for event in run.events(follow=False) if isinstance(event, events.Chunk)]
        assert got == [("attempt 2", 0), ("more", 1)]
        assert [chunk.attempt for chunk in left] == [2, 2]
        hurdle.open.set()
        await run.result(timeout=20)


async def test_a_resumed_runs_preview_begins_anew(stage: Stage) -> None:
    """What a dead worker streamed is dropped when its successor takes the run up."""
    hurdle, word = Hurdle(), ["first life"]

    async def speak(step: hf.Step[None]) -> str:
        step.emit(word[0])
        await hurdle()
        return "spoken"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(speak)

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        async with asyncio.timeout(20):
            async for event in run.events(after="1"):
                assert event.id == "1:1:1"
                break
    word[0] = "second life"
    hurdle.reached.clear()
    async with stage.open(tale) as runtime:
        run = await runtime.get(run.id)
        await soon(hurdle.reached.wait())
        got: list[str] = []
        async with asyncio.timeout(20):
            async for event in run.events(after="1:1:1"):
                got.append(f"{event.id} {event.value}" if isinstance(event, events.Chunk) else event.type)
                if got[-1].endswith("life"):
                    break
        hurdle.open.set()
        await run.result(timeout=20)
    assert got == ["preview.reset", "RunResumed", "2:2:1 second life"]


async def test_a_watcher_that_leaves_cancels_nothing(stage: Stage) -> None:
    """A disconnect is not a cancel: the run goes on, and another watcher sees all of it."""
    hurdle = Hurdle()

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        await ctx.step(hurdle)
        return "done"

    async with stage.open(tale) as runtime:
        run = await runtime.start(tale)
        watching = asyncio.create_task(watched(run))
        await soon(hurdle.reached.wait())
        watching.cancel()
        await asyncio.wait([watching], timeout=20)
        hurdle.open.set()
        assert await run.result(timeout=20) == "done"
        assert await soon(watched(run)) == ["RunStarted", "StepCompleted", "RunFinished"]


async def test_what_cannot_be_stored_is_refused_where_it_is_emitted(stage: Stage) -> None:
    """The step that emits it fails, with the reason."""

    async def speak(step: hf.Step[None]) -> str:
        step.emit(object())
        return "never"

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        return await ctx.step(speak)

    async with stage.open(tale) as runtime:
        with pytest.raises(hf.RunError, match="is not data"):
            await soon(runtime.run(tale))


async def test_a_chunk_that_comes_after_its_store_was_closed_is_a_lost_preview(tmp_path: Path) -> None:
    """Whoever was interrupted in the middle of a stream gets no error for what nobody will read."""
    store = await SqliteStore.open(str(tmp_path / "store.db"))
    chunks = Chunks(store, await a_lease(store), Secrets(()), asyncio.get_running_loop())
    await store.close()
    chunks.add("0/s#1", 1, 0, b"1")
