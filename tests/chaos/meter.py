"""An agent that gives a sub-agent of its budget, and a provider that keeps a bill of its own outside of the store."""

from dataclasses import dataclass
from typing import Any, Final

import holdfast as hf
from holdfast.agent.agent import Agent
from holdfast.agent.model import Reply, Request, Say
from holdfast.core import budget
from holdfast.core.message import Usage
from holdfast.core.status import Status
from holdfast.store.value import RunFilter
from holdfast.testing.scripted import ScriptedModel, call
from tests.chaos.homes import home
from tests.chaos.looking import Point, look_at_points
from tests.chaos.world import World, read_ledger

TOKENS: Final = 20_000
CALLS: Final = 100
_USED: Final = Usage(input=60, output=30, cost=90_000)
_SHORT: Final = {"max_tokens": 50}
_world: World


class Billing(ScriptedModel):
    """A model whose provider writes down each generation before it answers."""

    async def ask(self, request: Request, say: Say) -> Reply:
        """Bill, then answer."""
        _world.note("billed", model=self.name)
        reply = await super().ask(request, say)
        return Reply(reply.message, _USED, reply.stop, reply.model)

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much costs."""
        return ((usage.input or 0) + (usage.output or 0)) * 1000


async def look_up(what: str) -> str:
    """Look something up."""
    return f"{what} is known"


@dataclass(frozen=True, slots=True)
class Told:
    """The tree at its end, and what its provider billed."""

    result: str
    billed: int
    accounts: tuple[tuple[str, budget.Account], ...]
    """Of the run at the top, by channel."""
    open: int
    """What is still set aside, over all runs and channels."""
    findings: tuple[str, ...]

    def wrong(self, deaths: int) -> str | None:
        """Return which promise was broken by a tree that died so often."""
        accounts = dict(self.accounts)
        calls, tokens, usd = accounts["calls"], accounts["tokens"], accounts["usd"]
        if self.findings or self.open:
            return f"{self.findings}, {self.open} still set aside"
        if any(account.total != account.free + account.reserved + account.spent for account in accounts.values()):
            return f"it does not add up: {accounts}"
        if calls.spent < self.billed or tokens.spent < self.billed * 90 or usd.spent < self.billed * 90_000:
            return f"{self.billed} calls were billed, and less was charged: {accounts}"
        if calls.spent > self.billed + deaths:
            return f"{self.billed} calls were billed, {deaths} processes died, and {calls.spent} were charged"
        unknown = {channel for channel, account in accounts.items() if account.unknown}
        return f"{unknown} are unknown though nothing was lost" if unknown and not deaths else None


async def play(place: str, ledger: str, broken: bool = False) -> Told:
    """Start or take up the tree in the store at `place`, see it to its end, and tell."""
    global _world
    _world = world = World(ledger)
    if broken:
        _forget_lost()
    store = await home(place).open(world.now)
    helper = Agent("helper", model=Billing(call("look_up", what="it"), "found", name="h"), settings=_SHORT,
                   tools=[look_up])  # fmt: skip
    lines = ([call("look_up", what="a"), call("helper", message="find it")], call("helper", message="again"), "done")
    boss = Agent("boss", model=Billing(*lines, name="b"), settings=_SHORT, tools=[look_up, helper])
    async with hf.open(store, hf.App(boss, helper, version="1")) as runtime:
        limits = hf.Budget(tokens=TOKENS, calls=CALLS, usd=1)
        run = await runtime.start(boss, "do it", key="boss", budget=limits)
        result = await run.result(timeout=30)
        rows = await store.list(RunFilter(limit=10))
        assert all(row.status is Status.COMPLETED for row in rows)
        accounts = {row.run: await store.budget(row.run) for row in rows}
        still = sum(account.reserved for each in accounts.values() for account in each.values())
        found = [f"{one.run} {one.seq}: {one.what}" async for one in runtime.client.verify()]
        top: Any = accounts[run.id]
    billed = sum(line["what"] == "billed" for line in read_ledger(ledger))
    world.close()
    return Told(result, billed, tuple(sorted(top.items())), still, tuple(found))


async def look(place: str, ledger: str) -> tuple[Point, ...]:
    """Play, and tell of each point what is committed there and what was done outside of the store."""
    points = look_at_points(place, lambda: len(read_ledger(ledger)))
    await play(place, ledger)
    return tuple(points)


def _forget_lost() -> None:
    """Give back what a lost attempt had set aside, as if it had not been made."""
    settled = budget._settled

    def forgiving(books: budget.Books, step: str | None, usage: Any) -> Any:
        return settled(books, step, budget.NOTHING if usage is None else usage)

    budget._settled = forgiving
