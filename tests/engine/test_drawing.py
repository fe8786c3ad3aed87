"""Budgets of tokens, money and model calls: set aside before a generation, and settled by what it took."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast import events
from holdfast.agent.agent import Agent
from holdfast.agent.cost import Cost, answer_tokens, messages_bytes, request_bytes
from holdfast.agent.model import ModelBusy, ModelCut, Reply, Request, Say
from holdfast.agent.providers.blocks import params_of
from holdfast.core.budget import NANO
from holdfast.core.message import ASSISTANT, Message, Text, Usage
from holdfast.core.status import Status
from holdfast.engine.family import cancel_post
from holdfast.store.memory import MemoryStore
from holdfast.testing.scripted import ScriptedModel, call
from tests.engine.stage import Hurdle, Stage, ending_of, entries_of, kinds_of, seen, soon
from tests.engine.test_budgets import conserved, exhausted

SHORT = {"max_tokens": 100}
AGAIN = hf.Retry(attempts=3, first=0)


class Priced(ScriptedModel):
    """A model that costs a thousand nano-dollars for each token."""

    def cost_of(self, usage: Usage) -> int | None:
        """Return what so much costs."""
        return ((usage.input or 0) + (usage.output or 0)) * 1000


def says(text: str, **usage: int) -> Reply:
    """Return a reply that took so much."""
    return Reply(Message(ASSISTANT, (Text(text),)), Usage(**usage))


def estimate(model: ScriptedModel, request: Request) -> int:
    """Return how many tokens are set aside for a request."""
    return Cost(model, lambda: msgspec.structs.replace(request, key="")).tokens


async def sums(runtime: hf.Runtime, run: hf.Run[Any], channel: str) -> tuple[int, int, int]:
    """Return free, reserved and spent of a channel, having checked that the journal says the same."""
    await conserved(runtime, run.id)
    account = (await run.info()).budget
    assert account is not None
    known = account[channel]
    unit = NANO if channel == "usd" else 1
    assert known["total"] == pytest.approx(known["free"] + known["reserved"] + known["spent"])
    return round(known["free"] * unit), round(known["reserved"] * unit), round(known["spent"] * unit)


async def test_a_generation_is_charged_what_it_took(every: Stage) -> None:
    """Tokens, money and calls of a budget are spent by its usage, and its intent has what was set aside."""
    model = Priced(says("hello", input=30, output=12, cost=42_000))
    clerk = Agent("clerk", model=model, settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000, usd="0.001", calls=3))
        assert await run.result(timeout=20) == "hello"
        assert await sums(runtime, run, "tokens") == (958, 0, 42)
        assert await sums(runtime, run, "usd") == (1_000_000 - 42_000, 0, 42_000)
        assert await sums(runtime, run, "calls") == (2, 0, 1)
        (intent,) = [entry for entry in await entries_of(run) if isinstance(entry, events.StepStarted)]
        tokens = estimate(model, model.requests[0])
        assert intent.reserved == {"calls": 1, "tokens": tokens, "usd": tokens * 1000}


def test_as_much_is_set_aside_as_a_provider_is_asked_for() -> None:
    """Where the settings say nothing of an answer's length, the two defaults are one number."""
    request = Request("", ())
    assert params_of(request, model="claude-sonnet-4-5")["max_tokens"] == answer_tokens(request.settings)


async def test_what_is_not_limited_is_not_set_aside(every: Stage) -> None:
    """A run without a budget writes no intent for a generation; one of steps only none of its tokens."""
    clerk = Agent("clerk", model=ScriptedModel("hello"))
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi")
        assert await run.result(timeout=20) == "hello"
        assert not [entry for entry in await entries_of(run) if isinstance(entry, events.StepStarted)]
        run = await runtime.start(clerk, "hi", budget=hf.Budget(steps=2))
        assert await run.result(timeout=20) == "hello"
        assert not [entry for entry in await entries_of(run) if isinstance(entry, events.StepStarted)]
        assert await sums(runtime, run, "steps") == (1, 0, 1)


