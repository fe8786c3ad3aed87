"""A summary in the place of what was said: how a model is asked for one, and when what it gives is none."""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.agent.model import Reply
from holdfast.core.message import USER, Message, Text, Usage

COMPACT: Final = "compact"
"""The name of the step that makes a summary."""
REQUEST: Final = Message(
    USER,
    (
        Text(
            "Summarise this conversation so that somebody who has only your summary can go on with it: what was asked "
            "for, what was found and done, with every name, number and decision that still matters, and what is left "
            "to do. Answer with the summary alone, and call no tool."
        ),
    ),
)
_LEAST_CHARACTERS: Final = 40
_MOST_OF_IT: Final = 0.5
"""What is longer than so much of what it replaces saves too little to be worth what it loses."""


class Degenerate(Exception):
    """What came is no summary: what was said stays as it is."""

    def __init__(self, why: str, usage: Usage) -> None:
        super().__init__(why)
        self.usage = usage


def check_summary(reply: Reply, replaced: Sequence[Message]) -> None:
    """Refuse what cannot stand in the place of these messages.

    Raises:
        Degenerate: it is empty, too short to hold anything, cut off, a call, an echo, or hardly shorter than they are.
    """
    text = reply.message.text.strip()
    if reply.message.calls:
        raise Degenerate("it calls a tool instead", reply.usage)
    if reply.stop in ("length", "refused"):
        raise Degenerate(f"it ended by {reply.stop!r}", reply.usage)
    if len(text) < _LEAST_CHARACTERS:
        raise Degenerate(f"it has {len(text)} characters, which hold nothing", reply.usage)
    if any(text == message.text.strip() for message in replaced):
        raise Degenerate("it repeats a message", reply.usage)
    whole = len(msgspec.json.encode(replaced))
    if len(text.encode()) > whole * _MOST_OF_IT:
        raise Degenerate(f"it has {len(text.encode())} bytes, and what it would replace {whole}", reply.usage)
