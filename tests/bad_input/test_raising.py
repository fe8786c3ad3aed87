"""Whatever user code raises, its run ends or rests under a name, and the worker goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged, StoreUnavailable
from tests.bad_input.witness import BOUND_SECONDS, failure, openings, witnessed


class Unprintable(Exception):
    """Has no message that can be had."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class NotText(Exception):
    """Says something that is not text."""

    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class Apart(BaseException):
    """No Exception at all."""


class Coded(hf.ToolError):
    """Has a code that is not text."""

    code = 42  # type: ignore[assignment]


def recurse() -> int:
    """Never come to an end."""
    return recurse() + 1


def raising(error: BaseException) -> Callable[[], int]:
    """Return a function that raises `error`."""

    def raises() -> int:
        raise error

    return raises


RAISING: Final[dict[str, tuple[Callable[[], int], str]]] = {
    "an exception": (raising(ValueError("why")), "ValueError: why"),
    "an empty exception": (raising(ValueError()), "ValueError"),
    "an unprintable one": (raising(Unprintable()), "Unprintable: (the error has no readable message)"),
    "one whose text is a number": (raising(NotText()), "NotText: (the error has no readable message)"),
    "a message of ten megabytes": (raising(ValueError("x" * 10_000_000)), "ValueError: xxx"),
    "a message with a lone surrogate": (raising(ValueError("a\ud800b")), "ValueError: a?b"),
    "a message with a NUL": (raising(ValueError("a\x00b")), "ValueError: a\x00b"),
    "arguments that are not text": (raising(ValueError(object, b"\xff", None)), "ValueError"),
    "a group": (raising(ExceptionGroup("all", [ValueError(), TypeError()])), "ExceptionGroup: all"),
    "a group of what is no exception": (raising(BaseExceptionGroup("all", [Apart()])), "BaseExceptionGroup: all"),
    "a stop of an iteration": (raising(StopIteration("x")), "StopIteration"),
    "a stop of an async iteration": (raising(StopAsyncIteration("x")), "StopAsyncIteration"),
    "a generator's exit": (raising(GeneratorExit("x")), "GeneratorExit"),
    "an exit": (raising(SystemExit(3)), "SystemExit: 3"),
    "what is no exception": (raising(Apart("far")), "Apart: far"),
    "a cancellation that nobody asked for": (raising(asyncio.CancelledError("x")), "CancelledError"),
    "a timeout": (raising(TimeoutError()), "TimeoutError"),
    "an endless recursion": (recurse, "RecursionError"),
    "a lack of memory": (raising(MemoryError()), "MemoryError"),
    "a broken pipe": (raising(BrokenPipeError(32, "pipe")), "BrokenPipeError"),
    "a code that is not text": (raising(Coded("hm")), "Coded: hm"),
    "our own divergence": (raising(hf.Diverged(seq=1, recorded="a", asked="b")), "Diverged: entry 1"),
    "our own damage": (raising(Damaged(run="r", seq=1, what="w")), "Damaged: run r"),
    "our own failing store": (raising(StoreUnavailable("not this one")), "StoreUnavailable: not this one"),
    "our own run error": (raising(hf.RunError(run="r", status="failed", reason="w")), "RunError: run r"),
}


def in_plain_step(work: Callable[[], int]) -> Any:
    """Return a durable function whose plain step does `work`."""

    @hf.durable(name="plain")
    async def plain(ctx: hf.Context) -> int:
        return await ctx.step(work, key="work")

    return plain


def in_async_step(work: Callable[[], int]) -> Any:
    """Return a durable function whose async step does `work`."""

    async def works() -> int:
        return work()

    @hf.durable(name="async")
    async def asks(ctx: hf.Context) -> int:
        return await ctx.step(works)

    return asks


def in_declared_step(work: Callable[[], int]) -> Any:
    """Return a durable function whose async step has a policy and does `work`."""

    async def works() -> int:
        return work()

    @hf.durable(name="declared")
    async def asks(ctx: hf.Context) -> int:
        return await ctx.step(works, effect="keyed", timeout=BOUND_SECONDS)

    return asks


def in_transaction(work: Callable[[], int]) -> Any:
    """Return a durable function whose transaction step does `work`."""

    def works(transaction: hf.Transaction) -> int:
        return work()

    @hf.durable(name="transaction")
    async def asks(ctx: hf.Context) -> int:
        return await ctx.step(works)

    return asks


def in_the_code(work: Callable[[], int]) -> Any:
    """Return a durable function that does `work` itself."""

    @hf.durable(name="code")
    async def does(ctx: hf.Context) -> int:
        return work()

    return does


STEPS: Final = (in_plain_step, in_async_step, in_declared_step, in_transaction)


@pytest.mark.parametrize("place", [*STEPS, in_the_code])
async def test_whatever_the_code_raises_fails_its_run_and_no_other(address: str, place: Callable[..., Any]) -> None:
    """Every run reaches a named state: no exception of any kind leaves a run stuck or ends the worker.

    And what an error holds never makes its own entry unreadable.
    """
    async with witnessed(address) as runtime:
        for name, (work, words) in RAISING.items():
            durable = place(work)
            durable.name = name
            failed = await failure(await runtime.start(durable))
            assert words.partition(":")[0] in failed.reason, name
            assert words.partition(": ")[2] in failed.reason, name
            assert len(failed.reason) <= 600, name
        assert [finding async for finding in runtime.client.verify()] == []


