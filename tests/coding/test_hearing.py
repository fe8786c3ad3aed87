"""What the lines mean that Claude Code 2.1.326 and Codex 0.169.0 wrote, shortened but not changed."""

import json
from typing import Any

import pytest

from holdfast.agent.harnesses.coding.claude import CLAUDE_CODE
from holdfast.agent.harnesses.coding.cli import Named, Over
from holdfast.agent.harnesses.coding.codex import CODEX
from holdfast.agent.harnesses.coding.hearing import Hearing
from holdfast.core.message import Usage
from holdfast.harness import Cli
from holdfast.models import CallPiece, TextPiece

LAUNCHED = {"type": "holdfast.launched"}


def heard(cli: Cli, *events: Any) -> tuple[Hearing, list[Any]]:
    """Return what came of some events, and what others are told of them at once."""
    hearing = Hearing(cli.read)
    told = [one for event in (LAUNCHED, *events) for one in hearing.hear(json.dumps(event).encode())]
    return hearing, told


def part(event: Any, parent: str | None = None) -> Any:
    """Return a part of an answer as Claude Code tells it."""
    return {"type": "stream_event", "event": event, "parent_tool_use_id": parent, "api_message_id": "msg_1"}


def result(*, cost: float, usage: tuple[int, int], totals: tuple[int, int], **more: Any) -> Any:
    """Return the last event of a turn of Claude Code."""
    own = {"input_tokens": usage[0], "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
           "output_tokens": usage[1]}  # fmt: skip
    models = {"claude-sonnet-4-5": {"inputTokens": totals[0], "outputTokens": totals[1], "cacheReadInputTokens": 0}}
    return {"type": "result", "subtype": "success", "is_error": False, "result": "All done.", "session_id": "s-1",
            "total_cost_usd": cost, "usage": own, "modelUsage": models, **more}  # fmt: skip


