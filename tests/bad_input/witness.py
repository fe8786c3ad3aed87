"""A runtime in which other runs are under way while one of them is given something bad."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.runtime import open_store
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store

BOUND_SECONDS: Final = 20.0
"""No wait of these tests may be longer; none comes near it."""


@asynccontextmanager
async def witnessed(address: str, app: hf.App | None = None) -> AsyncIterator[hf.Runtime]:
    """Open a runtime with one run half done; whatever the test does, that run and a later one must complete.

    Nothing may end in a task that nobody looks at either: the loop's complaints are failures.
    """
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(repr(context)))
    gate = asyncio.Event()

    async def pass_gate(number: int) -> int:
        await gate.wait()
        return number

    @hf.durable(name="bystander")
    async def bystander(ctx: hf.Context, number: int) -> int:
        return await ctx.step(pass_gate, number)

    try:
        async with asyncio.timeout(3 * BOUND_SECONDS), hf.open(address, app) as runtime:
            before = await runtime.start(bystander, 1)
            yield runtime
            gate.set()
            after = await runtime.start(bystander, 2)
            assert await before.result(timeout=BOUND_SECONDS) == 1
            assert await after.result(timeout=BOUND_SECONDS) == 2
    finally:
        loop.set_exception_handler(None)
    assert not complaints


async def failure(run: hf.Run[Any]) -> hf.RunError:
    """Return how a run failed, which it must do by itself and in bounded time."""
    with pytest.raises(hf.RunError) as caught:
        await run.result(timeout=BOUND_SECONDS)
    assert caught.value.status == hf.Status.FAILED
    return caught.value


def openings(address: str) -> Callable[[], Awaitable[Store]]:
    """Return how to open the store at `address` again and again; one in memory is kept."""
    kept = MemoryStore()

    async def open_again() -> Store:
        return kept if address.startswith("memory") else await open_store(address)

    return open_again
