"""An agent of several phases: one at a time has the word, and the conversation stays in the one last entered."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.agent.compaction import REQUEST
from holdfast.agent.model import Request
from holdfast.core.errors import InvalidInput
from holdfast.core.message import ToolResult
from holdfast.testing import ScriptedHarness, ScriptedModel, call, every_crash
from tests.conversation.conftest import Open
from tests.conversation.test_conversations import WAIT

SUMMARY = "One asked for money and was found to be right; the order is 42, and it is to be paid back."


@hf.tool(effect="repeat")
def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}: broken"


@hf.tool(effect="repeat")
def refund(order: str) -> str:
    """Pay money back."""
    return f"paid for {order}"


def lines(request: Request) -> Any:
    """Say the line that its instructions, the last message and the tools at hand lead to."""
    if request.messages[-1] == REQUEST:
        return SUMMARY
    phase = "refunds" if "Offer money." in request.instructions else "triage"
    results = [part for part in request.messages[-1].parts if isinstance(part, ToolResult)]
    if not results and request.messages[-1].text == "pay!":
        return [call("refund", order="42")]
    if not results and request.messages[-1].text == "go":
        return [call("look", order="42"), call("enter_phase", phase="refunds")]
    told = "; ".join(part.text for part in results)
    return f"{phase} with {','.join(tool.name for tool in request.tools)}: {told} " + "x" * 300


def clerk(model: ScriptedModel | None = None, **options: Any) -> hf.Agent[str]:
    """Return an agent that looks first and pays later."""
    model = model or ScriptedModel(*[lines] * 9)
    triage = hf.Agent("triage", model=model, instructions="Ask what is wrong.", tools=[look])
    money = hf.Agent("refunds", model=model, instructions=lambda: "Offer money.", tools=[refund], description="pays")
    return hf.Agent("clerk", phases=[triage, money], instructions="Be kind.", **options)


async def say(chat: hf.Conversation, text: str) -> str:
    """Send a message and return the answer."""
    return str(await (await chat.send(text)).result(timeout=WAIT)).rstrip(" x")


async def test_a_conversation_stays_in_the_phase_that_was_entered(opened: Open) -> None:
    """In the same turn, in the next one, and in a process that has never seen the conversation."""
    agent = clerk()
    async with opened(agent) as runtime:
        chat = runtime.conversation("chat", agent)
        assert await chat.phase() == ""
        assert await say(chat, "hello") == "triage with look,enter_phase:"
        went = "refunds with refund,enter_phase: order 42: broken; The phase is refunds now."
        assert await say(chat, "go") == went
        assert await chat.phase() == "refunds"
    again = clerk()
    async with opened(again) as runtime:
        chat = runtime.conversation("chat", again)
        assert await say(chat, "hello") == "refunds with refund,enter_phase:"


async def test_a_phase_outlives_the_summary_that_stands_for_its_entering(opened: Open) -> None:
    """What was compacted away says no more which phase it is, so the summary's entry does."""
    agent = clerk(compact_after=200)
    async with opened(agent) as runtime:
        chat = runtime.conversation("chat", agent)
        for text in ("go", "hello", "hello"):
            assert (await say(chat, text)).startswith("refunds with refund")
        assert "user: Summary" in [f"{message.role}: {message.text[:7]}" for message in await chat.history()]
    again = clerk(compact_after=200)
    async with opened(again) as runtime:
        chat = runtime.conversation("chat", again)
        assert await chat.phase() == "refunds"
        assert (await say(chat, "hello")).startswith("refunds with refund")


async def test_whichever_write_a_worker_dies_around_the_run_goes_on_in_its_phase() -> None:
    """A phase is what the messages say, and those are recorded."""
    results: list[Any] = []
    await every_crash(clerk(), "go", check=lambda ended: results.append(ended.result))
    assert len(results) > 9
    assert {result[:19] for result in results} == {"refunds with refund"}


async def test_a_tool_of_another_phase_cannot_be_called(opened: Open) -> None:
    """Who has not the word does nothing, whatever the model remembers."""
    agent = clerk()
    async with opened(agent) as runtime:
        chat = runtime.conversation("chat", agent)
        assert "There is no tool called 'refund'" in await say(chat, "pay!")


async def test_a_phase_that_the_agent_has_no_more_leads_back_to_the_first(opened: Open) -> None:
    """A conversation goes on though its agent was rewritten."""
    agent = clerk()
    async with opened(agent) as runtime:
        await say(runtime.conversation("chat", agent), "go")
    model = ScriptedModel(*[lines] * 9)
    renamed = [hf.Agent(name, model=model, instructions="Ask.") for name in ("first", "second")]
    other = hf.Agent("clerk", phases=renamed)
    async with opened(other) as runtime:
        chat = runtime.conversation("chat", other)
        assert await say(chat, "hello") == "triage with enter_phase:"


MODEL = ScriptedModel()
ONE, TWO = hf.Agent("one", model=MODEL), hf.Agent("two", model=MODEL)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"phases": [ONE]}, "at least two"),
        ({"phases": [ONE, ONE]}, "at least two"),
        ({"phases": [ONE, hf.Agent("one", model=MODEL)]}, "two phases are called 'one'"),
        ({"phases": [ONE, "two"]}, "'two' is none"),
        ({"phases": ONE}, "phases= is a list"),
        ({"phases": [ONE, TWO], "model": MODEL}, "each of its phases has one"),
        ({"phases": [ONE, hf.Agent("out", model=MODEL, output=int)]}, "'out' has output="),
        ({"phases": [ONE, hf.Agent("dear", model=MODEL, budget=hf.Budget(usd=1))]}, "'dear' has budget="),
        ({"phases": [ONE, hf.Agent("deep", phases=[ONE, TWO])]}, "'deep' has phases itself"),
        ({"phases": [ONE, TWO], "tools": [hf.tool(name="enter_phase")(look.function)]}, "cannot be called"),
        ({"phases": [ONE, hf.Agent("same", model=MODEL, tools=[look])], "tools": [look]}, "a tool called 'look'"),
        ({"phases": [ONE, hf.Agent("else", harness=ScriptedHarness())]}, "'else' has a harness"),
        ({"phases": [ONE, TWO], "harness": ScriptedHarness()}, "only one of them"),
        ({}, "a model=, a harness= or phases="),
    ],
)  # fmt: skip
def test_phases_that_mean_nothing_are_refused(options: Any, said: str) -> None:
    """When the agent is described, and not when its first run is under way."""
    with pytest.raises(InvalidInput, match=said):
        hf.Agent("clerk", **options)
