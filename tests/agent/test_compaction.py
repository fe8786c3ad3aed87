"""Compaction: a summary stands in the place of what was said, if it is one."""

from typing import Any

import pytest

import holdfast as hf
from holdfast.agent.compaction import REQUEST, Degenerate, check_summary
from holdfast.agent.model import Reply, Request
from holdfast.core import entry as e
from holdfast.core.message import ASSISTANT, Message, Part, Text
from holdfast.testing import ScriptedModel, call, every_crash
from tests.agent.lines import LIMIT_SECONDS, entries_of, said_in

SUMMARY = "The user wants page one and two. Page one is read: it is about ships. Page two is left."
LONG = Message(ASSISTANT, (Text("word " * 400),))


@hf.tool(effect="repeat")
def read(page: int) -> str:
    """Read a page."""
    return f"page {page}: " + "ships and the sea " * 40


def agent(summary: Any) -> hf.Agent[str]:
    """Return an agent that reads two pages, and remembers only so much."""

    def line(request: Request) -> Any:
        if request.messages[-1] == REQUEST:
            return summary
        heard = str(request.messages)
        return (
            "both are read" if SUMMARY in heard or "page 2:" in heard else call("read", page=1 + ("page 1:" in heard))
        )

    return hf.Agent("reader", model=ScriptedModel(*[line] * 5), tools=[read], compact_after=200)


async def test_what_was_said_is_replaced_by_its_summary_once_it_is_too_long() -> None:
    """The model goes on from the summary; the journal keeps all, and says up to where it was replaced."""
    async with hf.testing.open(hf.App(reader := agent(SUMMARY))) as runtime:
        run = await runtime.start(reader, "read both")
        assert await run.result(timeout=LIMIT_SECONDS) == "both are read"
        [compacted] = [entry for entry in await entries_of(run) if isinstance(entry, e.HistoryCompacted)]
        said = await said_in(run)
    assert compacted.usage is not None
    assert [message.text.splitlines()[-1] for message in said] == [SUMMARY, "both are read"]


async def test_a_summary_that_is_none_is_refused_and_what_was_said_stays() -> None:
    """An empty summary would lose the conversation: it is recorded as failed, and the turn goes on with all."""
    async with hf.testing.open(hf.App(reader := agent("ok"))) as runtime:
        run = await runtime.start(reader, "read both")
        assert await run.result(timeout=LIMIT_SECONDS) == "both are read"
        entries = await entries_of(run)
        said = await said_in(run)
    failed = [entry.error.type for entry in entries if isinstance(entry, e.StepFailed)]
    assert failed == ["Degenerate"]
    assert said[0].text == "read both"


async def test_a_crash_around_a_summary_leaves_the_transcript_of_an_unbroken_turn() -> None:
    """A summary is made once, and every life goes on from the same one."""
    survived = await every_crash(agent(SUMMARY), "read both")
    assert survived.unbroken.result == "both are read"


@pytest.mark.parametrize(
    ("parts", "stop", "why"),
    [
        ((Text(" "),), "end", "0 characters"),
        ((Text("As an AI"),), "end", "8 characters"),
        ((Text(SUMMARY), call("read", page=1)), "calls", "calls a tool"),
        ((Text(SUMMARY),), "length", "ended by 'length'"),
        (LONG.parts, "end", "repeats a message"),
        ((Text("other " * 400),), "end", "bytes, and what it would replace"),
    ],
)
def test_what_cannot_stand_for_a_conversation_is_no_summary(parts: tuple[Part, ...], stop: str, why: str) -> None:
    """Empty, tiny, cut off, a call, an echo, or as long as what it replaces."""
    with pytest.raises(Degenerate, match=why):
        check_summary(Reply(Message(ASSISTANT, parts), stop=stop), [LONG])


def test_a_short_account_of_a_long_conversation_is_a_summary() -> None:
    """What is left passes."""
    check_summary(Reply(Message(ASSISTANT, (Text(SUMMARY),))), [LONG])
