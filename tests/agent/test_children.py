"""A call that is a run of its own is told by what is recorded of it, whatever has become of the tool."""

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import entry as e
from holdfast.testing import ScriptedModel, call
from tests.agent.lines import LIMIT_SECONDS, asked, entries_of, results_of, said_in


@hf.durable
async def price(ctx: hf.Context, order: str) -> str:
    """Say what an order costs."""
    return f"{order} costs 7"


@hf.durable(name="price")
async def price_in(ctx: hf.Context, order: str, currency: str) -> str:
    """Say what an order costs, in a currency that must be said."""
    return f"{order} costs 7 {currency}"


@hf.durable(name="price")
async def price_as_number(ctx: hf.Context, order: str) -> int:
    """Say what an order costs, as a number."""
    return 7


@hf.durable(aliases=["price"])
async def cost(ctx: hf.Context, order: str) -> str:
    """Say what an order costs, under another name."""
    return f"{order} costs 7"


@hf.tool(needs_approval=True, effect="repeat")
async def close(order: str) -> str:
    """Close an order."""
    return f"closed {order}"


def _clerk(*tools: Any) -> hf.Agent[str]:
    model = ScriptedModel(call("look_up", order="a1"), call("close", order="a1"), "done")
    return hf.Agent("clerk", model=model, tools=[*tools, close])


def _tool(of: Any) -> Any:
    return hf.tool(name="look_up")(of)


@pytest.mark.parametrize(
    "tools",
    [
        [_tool(price_in)],
        [_tool(price_as_number)],
        [_tool(cost)],
        [],
        [hf.tool(name="look_up", effect="repeat")(lambda order: order)],
    ],
    ids=["takes more", "returns something else", "renamed", "gone", "no run any more"],
)
async def test_a_child_that_was_told_stays_told_when_its_tool_changes(tmp_path: Path, tools: list[Any]) -> None:
    """Neither its parameters nor its name, its type or its being there are asked for again."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.testing.open(hf.App(clerk := _clerk(_tool(price)), price), store=store) as runtime:
        run = await runtime.start(clerk, "what is a1?")
        await asked(run)
    async with hf.testing.open(hf.App(clerk := _clerk(*tools)), store=store) as runtime:
        [question] = await runtime.questions()
        await runtime.answer(question, True)
        again = await runtime.get(run.id, of=clerk)
        assert await again.result(timeout=LIMIT_SECONDS) == "done"
        assert [result.text for result in results_of(await said_in(again))] == ["a1 costs 7", "closed a1"]


@pytest.mark.parametrize(
    ("other", "said"), [(price, "a1 costs 7"), (price_in, "currency"), (cost, "a1 costs 7")],
    ids=["the same", "takes more", "renamed"],
)  # fmt: skip
async def test_a_fork_behind_the_start_of_a_child_starts_its_own_or_tells_why_not(
    tmp_path: Path, other: Any, said: str
) -> None:
    """The child of another run is not waited for; a tool that cannot be called so any more is told to the model."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.testing.open(hf.App(clerk := _clerk(_tool(price)), price), store=store) as runtime:
        run = await runtime.start(clerk, "what is a1?")
        await asked(run)
        [spawned] = [entry.seq for entry in await entries_of(run) if isinstance(entry, e.ChildSpawned)]
    async with hf.testing.open(hf.App(clerk := _clerk(_tool(other)), other), store=store) as runtime:
        fork = await (await runtime.get(run.id, of=clerk)).fork(at=spawned)
        await asked(fork)
    async with hf.testing.open(hf.App(clerk := _clerk(_tool(other)), other), store=store) as runtime:
        [question] = [one for one in await runtime.questions() if one.run == fork.id]
        await runtime.answer(question, True)
        again = await runtime.get(fork.id, of=clerk)
        assert await again.result(timeout=LIMIT_SECONDS) == "done"
        assert said in results_of(await said_in(again))[0].text
