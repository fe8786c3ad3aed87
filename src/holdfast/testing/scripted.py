"""A model that says what a test wrote down for it."""

from collections.abc import Sequence
from inspect import isawaitable
from typing import Any

from holdfast.agent.model import CallPiece, Reply, Request, Say, TextPiece
from holdfast.core.codec import encode
from holdfast.core.errors import InvalidInput
from holdfast.core.message import ASSISTANT, Message, Part, Text, ToolCall, Usage

Line = Any
"""Text; a call; a list of parts; a Reply; an exception to raise; or a function of the request that returns one."""


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Return a call of a tool, as a model would write it."""
    return ToolCall(id="", name=name, arguments=encode(arguments).decode())


class ScriptedModel:
    """Says its lines in order: the n-th to whoever has heard n-1 messages of the assistant.

    So which line comes follows from what was said, and a run that goes on in another process, or after a crash, hears
    the line that it would have heard. A line is a text, a `call(...)`, a list of texts and calls, a `Reply`, or a
    function of the request that returns one of them. An exception is raised; a tuple is one line for each attempt.
    """

    def __init__(self, *lines: Line, name: str = "scripted:model") -> None:
        self._lines, self.name = lines, name
        self.requests: list[Request] = []
        """What it was asked, by whoever was in this process."""
        self._attempts: dict[str, int] = {}

    @property
    def lane(self) -> str:
        """It has no rate limit to share."""
        return self.name

    async def ask(self, request: Request, say: Say) -> Reply:
        """Say the line that comes next, word by word."""
        self.requests.append(request)
        heard = sum(message.role == ASSISTANT for message in request.messages)
        if heard >= len(self._lines):
            raise InvalidInput(f"the scripted model has {len(self._lines)} lines and was asked for line {heard + 1}")
        line = self._lines[heard]
        if isinstance(line, tuple):
            line = line[min(self._attempt(request), len(line)) - 1]
        if callable(line) and not isinstance(line, type):
            line = line(request)
            line = await line if isawaitable(line) else line
        reply = _reply(line, request, heard)
        _tell(reply.message.parts, say)
        return reply

    def _attempt(self, request: Request) -> int:
        attempt = self._attempts[request.key] = self._attempts.get(request.key, 0) + 1
        said = request.key.rpartition(".")[2]
        return int(said) if said.isdecimal() else attempt


def _reply(line: Line, request: Request, heard: int) -> Reply:
    if isinstance(line, BaseException):
        raise line
    if isinstance(line, Reply):
        return line
    lines = line if isinstance(line, list) else [line]
    parts = [_part(one, f"call-{heard + 1}-{place}") for place, one in enumerate(lines, 1)]
    usage = Usage(input=_size(request), output=sum(len(str(one)) for one in parts))
    calls = any(isinstance(part, ToolCall) for part in parts)
    return Reply(Message(ASSISTANT, tuple(parts)), usage, "calls" if calls else "end", "scripted")


def _part(one: Any, call_id: str) -> Part:
    if isinstance(one, str):
        return Text(one)
    if isinstance(one, ToolCall):
        return one if one.id else ToolCall(call_id, one.name, one.arguments)
    part: Part = one
    return part


def _size(request: Request) -> int:
    return sum(len(message.text) for message in request.messages)


def _tell(parts: Sequence[Part], say: Say) -> None:
    index = 0
    for part in parts:
        if isinstance(part, Text):
            for word in part.text.split(" "):
                say(TextPiece(f"{word} "))
        elif isinstance(part, ToolCall):
            say(CallPiece(index, part.id, part.name, part.arguments))
            index += 1
