"""A program that waits in every way and is cancelled, with the person and the clock that it waits for."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Final

import holdfast as hf
from holdfast import events
from holdfast.core.entry import Entry
from holdfast.core.ids import WorkerId
from holdfast.core.status import Status
from holdfast.engine.function import Durable
from holdfast.runtime import Runtime
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow
from tests.chaos.homes import home
from tests.chaos.world import World

PAID: Final = hf.Signal("paid", int)
SENT: Final = hf.Signal("sent", str)
_LOOK_SECONDS: Final = 0.2
_world: World


async def act(what: str) -> str:
    """Do something that may be repeated until it is recorded."""
    _world.note("did", act=what)
    return what


@hf.durable
async def visit(ctx: hf.Context) -> dict[str, Any]:
    """Wait for a time, for a signal through a pause, for one that does not come, and for a person."""
    await ctx.sleep(30)
    paid = await ctx.receive(PAID, timeout=3600)
    nothing = await ctx.receive(SENT, timeout=20)
    decision = await ctx.ask("Ship it?", show={"paid": paid}, args={"to": "home"}, expires=3600)
    late = await ctx.ask("Anything else?", expires=50)
    both = await ctx.gather(ctx.sleep(40), ctx.receive(SENT))
    return {
        "paid": paid, "nothing": nothing, "yes": decision.yes, "args": decision.args, "by": decision.by,
        "expired": late.expired, "sent": both[1],
    }  # fmt: skip


@hf.durable
async def stay(ctx: hf.Context) -> None:
    """Wait for what does not come, and clean up when told to end."""
    await ctx.step(act, "came")
    try:
        await ctx.receive(SENT)
    finally:
        await ctx.step(act, "cleaned up")
        _world.note("ack", act="cleaned up")


CODES: Final[dict[str, Durable[Any, []]]] = {"visit": visit, "stay": stay}


@dataclass(frozen=True, slots=True)
class Told:
    """One run at its end: its status and result, its facts but for who drove it and where it rested, and its rests."""

    name: str
    status: str
    reason: str
    result: Any
    facts: tuple[tuple[str, str], ...]
    dues: tuple[tuple[str, int | None], ...]
    """When each wait is due, by its step, as it was written when it began and at every rest."""
    findings: tuple[str, ...]


async def play(place: str, ledger: str) -> tuple[Told, ...]:
    """Start or take up both runs in the store at `place`, see them to their end, and tell."""
    global _world
    _world = world = World(ledger)
    store = await home(place).open(world.now)
    async with hf.open(store, hf.App(*CODES.values(), version="1")) as runtime:
        runs = [await runtime.start(code, key=name) for name, code in CODES.items()]
        bells = [store.watch(run.id, entries=False) for run in runs]
        while rows := [row for run in runs if (row := await store.get(run.id)) and not row.status.terminal]:
            now = world.now()
            if all(row.owner is None and (row.due_at is None or row.due_at > now) for row in rows):
                await _help(runtime, store, rows)
            await _any(bells)
        told = tuple([await _told(runtime, name) for name in CODES])
    world.close()
    return told


async def _any(bells: Any) -> None:
    waits = [asyncio.ensure_future(bell.wait()) for bell in bells]
    await asyncio.wait(waits, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _help(runtime: Runtime, store: Store, rows: list[RunRow]) -> None:
    """Be whoever the runs wait for; every word may have been said before, by a process that died of it."""
    if any(row.inbox_seq > row.seen_seq and row.status is not Status.PAUSED for row in rows):
        return
    helped = [await _answered(runtime, row) for row in rows]
    if not any(helped):
        _world.wait_until(max(row.due_at for row in rows if row.due_at is not None))
        # Voiding nobody changes nothing and rings the worker's bell, which does not know that time went on.
        await store.void(WorkerId("nobody"), why="the time has come")


async def _answered(runtime: Runtime, row: RunRow) -> bool:
    run = await runtime.get(row.run)
    entries = [event async for event in run.events(follow=False) if isinstance(event, Entry)]
    last = next((entry for entry in reversed(entries) if isinstance(entry, events.RunParked)), None)
    if row.name == "stay":
        return last is not None and await run.cancel("enough", by="ann")
    was_paused = any(isinstance(entry, events.RunParked) and entry.reason == "paused" for entry in entries)
    waits = {wait.step: wait for wait in last.waits} if last is not None else {}
    if row.status is Status.PAUSED:
        await run.signal(PAID, 7, key="p")
        return await run.resume(by="ann")
    if "0/receive#1" in waits and not was_paused:
        return await run.pause(by="ann")
    if "0/ask#1" in waits:
        (question,) = await run.questions()
        with contextlib.suppress(hf.Conflict):
            await runtime.answer(question, True, args={"to": "work"}, by="ann")
        return True
    if any("gather" in step for step in waits) and row.due_at is None:
        return await run.signal(SENT, "by mail", key="s")
    return False


async def _told(runtime: Runtime, name: str) -> Told:
    run = await runtime.get(key=name)
    info = await run.info()
    entries = [event async for event in run.events(follow=False) if isinstance(event, Entry)]
    facts = [entry for entry in entries if not isinstance(entry, events.RunResumed | events.RunParked)]
    dues = {(entry.step, entry.due_at) for entry in entries if isinstance(entry, events.StepStarted)}
    dues |= {(entry.step, entry.expires_at) for entry in entries if isinstance(entry, events.QuestionAsked)}
    for entry in entries:
        if isinstance(entry, events.RunParked):
            dues |= {(wait.step, wait.due_at) for wait in entry.waits}
    found = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify(run.id)]
    return Told(
        name, str(info.status), info.reason, info.result,
        tuple((entry.type, getattr(entry, "step", "")) for entry in facts),
        tuple(sorted(dues, key=str)), tuple(found),
    )  # fmt: skip