def test_what_claude_code_says_and_does_is_shown_and_its_helpers_are_not() -> None:
    """Calls are numbered through the turn, and what a helper says to its caller is no word of the turn's."""
    tool = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    hearing, told = heard(
        CLAUDE_CODE,
        {"type": "system", "subtype": "init", "session_id": "s-1", "tools": ["Task", "Bash"]},
        part({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "I "}}),
        part({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hidden"}}, "toolu_0"),
        part({"type": "content_block_start", "index": 1, "content_block": tool}),
        part({"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}}),
        part({"type": "content_block_start", "index": 1, "content_block": {**tool, "id": "toolu_2"}}),
        {"type": "assistant", "parent_tool_use_id": None,
         "message": {"model": "claude-sonnet-4-5", "content": [{"type": "text", "text": "I look."}]}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}},
    )  # fmt: skip
    assert told == [
        Named("s-1"),
        TextPiece("I "),
        CallPiece(0, id="toolu_1", name="Bash"),
        CallPiece(0, arguments="{}"),
        CallPiece(1, id="toolu_2", name="Bash"),
    ]
    assert (hearing.session, hearing.text, hearing.model) == ("s-1", "I look.", "claude-sonnet-4-5")
    assert not hearing.is_final


@pytest.mark.parametrize(
    ("more", "how"),
    [
        ({"is_error": True, "api_error_status": 401, "result": "API Error: 401"}, "refused"),
        ({"is_error": True, "api_error_status": 400, "result": "API Error: 400"}, "refused"),
        ({"is_error": True, "api_error_status": 429, "result": "API Error: 429"}, "busy"),
        ({"is_error": True, "api_error_status": 529, "result": "API Error: 529"}, "busy"),
        ({"is_error": True, "api_error_status": 500, "result": "API Error: 500"}, "cut"),
        ({"is_error": True, "subtype": "error_max_turns", "errors": ["Reached maximum number of turns (1)"]}, "limit"),
        ({"is_error": True, "subtype": "error_max_budget_usd", "errors": ["Reached maximum budget"]}, "limit"),
        ({"is_error": True, "subtype": "error_during_execution",
          "errors": ["No conversation found with session ID: 1"]}, "no_session"),
        ({"is_error": True, "subtype": "error_during_execution"}, "cut"),
        ({}, "completed"),
    ],
)  # fmt: skip
def test_how_a_turn_of_claude_code_ended_is_not_taken_for_another_end(more: dict[str, Any], how: str) -> None:
    """An error whose subtype is `success` is none, and a cap is no completion."""
    hearing, _ = heard(CLAUDE_CODE, result(cost=0, usage=(0, 0), totals=(0, 0), **more))
    assert hearing.over is not None
    assert hearing.over.how == how
    assert hearing.is_final == (how in ("completed", "limit"))
    assert (hearing.over.text == "All done.") == (how == "completed")


@pytest.mark.parametrize(
    ("before", "event", "cost"),
    [
        (None, result(cost=0.000255, usage=(40, 9), totals=(40, 9)), 255_000),
        # A helper's tokens are in the totals alone; a new session's cost is its own all the same.
        (None, result(cost=0.0005, usage=(40, 9), totals=(90, 19)), 500_000),
        # Resumed, it went on counting from where it was.
        (Usage(40, 9, cost=255_000), result(cost=0.000345, usage=(20, 2), totals=(60, 11)), 90_000),
        # Resumed after it was killed, it counts anew.
        (Usage(40, 9, cost=255_000), result(cost=0.00009, usage=(20, 2), totals=(20, 2)), 90_000),
        # Resumed, and a helper was paid: nobody knows from where it counts.
        (Usage(40, 9, cost=255_000), result(cost=0.0006, usage=(20, 2), totals=(99, 33)), None),
    ],
)
def test_the_cost_of_a_turn_of_claude_code_is_known_or_unknown_and_never_the_sessions(
    before: Usage | None, event: Any, cost: int | None
) -> None:
    """Its `total_cost_usd` is the session's in one start and the turn's in another."""
    hearing, _ = heard(CLAUDE_CODE, event)
    own = event["usage"]
    assert hearing.usage(before) == Usage(own["input_tokens"], own["output_tokens"], 0, cost)


def test_what_a_killed_start_took_is_counted_as_far_as_it_was_said() -> None:
    """The answer that was under way has an unknown length: so has the whole."""
    begun = {"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 20, "output_tokens": 1}}}
    done = part({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 7}})
    last = result(cost=0.00009, usage=(20, 2), totals=(20, 2))
    hearing, _ = heard(CLAUDE_CODE, part(begun), done, LAUNCHED, last)
    assert hearing.usage(None) == Usage(40, 9, None, None)
    hearing, _ = heard(CLAUDE_CODE, part(begun), LAUNCHED, last)
    assert hearing.usage(None) == Usage(40, None, None, None)


def test_codex_counts_through_its_session() -> None:
    """What a turn took is what came to the totals of the turn before."""
    usage = {"input_tokens": 60, "cached_input_tokens": 10, "cache_write_input_tokens": 0, "output_tokens": 11}
    command = {"id": "item_1", "type": "command_execution", "command": "ls"}
    hearing, told = heard(
        CODEX,
        {"type": "thread.started", "thread_id": "t-1"},
        {"type": "turn.started"},
        {"type": "item.completed", "item": {"id": "item_0", "type": "error", "message": "Model metadata not found."}},
        {"type": "item.started", "item": {**command, "exit_code": None}},
        {"type": "item.completed", "item": {**command, "exit_code": 0}},
        {"type": "item.completed", "item": {"id": "item_2", "type": "agent_message", "text": "Second turn."}},
        {"type": "turn.completed", "usage": usage},
    )  # fmt: skip
    call = CallPiece(0, id="item_1", name="command_execution", arguments='{"command":"ls"}')
    assert told == [Named("t-1"), call, TextPiece("Second turn.")]
    assert hearing.text == "Second turn."
    assert hearing.is_final
    before = Usage(input=40, output=9, cached=0)
    assert hearing.usage(before) == Usage(input=20, output=2, cached=10)
    assert hearing.usage(None) == hearing.totals(before) == Usage(input=60, output=11, cached=10)


@pytest.mark.parametrize(
    ("why", "how"),
    [
        ("unexpected status 401 Unauthorized: it says 401, url: http://127.0.0.1:1/v1/responses", "refused"),
        ('{"error": {"message": "it says 400", "type": "invalid_request_error", "code": null}}', "refused"),
        ("exceeded retry limit, last status: 429 Too Many Requests", "busy"),
        ("unexpected status 529 <unknown status code>: it says 529", "busy"),
        ("unexpected status 500: it broke", "cut"),
        ("stream disconnected before completion: Transport error: network error", "cut"),
    ],
)
def test_why_a_turn_of_codex_failed_says_whether_it_is_worth_another_try(why: str, how: str) -> None:
    """It gives up with words only; a reconnection that it tells of is no end."""
    hearing, _ = heard(
        CODEX,
        {"type": "error", "message": f"Reconnecting... 1/1 ({why})"},
        {"type": "turn.failed", "error": {"message": why}},
    )
    assert hearing.over == Over(how=how, why=why)  # type: ignore[arg-type]
    assert not hearing.is_final


@pytest.mark.parametrize("line", [b"", b"{", b"null", b"[]", b'"x"', b"\xff{}", b"{}", b'{"type": 7}', b'{"type":"x"}'])
@pytest.mark.parametrize("cli", [CLAUDE_CODE, CODEX], ids=lambda cli: cli.name)
def test_what_is_no_event_says_nothing(cli: Cli, line: bytes) -> None:
    """Neither half a line nor a new kind of event is an error."""
    assert Hearing(cli.read).hear(line) == []


@pytest.mark.parametrize("cli", [CLAUDE_CODE, CODEX], ids=lambda cli: cli.name)
@pytest.mark.parametrize("kind", ["system", "stream_event", "assistant", "result", "thread.started", "item.started",
                                  "item.completed", "turn.completed", "turn.failed"])  # fmt: skip
@pytest.mark.parametrize("rest", [{}, {"event": 1, "message": [], "item": "x", "usage": None, "error": 3, "errors": 4}])
def test_an_event_of_another_form_than_it_has_today_breaks_nothing(cli: Cli, kind: str, rest: dict[str, Any]) -> None:
    """Programs change; a run does not fail because a field did."""
    Hearing(cli.read).hear(json.dumps({"type": kind, "subtype": "init", **rest}).encode())


def test_a_command_line_has_every_word_in_its_place() -> None:
    """Words are given as they are, whatever is in them."""
    text = 'say "so"'
    words = CODEX.words(
        session="t-1", resumes=True, model="m", instructions=text, prompt="p", more=["--config", "a={session}"]
    )
    assert words == [
        "codex", "exec", "resume", "t-1", "--model", "m", "--config", r'developer_instructions="say \"so\""',
        "--config", "a={session}", "--json", "--skip-git-repo-check", "-",
    ]  # fmt: skip
    assert CODEX.given("p") == b"p"
    fresh = CLAUDE_CODE.words(session="s-1", resumes=False, model=None, instructions="", prompt="p")
    assert fresh[-2:] == ["--session-id", "s-1"]
    assert (CLAUDE_CODE.chooses, CODEX.chooses) == (True, False)
