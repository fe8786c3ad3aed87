"""A program that uses every verb, noting each effect and each acknowledgement outside of its store."""

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

import holdfast as hf
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.status import Status
from holdfast.engine.function import Durable
from holdfast.runtime import Runtime
from holdfast.store import point
from holdfast.store.protocol import Store, Watch
from holdfast.store.value import RunRow
from holdfast.stream.event import Chunk, PreviewReset
from tests.chaos import twins
from tests.chaos.homes import home, locks
from tests.chaos.world import FLIGHT_MICROS, World

PAY_SECONDS: Final = 3.0
"""How long a payment may be under way; longer than a request outlives its sender."""
PICTURE_BYTES: Final = 70_000
"""More than an entry holds, so it becomes a blob."""
_LOOK_SECONDS: Final = 1.0
_world: World


def did(step: str, order: str) -> None:
    """Note that a step's work is done, and let the process die before and after."""
    point.reached(f"{step} begins")
    _world.note("did", step=step, order=order)
    point.reached(f"{step} ends")


async def look(order: str) -> dict[str, Any]:
    """Read something: safe to repeat."""
    did("look", order)
    return {"order": order, "lines": [1, 2, 3]}


def count(order: str, lines: list[int]) -> int:
    """Compute in a thread: a plain function."""
    did("count", order)
    return sum(lines)


async def tag(order: str, ident: str, chance: float) -> str:
    """Take what was derived, so that its input's digest would differ if it were."""
    did("tag", order)
    return f"{order} {ident} {chance!r}"


async def hold(step: hf.Step[None], order: str) -> str:
    """Reserve: safe to repeat with the same idempotency key."""
    with _world.performing("hold", order, key=step.idempotency_key):
        return f"held {order}"


async def tell(step: hf.Step[None], order: str) -> str:
    """Stream: a few chunks before the result."""
    for word in ("one", "two", "three"):
        step.emit({"word": word})
        await asyncio.sleep(0)
    did("tell", order)
    return "one two three"


async def insist(step: hf.Step[None], order: str) -> int:
    """Fail twice, each worth another attempt at once."""
    did("insist", order)
    if step.attempt < 3:
        raise ConnectionError(f"attempt {step.attempt}")
    return step.attempt


async def return_later(step: hf.Step[None], order: str) -> int:
    """Fail once, worth another attempt only after a while: the run rests."""
    did("return_later", order)
    if step.attempt < 2:
        raise ConnectionError("come back later")
    return step.attempt


async def pay(order: str) -> str:
    """Pay: once, and anyone can look up whether it happened."""
    with _world.performing("pay", order):
        return f"paid {order}"


def was_paid(order: str) -> Any:
    """Look up a payment; one still under way has not happened yet."""
    return f"paid {order}" if _world.happened("pay", order) else hf.NOT_DONE


async def ship(order: str) -> str:
    """Ship: once, and nobody can tell whether it happened."""
    with _world.performing("ship", order):
        return f"shipped {order}"


def sign(order: str) -> str:
    """Sign in a thread: once, and only a person can tell whether it happened."""
    with _world.performing("sign", order):
        return f"signed {order}"


