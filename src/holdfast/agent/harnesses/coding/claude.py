"""Claude Code, described: `claude --print` with a line of JSON for each event."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.agent.harnesses.coding.cli import Cli, Event, Heard, How, Named, Over, Spoke, Took
from holdfast.agent.model import CallPiece, ReasoningPiece, TextPiece
from holdfast.core.message import Usage

_BUSY: Final = {408, 409, 425, 429, 503, 529}
_LIMITS: Final = ("error_max_turns", "error_max_budget_usd", "error_max_structured_output_retries")
_SYNTHETIC: Final = "<synthetic>"
"""Whom the program names as the model of what it says itself."""
_NANO: Final = 1_000_000_000


def read(event: Event) -> Iterator[Heard]:
    """Say what an event of Claude Code's stream means; what its own helpers say among themselves is left out."""
    kind = event.get("type")
    if event.get("parent_tool_use_id") is not None:
        return
    if kind == "system" and event.get("subtype") == "init":
        yield Named(str(event.get("session_id", "")))
    elif kind == "stream_event":
        yield from _part(_object(event, "event"), str(event.get("api_message_id") or ""))
    elif kind == "assistant":
        yield from _message(_object(event, "message"))
    elif kind == "result":
        yield _result(event)


def _part(part: Mapping[str, Any], id: str) -> Iterator[Heard]:
    delta, index = _object(part, "delta"), part.get("index", 0)
    match part.get("type"):
        case "message_start":
            message = _object(part, "message")
            begun = _usage(_object(message, "usage"))
            yield Took(str(message.get("id", "")), Usage(input=begun.input, cached=begun.cached))
        case "message_delta" if id:
            yield Took(id, Usage(output=_count(_object(part, "usage"), "output_tokens")))
        case "content_block_start" if (block := _object(part, "content_block")).get("type") == "tool_use":
            yield CallPiece(index, id=str(block.get("id", "")), name=str(block.get("name", "")))
        case "content_block_delta" if delta.get("type") == "text_delta":
            yield TextPiece(str(delta.get("text", "")))
        case "content_block_delta" if delta.get("type") == "thinking_delta":
            yield ReasoningPiece(str(delta.get("thinking", "")))
        case "content_block_delta" if delta.get("type") == "input_json_delta":
            yield CallPiece(index, arguments=str(delta.get("partial_json", "")))


def _message(message: Mapping[str, Any]) -> Iterator[Heard]:
    content = message.get("content")
    if message.get("model") == _SYNTHETIC or not isinstance(content, list):
        return
    text = "".join(str(block.get("text", "")) for block in content if block.get("type") == "text")
    if text:
        yield Spoke(text, str(message.get("model", "")))


def _result(event: Event) -> Over:
    how, text = _how(event), event.get("result")
    errors = event.get("errors")
    why = "; ".join(map(str, errors)) if isinstance(errors, list) and errors else str(text or event.get("subtype"))
    return Over(
        how=how,
        text=text if how == "completed" and isinstance(text, str) else None,
        why="" if how == "completed" else why,
        usage=_usage(_object(event, "usage")),
        totals=_totals(event),
    )


def _how(event: Event) -> How:
    if not event.get("is_error"):
        return "completed"
    if event.get("subtype") in _LIMITS:
        return "limit"
    errors, status = event.get("errors"), event.get("api_error_status")
    found = why_not(" ".join(map(str, errors))) if isinstance(errors, list) else None
    if found is not None:
        return found
    if isinstance(status, int):
        return "busy" if status in _BUSY else "cut" if status >= 500 else "refused"
    return "cut"


def _usage(usage: Mapping[str, Any]) -> Usage:
    counts = [_count(usage, f"{name}input_tokens") for name in ("", "cache_creation_", "cache_read_")]
    known = [count for count in counts if count is not None]
    return Usage(input=sum(known) if known else None, output=_count(usage, "output_tokens"), cached=counts[2])


def _totals(event: Event) -> Usage | None:
    """Return what the program has counted: of the whole session where it took up the count of earlier starts."""
    models, cost = event.get("modelUsage"), event.get("total_cost_usd")
    if not isinstance(models, dict) or not isinstance(cost, int | float):
        return None
    known = [one for one in models.values() if isinstance(one, dict)]
    parts = ("inputTokens", "cacheCreationInputTokens", "cacheReadInputTokens")
    return Usage(
        input=sum(_count(one, part) or 0 for one in known for part in parts),
        output=sum(_count(one, "outputTokens") or 0 for one in known),
        cost=round(cost * _NANO),
    )


def why_not(complaint: str) -> How | None:
    """Say what Claude Code complains of."""
    if "No conversation found with session ID" in complaint:
        return "no_session"
    if "is already in use" in complaint:
        return "session_taken"
    return "refused" if "Please run /login" in complaint or "Invalid API key" in complaint else None


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}


def _count(event: Mapping[str, Any], name: str) -> int | None:
    found = event.get(name)
    return found if isinstance(found, int) else None


CLAUDE_CODE: Final = Cli(
    name="claude-code",
    command=("claude", "--print", "--output-format", "stream-json", "--verbose", "--include-partial-messages"),
    fresh=("--session-id", "{session}"),
    resume=("--resume", "{session}"),
    model=("--model", "{model}"),
    instructions=("--append-system-prompt", "{instructions}"),
    read=read,
    why_not=why_not,
    install="install it with: npm install -g @anthropic-ai/claude-code",
    passes=("ANTHROPIC_*", "CLAUDE_*", "DISABLE_*"),
)