@pytest.mark.parametrize("place", STEPS)
async def test_an_error_that_the_code_catches_is_caught_again_on_replay(
    address: str, place: Callable[..., Any]
) -> None:
    """A failed step raises the same StepError live and replayed, so the code takes the same way twice."""
    reasons: list[list[str]] = []
    parted = asyncio.Event()

    async def part() -> None:
        parted.set()
        await asyncio.get_running_loop().create_future()

    @hf.durable(name="catches")
    async def catches(ctx: hf.Context) -> list[str]:
        caught: list[str] = []
        reasons.append(caught)
        for name, (work, _) in RAISING.items():
            try:
                await _step_of(place, ctx, work, name)
            except hf.StepError as error:
                caught.append(f"{name}: {error.type}: {error.message} {error.attempts}")
        if len(reasons) == 1:
            await ctx.step(part)
        return caught

    opened = openings(address)
    async with asyncio.timeout(3 * BOUND_SECONDS):
        async with hf.open(await opened(), hf.App(catches)) as runtime:
            await runtime.start(catches, key="k")
            await parted.wait()
        async with hf.open(await opened(), hf.App(catches)) as runtime:
            run: hf.Run[list[str]] = await runtime.get(key="k")
            assert await run.result(timeout=BOUND_SECONDS) == reasons[0]
    assert len(reasons[0]) == len(RAISING)
    assert reasons[0] == reasons[1]


async def _step_of(place: Callable[..., Any], ctx: hf.Context, work: Callable[[], int], name: str) -> None:
    """Ask for the step that `place` asks for, in another run's context."""

    async def works() -> int:
        return work()

    def transacts(transaction: hf.Transaction) -> int:
        return work()

    if place is in_plain_step:
        await ctx.step(work, key=name)
    elif place is in_transaction:
        await ctx.step(transacts, key=name)
    elif place is in_async_step:
        await ctx.step(works)
    else:
        await ctx.step(works, key=name, effect="keyed", timeout=BOUND_SECONDS)


async def test_an_interrupt_in_a_thread_is_a_failure_of_its_step(address: str) -> None:
    """No signal reaches a step's thread, so a KeyboardInterrupt from there is the step's own."""
    for place in (in_plain_step, in_transaction):
        async with witnessed(address) as runtime:
            failed = await failure(await runtime.start(place(raising(KeyboardInterrupt())), key=place.__name__))
            assert "KeyboardInterrupt" in failed.reason


@pytest.mark.parametrize("place", [in_async_step, in_the_code])
def test_an_interrupt_on_the_loop_ends_the_program_and_not_the_run(tmp_path: Path, place: Callable[..., Any]) -> None:
    """Ctrl-C is not an outcome: nothing is recorded, and the run goes on when the program is started again."""
    works: list[Callable[[], int]] = [raising(KeyboardInterrupt()), lambda: 5]
    program = place(lambda: works[0]())
    store = f"sqlite:///{tmp_path}/store.db"
    with pytest.raises(KeyboardInterrupt):
        hf.run(program, key="k", store=store)
    del works[0]
    assert hf.run(program, key="k", store=store) == 5


async def test_a_once_step_that_leaves_by_no_exception_is_in_doubt(address: str) -> None:
    """An exit out of a `once` effect says nothing about whether it happened."""
    errors: dict[str, BaseException] = {"exit": SystemExit(1), "apart": Apart(), "cancel": asyncio.CancelledError()}

    @hf.durable
    async def once(ctx: hf.Context, error: str) -> str:
        try:
            await ctx.step(raising(errors[error]), key="work", effect="once")
        except hf.InDoubt as doubt:
            return f"in doubt: {doubt.message}"
        return "done"

    async with witnessed(address) as runtime:
        for error in errors:
            run = await runtime.start(once, error)
            assert (await run.result(timeout=BOUND_SECONDS)).startswith("in doubt")


async def test_a_step_whose_own_awaited_task_was_cancelled_fails_and_does_not_hang(address: str) -> None:
    """A CancelledError from below is the step's failure; only a cancelled run waits to be cancelled again."""

    async def awaits_a_cancelled_task() -> None:
        task = asyncio.ensure_future(asyncio.get_running_loop().create_future())
        task.cancel()
        await task

    @hf.durable
    async def asks(ctx: hf.Context) -> str:
        try:
            await ctx.step(awaits_a_cancelled_task)
        except hf.StepError as error:
            return error.type
        return "nothing"

    async with witnessed(address) as runtime:
        assert await (await runtime.start(asks)).result(timeout=BOUND_SECONDS) == "CancelledError"


async def test_a_transaction_step_that_raises_was_called_once(address: str) -> None:
    """What a batch does to save its neighbours is not done to a user's function."""
    calls = []

    def works(transaction: hf.Transaction) -> None:
        calls.append(1)
        raise ValueError("once")

    @hf.durable
    async def asks(ctx: hf.Context) -> None:
        await ctx.step(works)

    async with witnessed(address) as runtime:
        await failure(await runtime.start(asks))
    assert len(calls) == 1


@pytest.mark.parametrize("member", ["__str__", "__repr__", "__class__"])
async def test_an_error_that_resists_being_looked_at_is_still_recorded(address: str, member: str) -> None:
    """An object made to raise whenever it is touched cannot take its worker along."""

    def resist(self: object, *rest: object) -> Any:
        raise SystemExit("touched")

    hostile = type("Hostile", (Exception,), {member: property(resist) if member == "__class__" else resist})

    async with witnessed(address) as runtime:
        failed = await failure(await runtime.start(in_async_step(raising(hostile()))))
        assert "Hostile" in failed.reason
