"""A program that gives tokens away and spends a budget, with who answers them, who raises it and the clock."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import holdfast as hf
from holdfast import events
from holdfast.core.entry import BudgetMove, Entry
from holdfast.core.ids import WorkerId
from holdfast.core.status import Status
from holdfast.engine.budget import Purse
from holdfast.engine.effects import StepCall
from holdfast.runtime import Runtime
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow
from tests.chaos.homes import home
from tests.chaos.looking import Point, look_at_points
from tests.chaos.waiting import _any as any_of
from tests.chaos.world import World, read_ledger

PAID: Final = hf.Signal("paid", int)
STEPS: Final = 4
GIVEN: Final = 3
_world: World


async def mail(to: str, token: str) -> None:
    """Send a token to somebody, maybe more than once."""
    _world.note("mailed", to=to, token=token)


async def act(item: int) -> int:
    """Do something that may be repeated until it is recorded."""
    _world.note("did", act=item)
    return item


async def hold(step: hf.Step[None], item: int) -> str:
    """Do something that the same key repeats."""
    _world.note("held", key=step.idempotency_key)
    return f"held {item}"


def book(transaction: hf.Transaction, item: int) -> int:
    """Do something in the entry's transaction."""
    transaction.execute("SELECT 1")
    return item


@hf.durable
async def clerk(ctx: hf.Context, steps: int) -> int:
    """Take one step more than it was given."""
    for item in range(steps):
        await ctx.step(act, 100 + item)
    return steps


@hf.durable
async def spend(ctx: hf.Context) -> dict[str, Any]:
    """Wait for two tokens, fan out, give a child steps, take steps of each kind, and sleep past the deadline."""
    bank = await ctx.callback(PAID, expires=3600)
    await ctx.step(mail, "bank", bank.token)
    boss = await ctx.callback("Ship it?", args={"to": "home"})
    await ctx.step(mail, "boss", boss.token)
    paid, decision = await bank.result(), await boss.result()
    mapped = await ctx.map(act, range(3), at_once=2)
    child = await ctx.run(clerk, GIVEN + 1, budget=hf.Budget(steps=GIVEN))
    held = await ctx.step(hold, 7, effect="keyed")
    booked = await ctx.step(book, 8)
    await ctx.sleep(200)
    return {
        "paid": paid, "yes": decision.yes, "args": decision.args, "mapped": mapped, "child": child, "held": held,
        "booked": booked,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """The tree at its end: what it returned, each run's facts but for who drove it and where it rested."""

    result: Any
    facts: tuple[tuple[str, ...], ...]
    accounts: tuple[tuple[str, int, int, int, int], ...]
    """Of each run: its name, and of its steps how many were given, are free, are reserved and were spent."""
    unpaid: tuple[str, ...]
    """Where what was spent is not what the journal recorded."""
    findings: tuple[str, ...]


async def play(place: str, ledger: str, broken: bool = False) -> Told:
    """Start or take up the tree in the store at `place`, see it to its end, and tell."""
    global _world
    _world = world = World(ledger)
    if broken:
        _pay_apart()
    store = await home(place).open(world.now)
    async with hf.open(store, hf.App(spend, clerk, version="1")) as runtime:
        run = await runtime.start(spend, key="spend", budget=hf.Budget(steps=STEPS, deadline=100))
        while not (await _row(store, run.id)).status.terminal:
            watched = {run.id, *(row.run for row in await _rows(store))}
            bells = [store.watch(one, entries=False) for one in watched]
            await _help(runtime, store, ledger)
            await any_of(bells)
            for bell in bells:
                bell.close()
        told = await _told(runtime, store, await run.result(timeout=15))
    world.close()
    return told


async def look(place: str, ledger: str) -> tuple[Point, ...]:
    """Play, and tell of each point what is committed there and what was done outside of the store."""
    points = look_at_points(place, lambda: len(read_ledger(ledger)))
    await play(place, ledger)
    return tuple(points)


async def _row(store: Store, run: Any) -> RunRow:
    row = await store.get(run)
    assert row is not None
    return row


async def _rows(store: Store) -> list[RunRow]:
    return [row for row in await store.list(RunFilter(limit=10)) if not row.status.terminal]


async def _help(runtime: Runtime, store: Store, ledger: str) -> None:
    """Be whoever the runs wait for; every word may have been said before, by a process that died of it."""
    rows, now = await _rows(store), _world.now()
    if any(row.owner is not None or row.inbox_seq > row.seen_seq for row in rows):
        return
    if any(row.due_at is not None and row.due_at <= now for row in rows):
        return
    helped = [await _helped(runtime, row, ledger) for row in rows]
    dues = [row.due_at for row in rows if row.due_at is not None]
    if not any(helped) and dues:
        _world.wait_until(min(dues))
        # Voiding nobody changes nothing and rings the worker's bell, which does not know that time went on.
        await store.void(WorkerId("nobody"), why="the time has come")


async def _helped(runtime: Runtime, row: RunRow, ledger: str) -> bool:
    run = await runtime.get(row.run)
    if row.status is Status.EXHAUSTED:
        budget = (await run.info()).budget
        assert budget is not None
        # By what there was, so that who says it again after a death does not give more.
        if row.reason.startswith("deadline"):
            return await run.raise_budget(deadline=1000, key="later")
        return await run.raise_budget(steps=3, key=f"beyond {budget['steps']['total']}")
    tokens = tokens_of(ledger)
    if row.reason.startswith("callback"):
        await runtime.answer_token(min(tokens["bank"]), 40)
        return True
    if row.reason.startswith("ask"):
        await runtime.answer_token(min(tokens["boss"]), True, args={"to": "work"}, by="ann")
        return True
    return False


async def _told(runtime: Runtime, store: Store, result: Any) -> Told:
    facts, accounts, unpaid = [], [], []
    for row in await store.list(RunFilter(limit=10)):
        run = await runtime.get(row.run)
        entries = [event async for event in run.events(follow=False) if isinstance(event, Entry)]
        facts.append((row.name, *sorted(_facts(entries))))
        steps = (await store.budget(row.run))["steps"]
        accounts.append((row.name, steps.total, steps.free, steps.reserved, steps.spent))
        if steps.spent != _recorded(entries) or not steps.is_sound("steps"):
            unpaid.append(f"{row.name}: {steps} for {_recorded(entries)} steps")
    found = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()]
    return Told(result, tuple(sorted(facts)), tuple(sorted(accounts)), tuple(unpaid), tuple(found))


