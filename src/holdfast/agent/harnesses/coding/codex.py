"""Codex, described: `codex exec --json` with a line of JSON for each event."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from holdfast.agent.harnesses.coding.cli import Cli, Event, Heard, How, Named, Over, Spoke
from holdfast.agent.model import CallPiece, ReasoningPiece, TextPiece
from holdfast.core.codec import encode
from holdfast.core.message import Usage

_STATUS: Final = re.compile(r"status:? (\d{3})")
_BUSY: Final = {429, 503, 529}
_UNSURE: Final = {408, 409, 425}


def read(event: Event) -> Iterator[Heard]:
    """Say what an event of Codex's stream means."""
    match event.get("type"):
        case "thread.started":
            yield Named(str(event.get("thread_id", "")))
        case "item.started" | "item.completed" as kind:
            yield from _item(_object(event, "item"), done=kind == "item.completed")
        case "turn.completed":
            # Of the whole session, not of the turn.
            yield Over(how="completed", totals=_usage(_object(event, "usage")))
        case "turn.failed":
            why = str(_object(event, "error").get("message", "it does not say why"))
            yield Over(how=_how(why), why=why)


def _item(item: Mapping[str, Any], *, done: bool) -> Iterator[Heard]:
    kind, text = item.get("type"), str(item.get("text", ""))
    if kind == "agent_message":
        if done:
            yield TextPiece(text)
            yield Spoke(text)
    elif kind == "reasoning":
        if done:
            yield ReasoningPiece(text)
    elif kind in _DETAILS and done == (kind == "file_change"):
        # A call is told when it begins; that files were changed, when they were.
        details = {name: item[name] for name in _DETAILS[kind] if name in item}
        name = str(item.get("tool") or kind)
        yield CallPiece(0, id=str(item.get("id", "")), name=name, arguments=encode(details).decode())


_DETAILS: Final[Mapping[Any, tuple[str, ...]]] = {
    "command_execution": ("command",),
    "file_change": ("changes",),
    "mcp_tool_call": ("server", "arguments"),
    "web_search": ("query",),
}
"""What is told of a thing that Codex does, by its kind."""


def _how(why: str) -> How:
    found = _STATUS.search(why)
    if found is not None:
        status = int(found[1])
        if status in _BUSY:
            return "busy"
        return "refused" if 400 <= status < 500 and status not in _UNSURE else "cut"
    return "refused" if "invalid_request_error" in why else "cut"


def _usage(usage: Mapping[str, Any]) -> Usage:
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens", "cached_input_tokens")]
    return Usage(*(count if isinstance(count, int) else None for count in counts))


def why_not(complaint: str) -> How | None:
    """Say what Codex complains of."""
    return "no_session" if "no rollout found for thread id" in complaint else None


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = event.get(name)
    return found if isinstance(found, dict) else {}


CODEX: Final = Cli(
    name="codex",
    command=("codex", "exec"),
    resume=("resume", "{session}"),
    model=("--model", "{model}"),
    instructions=("--config", "developer_instructions={instructions:json}"),
    last=("--json", "--skip-git-repo-check", "-"),
    read=read,
    why_not=why_not,
    install="install it with: npm install -g @openai/codex",
    passes=("OPENAI_*", "CODEX_*"),
)