@pytest.mark.parametrize(("channel", "given", "more"), [("tokens", 150, 1000), ("usd", 0.00015, 0.001)])
async def test_a_generation_that_could_cost_too_much_is_not_asked_for(
    every: Stage, channel: str, given: float, more: float
) -> None:  # fmt: skip
    """The run rests under the channel's name before anything is sent, and goes on when it is raised by enough."""
    model = Priced(says("hello", input=30, output=12, cost=42_000))
    clerk = Agent("clerk", model=model, settings=SHORT)
    budget: dict[str, Any] = {channel: given}
    little: dict[str, Any] = {channel: given / 100 if channel == "usd" else 1}
    enough: dict[str, Any] = {channel: more}
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi " * 200, budget=hf.Budget(**budget))
        assert (await exhausted(run)).startswith(f"{channel}: ")
        with pytest.raises(hf.BudgetExceeded) as refused:
            await run.result(timeout=20)
        assert refused.value.channel == channel
        assert model.requests == []
        assert await run.raise_budget(**little)
        await seen(run, lambda entry: isinstance(entry, events.BudgetChanged))
        assert (await exhausted(run)).startswith(f"{channel}: ")
        assert await run.raise_budget(**enough)
        assert await run.result(timeout=20) == "hello"
        assert (await kinds_of(run)).count("RunResumed") == 1, "it was taken up for what is not enough"
        assert (await sums(runtime, run, channel))[1:] == (0, 42_000 if channel == "usd" else 42)


async def test_calls_are_counted(every: Stage) -> None:
    """Each generation is one; with none left the run rests as out of calls."""

    async def look() -> str:
        """Look."""
        return "seen"

    model = ScriptedModel(call("look"), "done")
    clerk = Agent("clerk", model=model, tools=[look])
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(calls=1))
        assert await exhausted(run) == "calls: 1 wanted, 0 left of 1"
        await run.raise_budget(calls=1)
        assert await run.result(timeout=20) == "done"
        assert await sums(runtime, run, "calls") == (0, 0, 2)


@pytest.mark.parametrize("usage", [{}, {"input": 30}])
async def test_what_nobody_counted_is_charged_as_it_was_set_aside(every: Stage, usage: dict[str, int]) -> None:
    """A usage that is not known, or not wholly, is its own value: the account says so and loses the estimate."""
    model = ScriptedModel(says("hello", **usage))
    clerk = Agent("clerk", model=model, settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000, calls=5))
        await run.result(timeout=20)
        tokens = estimate(model, model.requests[0])
        assert await sums(runtime, run, "tokens") == (1000 - tokens, 0, tokens)
        budget = (await run.info()).budget
        assert budget is not None
        assert (budget["tokens"]["unknown"], budget["calls"].get("unknown")) == (True, None)


@pytest.mark.parametrize(
    ("error", "spent"),
    [
        (ModelBusy("later"), lambda tokens: 0),
        (ModelCut("cut", usage=Usage(input=30, output=3)), lambda tokens: 33),
        (ModelCut("cut", usage=Usage(input=30)), lambda tokens: tokens),
        (ModelCut("cut"), lambda tokens: tokens),
    ],
)
async def test_a_failed_attempt_is_charged_what_it_took(
    every: Stage, error: Exception, spent: Callable[[int], int]
) -> None:  # fmt: skip
    """Nothing where nothing was generated, what is known of a cut one, and the estimate where nobody knows."""
    model = ScriptedModel((error, says("hello", input=30, output=12)))
    clerk = Agent("clerk", model=model, settings=SHORT, retry=AGAIN)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=2000))
        assert await run.result(timeout=20) == "hello"
        lost = spent(estimate(model, model.requests[0]))
        assert await sums(runtime, run, "tokens") == (2000 - 42 - lost, 0, 42 + lost)


class Slow(ScriptedModel):
    """A model that answers once it is let."""

    def __init__(self, hurdle: Hurdle, *lines: Any) -> None:
        super().__init__(*lines)
        self._hurdle = hurdle

    async def ask(self, request: Request, say: Say) -> Reply:
        """Wait, then answer."""
        await self._hurdle()
        return await super().ask(request, say)


