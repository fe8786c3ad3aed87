"""The places where a value can be given to a run, each as a function that gives it there."""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

import holdfast as hf

Place = Callable[[hf.Runtime, Any, Any], Awaitable[hf.Run[Any]]]
"""Starts a run that meets the value; what is annotated there is annotated with the third argument."""


_numbers = count()


def start(runtime: hf.Runtime, function: Callable[..., Awaitable[Any]], *args: Any) -> Awaitable[hf.Run[Any]]:
    """Start a run of `function` as a durable function with a name of its own."""
    return runtime.start(hf.durable(name=f"{function.__name__}-{next(_numbers)}")(function), *args)


def swallow(value: Any) -> bool:
    """Take anything as a step's argument."""
    return True


async def as_input(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Give it to a new run."""

    async def give_back(ctx: hf.Context, value: Any) -> Any:
        return value

    give_back.__annotations__ |= {"value": annotation, "return": annotation}
    return await start(runtime, give_back, value)


async def as_step_argument(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Give it to a step."""

    async def asks(ctx: hf.Context) -> bool:
        return await ctx.step(swallow, value)

    return await start(runtime, asks)


async def as_step_result(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Return it from an async step."""

    async def make() -> Any:
        return value

    return await _returning(runtime, make, annotation)


async def as_plain_step_result(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Return it from a plain step, which has a thread."""
    return await _returning(runtime, lambda: value, annotation)


async def _returning(runtime: hf.Runtime, make: Callable[[], Any], annotation: Any) -> hf.Run[Any]:
    async def asks(ctx: hf.Context) -> Any:
        return await ctx.step(make, key="make", returns=annotation)

    asks.__annotations__["return"] = annotation
    return await start(runtime, asks)


async def as_run_result(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Return it from the durable function."""

    async def gives(ctx: hf.Context) -> Any:
        return value

    gives.__annotations__["return"] = annotation
    return await start(runtime, gives)


async def as_emitted_value(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Emit it."""

    async def emits(ctx: hf.Context) -> bool:
        await ctx.emit(value)
        return True

    return await start(runtime, emits)


async def as_chunk(runtime: hf.Runtime, value: Any, annotation: Any) -> hf.Run[Any]:
    """Send it as a chunk of a step."""

    async def stream(step: hf.Step[None]) -> bool:
        step.emit(value)
        return True

    async def streams(ctx: hf.Context) -> bool:
        return await ctx.step(stream)

    return await start(runtime, streams)


EVERY: Final[dict[str, Place]] = {
    "run input": as_input,
    "step argument": as_step_argument,
    "step result": as_step_result,
    "plain step result": as_plain_step_result,
    "run result": as_run_result,
    "emitted value": as_emitted_value,
    "chunk": as_chunk,
}
RESULTS: Final = ("run input", "step result", "plain step result", "run result", "emitted value")
"""Where a value must come back as it was."""
ANNOTATED: Final = ("run input", "step result", "plain step result", "run result")
