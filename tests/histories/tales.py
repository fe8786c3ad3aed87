"""The code behind the kept journals; it stays as it is, since journals of every release are replayed against it.

A tale that shall be interrupted stops at `hurdle`; what is performed is written down, so that a test can tell.
"""

import asyncio
from dataclasses import dataclass

import holdfast as hf
from holdfast import events
from holdfast.core import limits

performed: list[str] = []
hurdle = asyncio.Event()
stopped: asyncio.Queue[str] = asyncio.Queue()
VERSION = "tales-1"


@dataclass
class Parcel:
    """A value with a type of its own."""

    address: str
    grams: tuple[int, ...]


async def pack(address: str) -> Parcel:
    """A step with a typed result."""
    performed.append(f"pack {address}")
    return Parcel(address, (100, 250))


def weigh(parcel: Parcel) -> int:
    """A plain step."""
    performed.append("weigh")
    return sum(parcel.grams)


async def reserve(step: hf.Step[None], grams: int) -> str:
    """A keyed step; its result holds the key that was sent."""
    performed.append("reserve")
    return step.idempotency_key


def book(tx: hf.Transaction, address: str) -> int:
    """A transaction step."""
    performed.append("book")
    tx.execute("CREATE TABLE IF NOT EXISTS shipments (address TEXT)")
    tx.execute("INSERT INTO shipments VALUES (?)", (address,))
    return len(tx.execute("SELECT 1 FROM shipments"))


async def refuse() -> None:
    """A step that fails."""
    performed.append("refuse")
    raise LookupError("no such street")


async def flaky(step: hf.Step[None]) -> str:
    """A step that fails at first."""
    performed.append("flaky")
    if step.attempt == 1:
        raise ConnectionError("down")
    return f"attempt {step.attempt}"


async def stop() -> str:
    """The place where a journal is cut."""
    performed.append("stop")
    stopped.put_nowait("stop")
    await hurdle.wait()
    return "let through"


async def send(cents: int) -> str:
    """A `once` step that is cut in its middle."""
    performed.append("send")
    stopped.put_nowait("send")
    await hurdle.wait()
    return f"sent {cents}"


async def large(letter: str) -> str:
    """A step whose result is a blob."""
    performed.append("large")
    return letter * (limits.INLINE_BYTES + 1)


@hf.durable
async def ship(ctx: hf.Context, address: str) -> str:
    """Everything a finished run can hold."""
    parcel = await ctx.step(pack, address)
    grams = await ctx.step(weigh, parcel)
    await ctx.emit({"grams": grams}, name="progress")
    key = await ctx.step(reserve, grams, effect="keyed", timeout=30)
    lines = await ctx.step(book, address)
    reason = "not refused"
    try:
        await ctx.step(refuse)
    except hf.StepError as error:
        reason = f"{error.type}: {error.message}"
    tried = await ctx.step(flaky, retry=hf.Retry(attempts=3, first=0.0), key="flaky one")
    stamp = f"{ctx.now():%Y-%m-%d} {ctx.random.random():.12f} {ctx.uuid()}"
    waited = await ctx.step(stop)
    return "; ".join([str(grams), key, str(lines), reason, tried, stamp, waited])


@hf.durable
async def fail(ctx: hf.Context) -> None:
    """A run that fails."""
    await ctx.step(refuse)


@hf.durable
async def transfer(ctx: hf.Context, cents: int) -> str:
    """A run cut in the middle of a `once` step; its code catches the doubt."""
    try:
        return await ctx.step(send, cents, effect="once")
    except hf.InDoubt as doubt:
        return str(doubt)


@hf.durable
async def remit(ctx: hf.Context, cents: int) -> str:
    """A run that waits for a person to end a doubt."""
    return await ctx.step(send, cents, effect="once", in_doubt="wait", timeout=5)


@hf.durable
async def patient(ctx: hf.Context) -> str:
    """A run that rests until a retry is due."""
    return await ctx.step(flaky, retry=hf.Retry(attempts=2, first=3600.0, most=3600.0))


@hf.durable
async def bulky(ctx: hf.Context, letter: str) -> int:
    """A run whose input, result of a step and event stand in blobs."""
    body = await ctx.step(large, letter[:1])
    await ctx.emit(body)
    await ctx.step(stop)
    return len(letter) + len(body)


@hf.durable
async def hasty(ctx: hf.Context) -> str:
    """A run whose own timeout cancels a step."""
    try:
        async with asyncio.timeout(0.01):
            await ctx.step(stop, name="slow")
    except TimeoutError:
        pass
    await ctx.step(stop)
    return "went on"


TALES = (ship, fail, transfer, remit, patient, bulky, hasty)
KINDS = [
    events.RunStarted, events.RunResumed, events.StepStarted, events.StepCompleted, events.StepFailed,
    events.StepDoubted, events.ValueTaken, events.Emitted, events.RunParked, events.RunFinished,
]  # fmt: skip
"""What this release writes, and its journals therefore hold."""