def book(transaction: hf.Transaction, order: str) -> int:
    """Write to the user's own table in the entry's transaction."""
    point.reached("book begins")
    transaction.execute("CREATE TABLE IF NOT EXISTS bookings (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    transaction.execute("INSERT INTO bookings (name) VALUES (?)", (order,))
    point.reached("book ends")
    return 1


async def refuse(order: str) -> str:
    """Fail for good."""
    did("refuse", order)
    raise ValueError(f"no {order}")


async def paint(order: str) -> str:
    """Return more than an entry holds."""
    did("paint", order)
    return order[0] * PICTURE_BYTES


@hf.durable
async def fulfil(ctx: hf.Context, order: str) -> dict[str, Any]:
    """Take an order through every verb, and acknowledge each result outside."""
    began = ctx.now()
    ctx.log.debug("began", order=order)

    def ack(step: str, value: Any) -> Any:
        _world.note("ack", step=step, order=order, value=value)
        return value

    found = ack("look", await ctx.step(look, order))
    total = ack("count", await ctx.step(count, order, found["lines"]))
    ident, chance = str(ctx.uuid()), ctx.random.random()
    tagged = ack("tag", await ctx.step(tag, order, ident, chance))
    held = ack("hold", await ctx.step(hold, order, effect="keyed"))
    told = ack("tell", await ctx.step(tell, order))
    await ctx.emit({"halfway": order})
    ack("emit", None)
    insisted = ack("insist", await ctx.step(insist, order, retry=hf.Retry(attempts=3, first=0.0002)))
    paid = ack("pay", await ctx.step(pay, order, effect="once", verify=was_paid, timeout=PAY_SECONDS))
    returned = ack("return_later", await ctx.step(return_later, order, retry=hf.Retry(attempts=2, first=90.0)))
    try:
        shipped = ack("ship", await ctx.step(ship, order, effect="once"))
    except hf.InDoubt:
        shipped = ack("ship", "in doubt")
    signed = ack("sign", await ctx.step(sign, order, effect="once", in_doubt="wait"))
    booked = ack("book", await ctx.step(book, order))
    try:
        refused = await ctx.step(refuse, order)
    except hf.StepError as error:
        refused = ack("refuse", f"{error.type}: {error.message}")
    picture = ack("paint", await ctx.step(paint, order))
    return {
        "began": int(began.timestamp() * 1_000_000), "found": found, "total": total, "tagged": tagged, "held": held,
        "told": told, "insisted": insisted, "paid": paid, "returned": returned, "shipped": shipped, "signed": signed,
        "booked": booked, "refused": refused, "picture": len(picture),
    }  # fmt: skip


@hf.durable(name="fulfil")
async def fulfil_more(ctx: hf.Context, order: str) -> dict[str, Any]:
    """Stand for the next release: the same steps, one of them with another input."""
    ctx.now()
    found = await ctx.step(look, order)
    total = await ctx.step(count, order, [*found["lines"], 4])
    await ctx.step(tag, order, str(ctx.uuid()), ctx.random.random())
    await ctx.step(hold, order, effect="keyed")
    return {"total": total}


@hf.durable(name="fulfil")
async def fulfil_otherwise(ctx: hf.Context, order: str) -> dict[str, Any]:
    """Stand for another release: two steps, with results of one type, have changed places."""
    ctx.now()
    found = await ctx.step(look, order)
    total = await ctx.step(count, order, found["lines"])
    await ctx.step(tag, order, str(ctx.uuid()), ctx.random.random())
    await ctx.step(tell, order)
    await ctx.step(hold, order, effect="keyed")
    return {"total": total}


CODES: Final = {"first": fulfil, "more": fulfil_more, "otherwise": fulfil_otherwise}
"""The releases of the program, by version."""


@dataclass(frozen=True, slots=True)
class Story:
    """One run at its end: its key, id, status and result, its events as anyone reads them, and their digests."""

    order: str
    run: str
    status: str
    reason: str
    result: Any
    events: tuple[Any, ...]
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A store after a trial: its runs, its user's own rows, all that `verify` finds wrong, and what nobody needs."""

    stories: tuple[Story, ...]
    bookings: tuple[str, ...]
    findings: tuple[str, ...]
    left: tuple[str, ...] = ()


def digest(event: Any) -> str:
    """Return a fingerprint of an event as a reader gets it."""
    return hashlib.sha256(msgspec.json.encode(event)).hexdigest()[:16]


def enter(ledger: str) -> World:
    """Let this process's steps meet the world of a ledger."""
    global _world
    _world = World(ledger)
    return _world


def world() -> World:
    """Return the world that this process's steps meet."""
    return _world


async def play(place: str, ledger: str, orders: tuple[str, ...], twin: str = "", code: str = "first") -> Report:
    """Start or take up these orders in the store at `place`, see them to their end, and report."""
    world = enter(ledger)
    twins.apply(twin, place)
    store = await home(place).open(world.now, **twins.options(twin))
    app = hf.App(CODES[code], version=code)
    async with hf.open(store, app) as runtime, asyncio.TaskGroup() as watching:
        runs = await _start(runtime, orders, CODES[code])
        for order, run in zip(orders, runs, strict=True):
            world.note("started", order=order, run=run)
        # A run that rests for ever has a watcher that waits for ever, so they are ended below.
        watchers = [watching.create_task(watch(runtime, order, run)) for order, run in zip(orders, runs, strict=True)]
        stories = await see_through(runtime, store, orders, code=code)
        for watcher in watchers:
            watcher.cancel()
        findings = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()]
    world.close()
    bookings, left = home(place).look()
    forgotten = [f"the lock {lock}" for lock in locks(store.lock_folder)]
    return Report(stories, tuple(bookings), tuple(findings), (*left, *forgotten))


