"""What was said in a message, in a few words."""

from typing import Final, NamedTuple

import msgspec

from holdfast import events as ev
from holdfast.cli.saying import by
from holdfast.cli.surface import shown
from holdfast.core.errors import InvalidValue
from holdfast.core.message import ASSISTANT, Message, Reasoning, ToolResult
from holdfast.core.transcript import read_message

_MOST: Final = 80


class Gist(NamedTuple):
    """A message for a list of many: a sign, its colour, and words."""

    sign: str
    style: str
    words: str


def gist_of(event: ev.MessageAdded) -> Gist:
    """Return the gist of a message."""
    if event.blob is not None:
        return Gist("✓", "green", f"{event.blob.size:,} bytes")
    try:
        message = read_message(event)
    except InvalidValue:
        return Gist("✗", "red", "it cannot be read")
    if event.role == ASSISTANT:
        return Gist("✓", "green", " → ".join(filter(None, [cut(message.text, _MOST), _calls(message)])))
    result = next((part for part in message.parts if isinstance(part, ToolResult)), None)
    if result is not None:
        return Gist(*(("✗", "red") if result.error else ("✓", "green")), cut(result.text, _MOST))
    return Gist("»", "blue", f"{cut(message.text, _MOST)}{by(event.by)}")


def _calls(message: Message) -> str:
    if message.calls:
        return ", ".join(shown(call.name) for call in message.calls)
    thought = any(isinstance(part, Reasoning) for part in message.parts)
    return "" if message.text else "it only thought" if thought else "it said nothing"


def cut(text: str, most: int) -> str:
    """Return text on one line, cut to a length."""
    text = shown(text.strip())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def message_of(value: object, role: str) -> Message:
    """Return the message that an event's value stands for."""
    return msgspec.convert({"role": role, "parts": value}, Message)
