"""A program that fails, is tried again with its child, and is forked; noting each effect outside of its store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast import events
from holdfast.core.entry import Entry
from holdfast.runtime import Runtime
from holdfast.store import point
from holdfast.store.clock import system_clock
from tests.chaos import family
from tests.chaos.family import _note, notes, pay, was_paid
from tests.chaos.homes import home
from tests.chaos.looking import Point, look_at_points

_PAY_SECONDS: Final = 0.2
_PAID: Final = "0/pay#1"


async def hold(step: hf.Step[None], what: str) -> str:
    """Reserve: safe to repeat with the same idempotency key."""
    point.reached("hold begins")
    _note("hold", what, step.idempotency_key)
    point.reached("hold ends")
    return f"held {what}"


async def charge(step: hf.Step[None], what: str) -> str:
    """Ask a bank that does not answer until it is mended."""
    _note("charge", what, step.idempotency_key)
    if not notes(family._ledger)["mended"]:
        raise ConnectionError("the bank does not answer")
    return f"charged {what}"


@hf.durable
async def clerk(ctx: hf.Context, what: str) -> list[str]:
    """Hold something and charge for it, as a child."""
    return [await ctx.step(hold, what, effect="keyed"), await ctx.step(charge, what, effect="keyed")]


@hf.durable
async def parcel(ctx: hf.Context) -> list[Any]:
    """Pay, hold, and charge twice beside each other: here, and by a child."""
    paid = await ctx.step(pay, 1, effect="once", verify=was_paid, timeout=_PAY_SECONDS)
    held = await ctx.step(hold, "parcel", effect="keyed")
    both = await ctx.gather(ctx.run(clerk, "clerk"), ctx.step(charge, "parcel", effect="keyed"))
    return [paid, held, *both]


@dataclass(frozen=True, slots=True)
class Told:
    """How it ended: what the retry and the fork returned and recorded, how many runs there are, and what is wrong."""

    results: tuple[Any, ...]
    recorded: tuple[Any, ...]
    runs: tuple[str, ...]
    findings: tuple[str, ...]


async def play(place: str, ledger: str) -> Told:
    """Start or take up the program at `place`, have it tried again and forked once each, and tell of its end."""
    family._ledger = Path(ledger)
    store = await home(place).open(system_clock)
    async with hf.open(store, hf.App(parcel, clerk)) as runtime:
        run = await runtime.start(parcel, key="parcel")
        base = await _base_of(runtime, run)
        if run.id == base.id:
            run = await _retried(run)
        fork = await _forked(runtime, base)
        results = [await each.result(timeout=15) for each in (run, fork)]
        recorded = [await _recorded(each) for each in (run, fork)]
        runs = [f"{one.name} {one.status} {one.key} {one.base is not None}" for one in await runtime.runs()]
        findings = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()]
    return Told(tuple(results), tuple(recorded), tuple(sorted(runs)), tuple(findings))


async def look(place: str, ledger: str) -> tuple[Point, ...]:
    """Play, and tell of each point what is committed there and what is noted."""
    points = look_at_points(place, lambda: notes(Path(ledger)))
    await play(place, ledger)
    return tuple(points)


async def _base_of(runtime: Runtime, run: hf.Run[Any]) -> hf.Run[Any]:
    info = await run.info()
    return await runtime.get(info.base) if info.base is not None else run


async def _retried(run: hf.Run[Any]) -> hf.Run[Any]:
    """Wait until the run has failed, mend what it failed for, and have it tried again."""
    ending = await run._client.wait(run.id, timeout_seconds=15)
    assert ending.status == "failed", ending.reason
    if not notes(family._ledger)["mended"]:
        _note("mended")
    return await run.retry(by="ann")


async def _forked(runtime: Runtime, base: hf.Run[Any]) -> hf.Run[Any]:
    """Return the fork of the base from where it was about to pay."""
    for fork in (await base.info()).forks:
        if not fork.retry:
            return await runtime.get(fork.id)
    entries = [event async for event in base.events(follow=False) if isinstance(event, events.StepStarted)]
    return await base.fork(at=next(entry.seq for entry in entries if entry.step == _PAID))


async def _recorded(run: hf.Run[Any]) -> tuple[tuple[str, Any], ...]:
    """Return what a run recorded by step, whichever way it came about."""
    recorded: list[tuple[str, Any]] = []
    async for event in run.events(follow=False):
        assert not isinstance(event, Entry) or event.run == run.id
        if isinstance(event, events.StepCompleted | events.ChildSettled) or (
            isinstance(event, events.StepResolved) and event.outcome == "done"
        ):
            recorded.append((event.step, event.value))
    return tuple(sorted(recorded, key=str))