class Hindered(Slow, Priced):
    """One that has a price too."""


async def test_an_attempt_that_a_dead_process_left_is_charged_in_full(every: Stage) -> None:
    """Until another is made its estimate stays set aside; then it is spent, and nobody knows whether it was."""
    hurdle = Hurdle()
    model = Slow(hurdle, says("hello", input=30, output=12))
    clerk = Agent("clerk", model=model, settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000, calls=5))
        await soon(hurdle.reached.wait())
        tokens = (await sums(runtime, run, "tokens"))[1]
        assert tokens > 100
    hurdle.open.set()
    async with every.open(clerk) as runtime:
        run = await runtime.get(run.id, of=clerk)
        assert await run.result(timeout=20) == "hello"
        assert await sums(runtime, run, "tokens") == (1000 - tokens - 42, 0, tokens + 42)
        assert await sums(runtime, run, "calls") == (3, 0, 2)
        budget = (await run.info()).budget
        assert budget is not None
        assert budget["tokens"]["unknown"] is True


async def test_a_cancelled_generation_is_charged_in_full(every: Stage) -> None:
    """The run ends, and nothing of its budget stays open."""
    hurdle = Hurdle()
    clerk = Agent("clerk", model=Slow(hurdle, "never"), settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000))
        await soon(hurdle.reached.wait())
        tokens = (await sums(runtime, run, "tokens"))[1]
        await run.cancel()
        with pytest.raises(hf.RunError):
            await run.result(timeout=20)
        assert await sums(runtime, run, "tokens") == (1000 - tokens, 0, tokens)


class Cancelling(Priced):
    """A model whose run is cancelled while its price is worked out: after the last look, and before its intent."""

    def __init__(self, store: MemoryStore, *lines: Any) -> None:
        super().__init__(*lines)
        self._store, self._armed = store, True

    def cost_of(self, usage: Usage) -> int | None:
        """Post the cancel, once, and say what it costs."""
        if self._armed:
            self._armed = False
            (run,) = self._store._rows
            self._store._post(cancel_post(run, "enough"))
        return super().cost_of(usage)


async def test_a_generation_that_a_cancel_withheld_is_not_charged() -> None:
    """Its intent was refused, so that nothing was set aside: the ending has nothing to charge."""
    store = MemoryStore()
    model = Cancelling(store, "never")
    clerk = Agent("clerk", model=model, settings=SHORT)
    async with hf.open(store, hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000, usd="0.001", calls=3))
        assert (await ending_of(run))[0] is Status.CANCELLED
        assert "StepStarted" not in await kinds_of(run)
        assert await sums(runtime, run, "tokens") == (1000, 0, 0)
        assert await sums(runtime, run, "calls") == (3, 0, 0)
        assert await sums(runtime, run, "usd") == (1_000_000, 0, 0)
    assert model.requests == []


async def test_a_withheld_attempt_leaves_the_lost_one_before_it_charged_once() -> None:
    """What a dead process had set aside is charged by the ending, since no other attempt was written."""
    store, hurdle = MemoryStore(), Hurdle()
    slow = Agent("clerk", model=Hindered(hurdle, "never"), settings=SHORT)
    async with hf.open(store, hf.App(slow)) as runtime:
        run = await runtime.start(slow, "hi", budget=hf.Budget(tokens=5000, usd="0.005", calls=3))
        await soon(hurdle.reached.wait())
        tokens = (await sums(runtime, run, "tokens"))[1]
    clerk = Agent("clerk", model=Cancelling(store, "never"), settings={"max_tokens": 200})
    async with hf.open(store, hf.App(clerk)) as runtime:
        run = await runtime.get(run.id, of=clerk)
        assert (await ending_of(run))[0] is Status.CANCELLED
        assert (await kinds_of(run)).count("StepStarted") == 1
        assert await sums(runtime, run, "tokens") == (5000 - tokens, 0, tokens)
        assert await sums(runtime, run, "calls") == (2, 0, 1)