def _facts(entries: list[Entry]) -> list[str]:
    """Return what happened, in words; a further attempt at a step is no other fact."""
    drivers = events.RunResumed | events.RunParked
    return [
        f"{entry.type} {getattr(entry, 'step', '')}"
        for entry in entries
        if not isinstance(entry, drivers) and not (isinstance(entry, events.StepStarted) and entry.attempt > 1)
    ]


def tokens_of(ledger: str | os.PathLike[str]) -> dict[str, set[str]]:
    """Return every token that was mailed, by whom it was mailed to."""
    sent: dict[str, set[str]] = {}
    for line in read_ledger(ledger):
        if line["what"] == "mailed":
            sent.setdefault(line["to"], set()).add(line["token"])
    return sent


def _recorded(entries: list[Entry]) -> int:
    """Return how many steps a journal holds, by their keys, and what a child spent of what it was given."""
    waits = {entry.step for entry in entries if isinstance(entry, events.StepStarted) and entry.waits}
    steps = {
        entry.step
        for entry in entries
        if isinstance(entry, events.StepStarted | events.StepCompleted | events.StepFailed)
    }
    given = sum(GIVEN for entry in entries if isinstance(entry, events.ChildSettled))
    return len(steps - waits) + given


def _pay_apart() -> None:
    """Let a step be paid before it is performed, in a commit of its own: who dies between the two pays twice."""
    hold_steps = Purse.hold

    async def hold_and_pay(self: Purse, drive: Any, step: str, wants: Mapping[str, int]) -> None:
        await hold_steps(self, drive, step, wants)
        if wants == {"steps": 1}:
            self.release(wants)
            entry = events.BudgetChanged(moves=[BudgetMove("steps", spent=1)], why="step", step=step)
            await drive.write(entry, **drive.paid(entry))

    async def afford(self: StepCall, purse: Purse) -> None:
        await purse.hold(self.drive, self.key, {"steps": 1})

    Purse.hold, StepCall._afford = hold_and_pay, afford  # type: ignore[method-assign]