async def _start(runtime: Runtime, orders: Sequence[str], code: Durable[Any, [str]]) -> list[RunId]:
    handles = await asyncio.gather(*(runtime.start(code, order, key=order) for order in orders))
    return [handle.id for handle in handles]


async def watch(runtime: Runtime, order: str, run: RunId) -> None:
    """Follow a run as a client would, and note everything that the stream sent as an entry."""
    async for event in runtime.client.events(run):
        if not isinstance(event, Chunk | PreviewReset):
            _world.note("entry", order=order, seq=event.seq, digest=digest(event))


async def see_through(
    runtime: Runtime, store: Store, orders: Sequence[str], *, code: str = "first"
) -> tuple[Story, ...]:
    """Wait until every run has ended; when all of them rest, be the clock and the person that they wait for."""
    runs = [await runtime.client.find(order) for order in orders]
    bells = [store.watch(run, entries=False) for run in runs]
    while True:
        rows = [row for run in runs if (row := await store.get(run)) is not None and not _over(row, code)]
        if not rows:
            return tuple([await _story(runtime, order, run) for order, run in zip(orders, runs, strict=True)])
        now = _world.now()
        if all(row.owner is None and (row.due_at is None or row.due_at > now) for row in rows):
            await _help(runtime, store, rows)
        await _any(bells)


async def _any(bells: Sequence[Watch]) -> None:
    """Wait until one of these bells rings, or a little while."""
    waits = [asyncio.ensure_future(bell.wait()) for bell in bells]
    await asyncio.wait(waits, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _over(row: RunRow, code: str) -> bool:
    refused = row.owner is None and f"|{code}|" in row.refused
    return bool(row.damage) or row.status.terminal or row.status is Status.QUARANTINED or refused


async def _help(runtime: Runtime, store: Store, rows: Sequence[RunRow]) -> None:
    due = [row.due_at for row in rows if row.due_at is not None]
    if due:
        _world.wait_until(max(due))
        # Voiding nobody changes nothing and rings the worker's bell, which does not know that time went on.
        await store.void(WorkerId("nobody"), why="the time has come")
        return
    _world.wait_until(_world.now() + FLIGHT_MICROS + 1)
    for row in rows:
        assert row.key is not None
        value: Any = f"signed {row.key}" if _world.happened("sign", row.key) else hf.NOT_DONE
        # It may have been said before, by a process that died of it.
        with contextlib.suppress(hf.Conflict, hf.NotFound):
            await runtime.client.resolve(row.run, "0/sign#1", value, by="ann")


async def _story(runtime: Runtime, order: str, run: RunId) -> Story:
    info = await runtime.client.info(run)
    events = tuple([event async for event in runtime.client.events(run, follow=False)])
    digests = tuple(digest(event) for event in events)
    return Story(order, run, str(info.status), info.reason, info.result, events, digests)