async def test_more_than_was_set_aside_is_charged_all_the_same(every: Stage) -> None:
    """A budget can be overdrawn by what was underestimated, and then nothing more begins."""

    async def look() -> str:
        """Look."""
        return "seen"

    first = Reply(Message(ASSISTANT, (call("look"),)), Usage(input=900, output=900), "calls")
    clerk = Agent("clerk", model=ScriptedModel(first, "done"), settings=SHORT, tools=[look])
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000))
        assert (await exhausted(run)).startswith("tokens: ")
        assert await sums(runtime, run, "tokens") == (-800, 0, 1800)
        await run.raise_budget(tokens=2000)
        assert await run.result(timeout=20) == "done"


async def test_a_model_of_unknown_price_does_not_spend_dollars(every: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before it is asked, with what to do; by the setting it may, and the cost is unknown."""
    model = ScriptedModel(says("hello", input=30, output=12))
    clerk = Agent("clerk", model=model)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(usd=1))
        with pytest.raises(hf.RunError, match="the price of scripted:model is unknown"):
            await run.result(timeout=20)
        assert model.requests == []
        monkeypatch.setenv("HOLDFAST_UNPRICED", "allow")
        run = await runtime.start(clerk, "hi", budget=hf.Budget(usd=1))
        assert await run.result(timeout=20) == "hello"
        assert await sums(runtime, run, "usd") == (NANO, 0, 0)
        budget = (await run.info()).budget
        assert budget is not None
        assert budget["usd"]["unknown"] is True


async def test_a_sub_agent_is_given_half_and_gives_back_the_rest(every: Stage) -> None:
    """What it spent is its parent's, also what it has overdrawn; over the tree nothing is lost or made."""
    helper = Agent("helper", model=ScriptedModel(says("helped", input=700, output=12)), settings=SHORT)
    lines = Reply(Message(ASSISTANT, (call("helper", message="do"),)), Usage(input=30, output=10), "calls")
    boss = Agent("boss", model=ScriptedModel(lines, says("done", input=30, output=12)), settings=SHORT, tools=[helper])
    async with every.open(boss, helper) as runtime:
        run = await runtime.start(boss, "hi", budget=hf.Budget(tokens=2000, calls=9))
        spawned = await seen(run, lambda entry: isinstance(entry, events.ChildSpawned))
        assert isinstance(spawned, events.ChildSpawned)
        assert spawned.grant == {"calls": 4, "tokens": 980}
        assert await run.result(timeout=20) == "done"
        assert await sums(runtime, run, "tokens") == (2000 - 40 - 712 - 42, 0, 40 + 712 + 42)
        assert await sums(runtime, run, "calls") == (6, 0, 3)
        child = await runtime.get(spawned.child, of=helper)
        assert await sums(runtime, child, "tokens") == (980 - 712, 0, 712)


async def test_a_child_that_overdraws_charges_its_parent_all_of_it(every: Stage) -> None:
    """The parent gave less than the child took: the difference is the tree's, and not lost."""
    helper = Agent(
        "helper", model=ScriptedModel(says("helped", input=700, output=12)), settings=SHORT,
        budget=hf.Budget(tokens=400),
    )  # fmt: skip

    @hf.durable
    async def boss(ctx: hf.Context) -> str:
        return await ctx.run(helper, "do")

    async with every.open(boss, helper) as runtime:
        run = await runtime.start(boss, budget=hf.Budget(tokens=2000))
        assert await run.result(timeout=20) == "helped"
        assert await sums(runtime, run, "tokens") == (2000 - 712, 0, 712)


async def test_children_wait_for_what_is_left(every: Stage) -> None:
    """A grant that is not free makes the parent rest under the channel's name, and a raise lets it spawn."""
    helper = Agent("helper", model=ScriptedModel("helped"), settings=SHORT)

    @hf.durable
    async def boss(ctx: hf.Context) -> str:
        return await ctx.run(helper, "do", budget=hf.Budget(tokens=400))

    async with every.open(boss, helper) as runtime:
        run = await runtime.start(boss, budget=hf.Budget(tokens=300))
        assert await exhausted(run) == "tokens: 400 wanted, 300 left of 300"
        await run.raise_budget(tokens=100)
        assert await run.result(timeout=20) == "helped"


async def test_a_fork_has_what_was_free_and_pays_for_its_own(every: Stage) -> None:
    """An attempt that was open in the base is not the fork's to pay; the fork makes its own."""
    hurdle = Hurdle()
    clerk = Agent("clerk", model=Slow(hurdle, says("hello", input=30, output=12)), settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000))
        await soon(hurdle.reached.wait())
        free, tokens, _ = await sums(runtime, run, "tokens")
        fork = await run.fork()
        hurdle.open.set()
        assert await fork.result(timeout=20) == "hello"
        assert await run.result(timeout=20) == "hello"
        assert await sums(runtime, run, "tokens") == (958, 0, 42)
        assert await sums(runtime, fork, "tokens") == (free - 42, 0, 42)
        assert free == 1000 - tokens


