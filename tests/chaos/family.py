"""A program of branches, children and generations, noting each effect outside of its store."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast import events
from holdfast.core.entry import Entry
from holdfast.runtime import Runtime
from holdfast.store import point
from holdfast.store.clock import system_clock
from tests.chaos.homes import home

GENERATIONS: Final = 2
_PAY_SECONDS: Final = 0.2
_ledger = Path()


def _note(*words: object) -> None:
    """Write a line that outlives the process, as a whole or not at all."""
    file = os.open(_ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, (" ".join(map(str, words)) + "\n").encode())
    os.close(file)


def notes(ledger: Path) -> Counter[str]:
    """Return how often each line was written."""
    return Counter(ledger.read_text().splitlines()) if ledger.exists() else Counter()


async def look(item: int) -> int:
    """Read something: safe to repeat."""
    _note("look", item)
    return item * 2


async def hold(step: hf.Step[None], item: int) -> str:
    """Reserve: safe to repeat with the same idempotency key."""
    point.reached("hold begins")
    _note("hold", item, step.idempotency_key)
    point.reached("hold ends")
    return f"held {item}"


async def pay(item: int) -> str:
    """Pay: once, and anyone can look up whether it happened."""
    point.reached("pay begins")
    _note("pay", item)
    point.reached("pay ends")
    return f"paid {item}"


def was_paid(item: int) -> Any:
    """Look up a payment."""
    return f"paid {item}" if notes(_ledger)[f"pay {item}"] else hf.NOT_DONE


def book(transaction: hf.Transaction, item: int) -> int:
    """Write to the user's own table in the entry's transaction."""
    transaction.execute("CREATE TABLE IF NOT EXISTS bookings (id INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    transaction.execute("INSERT INTO bookings (name) VALUES (?)", (f"{item}",))
    return item


@hf.durable
async def clerk(ctx: hf.Context, item: int) -> str:
    """Hold something, as a child."""
    held, *_ = await ctx.gather(ctx.step(hold, item, effect="keyed"), ctx.step(look, item))
    return held


@hf.durable
async def family(ctx: hf.Context, left: int, done: list[Any]) -> list[Any]:
    """Fan out, spawn and go on from the top until nothing is left."""

    async def both(item: int) -> list[Any]:
        ctx.now()
        first = await ctx.step(look, item)
        return [first, await ctx.step(book, item)]

    codes: list[Any] = [
        ctx.step(pay, left, effect="once", verify=was_paid, timeout=_PAY_SECONDS),
        ctx.run(clerk, left),
        both(left),
        ctx.map(look, [100 * left + item for item in range(3)], at_once=2),
    ]
    paid, held, pair, mapped = await ctx.gather(*codes)
    late = await ctx.spawn(clerk, left + 50)
    slept, later = await ctx.gather(ctx.sleep(0.001), late.result())
    clerks = await ctx.map(clerk, [left + 60, left + 70], key=str)
    done = [*done, paid, held, pair, mapped, slept, later, clerks]
    if left:
        await ctx.continue_as(left - 1, done)
    return done


@dataclass(frozen=True, slots=True)
class Told:
    """A family at its end: its result, what each of its runs recorded by step, its user's rows, and what is wrong."""

    result: Any
    recorded: tuple[tuple[str, Any], ...]
    children: tuple[str, ...]
    bookings: tuple[str, ...]
    findings: tuple[str, ...]
    left: tuple[str, ...]


async def play(place: str, ledger: str) -> Told:
    """Start or take up the family at `place`, see it to its end, and tell of it."""
    global _ledger
    _ledger = Path(ledger)
    store = await home(place).open(system_clock)
    async with hf.open(store, hf.App(family, clerk)) as runtime:
        run = await runtime.start(family, GENERATIONS - 1, [], key="family")
        result = await run.result(timeout=15)
        recorded, children = await _history(runtime, run.id)
        ended = []
        for child in children:
            told, none = await _history(runtime, child)
            assert not none
            ended.append(f"{(await (await runtime.get(child)).info()).status} {sorted(told)}")
        findings = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()]
    bookings, left = home(place).look()
    return Told(
        result, tuple(sorted(recorded, key=str)), tuple(sorted(ended)), tuple(bookings), tuple(findings), tuple(left)
    )


async def _history(runtime: Runtime, run: str) -> tuple[list[tuple[str, Any]], list[str]]:
    """Return what a run recorded by step, whichever way it came about, and its children."""
    entries: Sequence[Entry] = [
        event async for event in (await runtime.get(run)).events(follow=False) if isinstance(event, Entry)
    ]
    recorded: list[tuple[str, Any]] = []
    for entry in entries:
        if isinstance(entry, events.StepCompleted | events.ChildSettled) or (
            isinstance(entry, events.StepResolved) and entry.outcome == "done"
        ):
            recorded.append((entry.step, entry.value))
    return recorded, [entry.child for entry in entries if isinstance(entry, events.ChildSpawned)]
