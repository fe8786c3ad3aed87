"""What is not data is refused where it is given, by name; what is data comes back exactly."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.errors import InvalidInput
from tests.bad_input import places, values
from tests.bad_input.witness import BOUND_SECONDS, failure, openings, witnessed


async def refusal(runtime: hf.Runtime, place: str, value: Any) -> str:
    """Give `value` at `place` and return the words of its refusal."""
    if place == "run input":
        with pytest.raises(InvalidInput) as caught:
            await places.EVERY[place](runtime, value, Any)
        return str(caught.value)
    return (await failure(await places.EVERY[place](runtime, value, Any))).reason


@pytest.mark.parametrize("place", places.EVERY)
async def test_what_is_not_data_is_refused_wherever_it_is_given(address: str, place: str) -> None:
    """A value that cannot be stored exactly is a typed error that says what is wrong, and spoils no other run."""
    async with witnessed(address) as runtime:
        for name, (make, words) in values.NOT_DATA.items():
            said = await refusal(runtime, place, make())
            assert words in said, name


@pytest.mark.parametrize("place", places.RESULTS)
async def test_a_value_that_would_come_back_as_another_is_refused(address: str, place: str) -> None:
    """Live equals replayed: what a replay would read differently is an error the first time."""
    async with witnessed(address) as runtime:
        for name, make in values.NEEDS_ANNOTATION.items():
            said = await refusal(runtime, place, make())
            assert "would be read back as" in said, name
            assert "annotate" in said, name


@pytest.mark.parametrize("place", places.EVERY)
async def test_a_handle_of_the_process_is_refused_with_the_way_out(address: str, place: str) -> None:
    """A socket, a loop or a file among the values is an error that says where such things belong."""
    async with witnessed(address) as runtime:
        with values.handles() as handles:
            for name, handle in handles.items():
                assert "is not data" in await refusal(runtime, place, handle), name
                with pytest.raises(InvalidInput) as caught:
                    await places.as_input(runtime, handle, Any)
                assert "App(deps=)" in caught.value.hint


@pytest.mark.parametrize("place", places.ANNOTATED)
async def test_data_comes_back_exactly(address: str, place: str) -> None:
    """Numbers, text and typed values are stored byte for byte: nothing is rounded, cut or normalised."""
    async with witnessed(address) as runtime:
        for name, (value, annotation) in values.EXACT.items():
            run = await places.EVERY[place](runtime, value, annotation)
            back = await run.result(timeout=BOUND_SECONDS)
            assert (type(back), back, repr(back)) == (type(value), value, repr(value)), name


def giving(value: Any) -> Callable[[], Any]:
    """Return a function that returns `value`."""
    return lambda: value


async def test_a_replay_sees_exactly_what_the_first_execution_saw(address: str) -> None:
    """Live equals replayed, for every kind of value that a step may return."""
    seen: list[list[str]] = []
    parted = asyncio.Event()

    async def part() -> None:
        parted.set()
        await asyncio.get_running_loop().create_future()

    @hf.durable(name="replayed")
    async def replayed(ctx: hf.Context) -> None:
        made = [
            await ctx.step(giving(value), key=name, returns=annotation)
            for name, (value, annotation) in values.EXACT.items()
        ]
        seen.append([repr((type(value), value)) for value in made])
        if len(seen) == 1:
            await ctx.step(part, effect="keyed")

    opened = openings(address)
    async with asyncio.timeout(BOUND_SECONDS):
        async with hf.open(await opened(), hf.App(replayed)) as runtime:
            run = await runtime.start(replayed, key="replayed")
            await parted.wait()
        async with hf.open(await opened(), hf.App(replayed)) as runtime:
            run = await runtime.get(key="replayed")
            with pytest.raises(hf.RunError, match="asked for the end of the run"):
                await run.result(timeout=BOUND_SECONDS)
    assert seen[0] == seen[1]
    assert seen[0] == [repr((type(value), value)) for value, _ in values.EXACT.values()]


async def test_a_step_that_returns_a_coroutine_gives_what_it_returns(address: str) -> None:
    """A plain function that hands back a coroutine is awaited, as its caller meant."""

    async def answer() -> int:
        return 42

    def ask() -> Any:
        return answer()

    @hf.durable
    async def asks(ctx: hf.Context) -> int:
        number: int = await ctx.step(ask)
        return number

    async with witnessed(address) as runtime:
        assert await (await runtime.start(asks)).result(timeout=BOUND_SECONDS) == 42


async def test_an_async_step_that_returns_a_coroutine_is_refused(address: str) -> None:
    """A forgotten `await` is named as what it is, instead of storing an object."""
    left = asyncio.sleep(0)

    async def forgets() -> Any:
        return left

    @hf.durable
    async def asks(ctx: hf.Context) -> Any:
        return await ctx.step(forgets)

    try:
        async with witnessed(address) as runtime:
            assert "coroutine is not data" in (await failure(await runtime.start(asks))).reason
    finally:
        left.close()


async def test_a_plain_step_runs_where_it_may_start_a_loop_of_its_own(address: str) -> None:
    """A plain step has a thread: `asyncio.run` works in it, and a future of another loop is a failure, not a hang."""

    async def seven() -> int:
        return 7

    def own_loop() -> int:
        return asyncio.run(seven())

    foreign = asyncio.new_event_loop()

    async def awaits_foreign() -> None:
        await foreign.create_future()

    @hf.durable(name="own")
    async def own(ctx: hf.Context) -> int:
        return await ctx.step(own_loop)

    @hf.durable(name="other")
    async def other(ctx: hf.Context) -> None:
        await ctx.step(awaits_foreign)

    try:
        async with witnessed(address) as runtime:
            assert await (await runtime.start(own)).result(timeout=BOUND_SECONDS) == 7
            assert "attached to a different loop" in (await failure(await runtime.start(other))).reason
    finally:
        foreign.close()