async def test_branches_do_not_set_aside_the_same_tokens(every: Stage) -> None:
    """Two agents beside each other in one run are children: together they never hold more than there is."""
    hurdle = Hurdle()
    helper = Agent("helper", model=Slow(hurdle, says("helped", input=30, output=12)), settings=SHORT)

    @hf.durable
    async def boss(ctx: hf.Context) -> list[Any]:
        return list(await ctx.gather(ctx.run(helper, "a"), ctx.run(helper, "b"), ctx.run(helper, "c")))

    async with every.open(boss, helper) as runtime:
        run = await runtime.start(boss, budget=hf.Budget(tokens=4000))
        await soon(hurdle.reached.wait())
        hurdle.open.set()
        assert await run.result(timeout=20) == ["helped"] * 3
        spawned = [entry for entry in await entries_of(run) if isinstance(entry, events.ChildSpawned)]
        assert sorted(entry.grant["tokens"] for entry in spawned if entry.grant) == [500, 1000, 2000]
        assert await sums(runtime, run, "tokens") == (4000 - 126, 0, 126)
        assert (await run.info()).status is Status.COMPLETED


async def test_an_agent_has_its_own_budget_where_nothing_is_said(every: Stage) -> None:
    """`Agent(budget=)` is what a run of it has; what is said at its start counts before."""
    clerk = Agent("clerk", model=ScriptedModel("hello"), budget=hf.Budget(calls=7))
    async with every.open(clerk) as runtime:
        for given, total in ((None, 7), (hf.Budget(calls=2), 2)):
            run = await runtime.start(clerk, "hi", budget=given)
            assert await run.result(timeout=20) == "hello"
            assert sum(await sums(runtime, run, "calls")) == total


async def test_time_passes_while_nobody_is_charged(every: Stage) -> None:
    """A deadline beside the others is not conserved: nothing of it is set aside, and it rests under its own name."""
    hurdle = Hurdle()
    clerk = Agent("clerk", model=Slow(hurdle, "hello"), settings=SHORT)
    async with every.open(clerk) as runtime:
        run = await runtime.start(clerk, "hi", budget=hf.Budget(tokens=1000, deadline=60))
        await soon(hurdle.reached.wait())
        every.clock.advance(61)
        with pytest.raises(hf.BudgetExceeded) as refused:
            async with asyncio.timeout(20):
                await run.result()
        assert refused.value.channel == "deadline"
        assert (await sums(runtime, run, "tokens"))[1] > 0


@pytest.mark.parametrize("count", range(4))
def test_a_request_is_weighed_as_long_as_it_is_sent(count: int) -> None:
    """What is known of messages that were weighed before gives the very bytes of the whole, whichever they are."""
    messages = [Message("user", (Text("é" * number),)) for number in range(count)]
    request = Request("instructions", messages, settings={"max_tokens": 5})
    assert request_bytes(request) == len(msgspec.json.encode(request))
    assert messages_bytes(messages) == len(msgspec.json.encode(messages))
