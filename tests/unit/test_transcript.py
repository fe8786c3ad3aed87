"""What was said in a run, folded from entries alone."""

import msgspec
import pytest
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.message import ASSISTANT, TOOL, USER, Message, Part, Text, ToolCall, ToolResult
from holdfast.core.status import Effect, Status
from holdfast.core.transcript import Transcript, said_text, transcript

CALLS = [ToolCall("a", "pay"), ToolCall("b", "look")]


def raw(value: object) -> Raw:
    """Return a value as an entry holds it."""
    return Raw(msgspec.json.encode(value))


def started(text: str = "hello") -> e.RunStarted:
    """Return the beginning of a turn."""
    return e.RunStarted(name="clerk", tenant="t", digest="", seed="", root="", raw=raw({"message": text}), seq=1)


def said(seq: int, step: str, role: str, *parts: Part) -> e.MessageAdded:
    """Return a message's entry."""
    return e.MessageAdded(role=role, step=step, raw=raw(list(parts)), seq=seq)


ASKED = said(2, "0/model#1", ASSISTANT, *CALLS)
ENDED = e.RunFinished(status=Status.CANCELLED, seq=9)


def test_results_stand_in_the_order_of_the_calls_whichever_was_there_first() -> None:
    """A quick call that was made second is told second, so that a prompt does not depend on who was quick."""
    second = said(3, "0/gather#1.2/look#1", TOOL, ToolResult("b", "look", "seen"))
    first = said(4, "0/gather#1.1/answer#1", TOOL, ToolResult("a", "pay", "paid"))
    messages = transcript([started(), ASKED, second, first])
    assert messages[-1] == Message(TOOL, (ToolResult("a", "pay", "paid"), ToolResult("b", "look", "seen")))


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (None, "It was not run"),
        (e.StepStarted(step="0/gather#1.1/pay#1", digest="", effect=Effect.ONCE), "outcome is unknown"),
        (e.StepDoubted(step="0/gather#1.1/pay#1", why="timeout"), "outcome is unknown (no answer came in time)"),
        (e.ChildSpawned(step="0/gather#1.1/pay#1", child="", name="", digest=""), "There is no result"),
        (
            e.StepFailed(step="0/gather#1.1/pay#1", digest="", error=e.ErrorInfo("OSError", "no line")),
            "OSError: no line",
        ),
    ],
)
def test_a_call_that_a_turn_left_open_is_answered_by_what_is_known_of_it(entry: e.Entry | None, text: str) -> None:
    """After the end every call has a result, and one that may have happened is not said not to have."""
    messages = transcript([started(), ASKED, *([entry] if entry is not None else []), ENDED])
    paid, looked = messages[-1].parts
    assert isinstance(paid, ToolResult)
    assert isinstance(looked, ToolResult)
    assert paid.error
    assert text in paid.text
    assert looked.text == "It was not run: the turn ended before it."


def test_a_call_of_a_turn_under_way_is_left_open() -> None:
    """Whoever looks meanwhile sees what is there, and no invented result."""
    assert [message.role for message in transcript([started(), ASKED])] == [USER, ASSISTANT]


def test_a_word_from_outside_stands_where_it_was_taken_in() -> None:
    """Steering is a user's message between the others."""
    entries = [started(), said(2, "0/steer#1", USER, Text("blue")), said(3, "0/model#1", ASSISTANT, Text("ok"))]
    assert [message.text for message in transcript(entries)] == ["hello", "blue", "ok"]


def test_a_summary_stands_in_the_place_of_what_it_replaced() -> None:
    """What came before is gone from the messages, what came after is kept."""
    follow = Transcript()
    for entry in (
        started(),
        said(2, "0/model#1", ASSISTANT, Text("one")),
        e.HistoryCompacted(up_to=2, raw=raw("they greeted"), seq=3),
        said(4, "0/model#2", ASSISTANT, Text("two")),
    ):
        follow.take(entry)
    assert [message.text for message in follow.messages] == [
        "Summary of the conversation so far:\n\nthey greeted",
        "two",
    ]
    assert follow.compacted


def test_values_that_stand_in_blobs_are_given_beside_their_entries() -> None:
    """The fold reads nothing itself."""
    follow = Transcript()
    follow.take(msgspec.structs.replace(started(), raw=Raw(b"null")), b'{"message":"from a blob"}')
    assert follow.messages == [Message(USER, (Text("from a blob"),))]


def test_the_result_of_a_run_is_the_text_of_a_message_and_of_nothing_else() -> None:
    """An ending that names another entry is damage, not an empty result."""
    assert bytes(said_text(said(2, "0/model#1", ASSISTANT, Text("a"), Text("b")))) == b'"ab"'
    with pytest.raises(ValueError, match="no message"):
        said_text(started())
