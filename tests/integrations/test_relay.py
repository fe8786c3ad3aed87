"""A loop that starts tasks of its own takes steps of a run: in one order, in its own tasks, and to the end."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

import holdfast as hf
from holdfast.integrations.relay import Abandoned, Relay, current_relay, current_step, durably
from holdfast.testing import every_crash

LIMIT_SECONDS = 20.0
HERE: ContextVar[str] = ContextVar("HERE", default="nowhere")


def relay() -> Relay:
    """Return the relay of the run that this is part of."""
    found = current_relay()
    assert found is not None
    return found


async def played(function: hf.Durable[Any, []]) -> tuple[Any, list[hf.Event]]:
    """Return what a run of a function returns, and its events."""
    async with hf.testing.open(app=hf.App(function)) as runtime:
        run = await runtime.start(function)
        result = await run.result(timeout=LIMIT_SECONDS)
        return result, [event async for event in run.events(follow=False)]


async def test_a_step_is_performed_in_the_task_that_asked_for_it() -> None:
    """It sees the context variables of that task, and its own step; outside of it there is none."""

    async def perform(step: hf.Step[Any]) -> list[Any]:
        assert current_step() is step
        return [HERE.get(), current_relay() is None]

    async def ask(place: str) -> Any:
        HERE.set(place)
        return await relay().step("look", perform)

    async def loop() -> list[Any]:
        return [await asyncio.create_task(ask("one")), await asyncio.create_task(ask("two"))]

    @hf.durable
    async def both(ctx: hf.Context) -> list[Any]:
        return await durably(ctx, loop())

    result, _ = await played(both)
    assert result == [["one", True], ["two", True]]
    with pytest.raises(LookupError, match="there is no step here"):
        current_step()


async def test_calls_that_were_announced_have_branches_and_all_others_wait_for_each_other() -> None:
    """Whatever order tasks come in, a place has its own records; one that nobody makes hinders nobody."""

    async def perform(step: hf.Step[Any]) -> int:
        await asyncio.sleep(0)
        return step.attempt

    async def loop() -> list[Any]:
        found = relay()
        found.expect(["a", "b", "never", "a"])
        beside = asyncio.gather(*(found.step("call", perform, place=place) for place in ("b", "a", "elsewhere")))
        first = await beside
        return [*first, await found.step("call", perform, place="b"), await found.step("last", perform)]

    @hf.durable
    async def many(ctx: hf.Context) -> list[Any]:
        return await durably(ctx, loop())

    survived = await every_crash(many)
    assert survived.unbroken.result == [1, 1, 1, 1, 1]
    assert sorted(survived.unbroken.performed) == [
        "0/call#1", "0/gather#1.1/call#1", "0/gather#1.2/call#1", "0/gather#2.2/call#1", "0/last#1",
    ]  # fmt: skip


async def test_a_call_that_its_framework_gives_up_is_in_doubt_or_has_failed() -> None:
    """What was under way was cut off: of a payment nobody knows how far it came, and the loop goes on."""

    async def loop() -> list[str]:
        found, said = relay(), []
        for effect in ("once", "repeat"):
            began = asyncio.Event()

            async def hang(step: hf.Step[Any], began: asyncio.Event = began) -> None:
                began.set()
                await asyncio.Event().wait()

            asking = asyncio.create_task(found.step("hang", hang, effect=effect))
            await began.wait()
            asking.cancel()
            said.append(str((await asyncio.gather(asking, return_exceptions=True))[0].__class__.__name__))
        await found.call(_tell)
        return said

    async def _tell(ctx: hf.Context) -> None:
        await ctx.emit("on we go")

    @hf.durable
    async def impatient(ctx: hf.Context) -> list[str]:
        return await durably(ctx, loop())

    result, events = await played(impatient)
    assert result == ["CancelledError", "CancelledError"]
    kinds = [type(event) for event in events]
    assert kinds.index(hf.events.StepDoubted) < kinds.index(hf.events.StepFailed) < kinds.index(hf.events.Emitted)


async def test_a_task_that_asks_when_the_loop_has_ended_is_turned_away() -> None:
    """What a framework leaves behind neither acts nor waits for ever; what was under way comes to its end."""
    began, go = asyncio.Event(), asyncio.Event()
    left: list[asyncio.Task[Any]] = []

    async def slow(step: hf.Step[Any]) -> str:
        began.set()
        await go.wait()
        return "slowly"

    async def never(step: hf.Step[Any]) -> None:
        raise AssertionError("it acted")

    async def late(found: Relay, loop: asyncio.Task[Any]) -> Any:
        await asyncio.wait([loop])
        asking = asyncio.create_task(found.step("late", never))
        await asyncio.sleep(0)
        go.set()
        return await asking

    async def loop() -> str:
        found, own = relay(), asyncio.current_task()
        assert own is not None
        left.append(asyncio.create_task(found.step("slow", slow)))
        await began.wait()
        left.append(asyncio.create_task(late(found, own)))
        return "done"

    @hf.durable
    async def short(ctx: hf.Context) -> str:
        return await durably(ctx, loop())

    result, events = await played(short)
    async with asyncio.timeout(LIMIT_SECONDS):
        slowly, refused = await asyncio.gather(*left, return_exceptions=True)
    assert (result, slowly) == ("done", "slowly")
    assert isinstance(refused, Abandoned)
    assert [event.step for event in events if isinstance(event, hf.events.StepCompleted)] == ["0/slow#1"]


async def test_what_the_loop_raises_is_raised() -> None:
    """An error of a framework is the code's own."""

    async def loop() -> None:
        raise KeyError("the framework's own")

    @hf.durable
    async def broken(ctx: hf.Context) -> str:
        try:
            await durably(ctx, loop())
        except KeyError as error:
            return str(error)
        return ""

    assert (await played(broken))[0] == '"the framework\'s own"'
