"""The chat completions format: a request as bytes, and a reply put together from its chunks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from holdfast.agent.model import CallPiece, ModelCut, Piece, ReasoningPiece, Reply, Request, TextPiece, ToolSpec
from holdfast.agent.providers import faults
from holdfast.agent.providers.whole import whole_calls
from holdfast.core.codec import NULL
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

DONE: Final = "[DONE]"


def body_of(request: Request, *, model: str, provider: str, stream: bool) -> bytes:
    """Return the body of a request; a request that goes on from another one begins with the same bytes."""
    body: dict[str, Any] = {"model": model, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.output is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "output", "schema": request.output}}
    body |= {name: request.settings[name] for name in sorted(request.settings)}
    # The messages come last: what is added to a conversation then changes none of the bytes before it.
    body["messages"] = [*_system(request.instructions), *_messages(request.messages, provider)]
    return msgspec.json.encode(body)


def _tool(tool: ToolSpec) -> Mapping[str, Any]:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
    }


def _system(instructions: str) -> Sequence[Mapping[str, Any]]:
    return [{"role": "system", "content": instructions}] if instructions else []


def _messages(messages: Sequence[Message], provider: str) -> Iterator[Mapping[str, Any] | Raw]:
    for message in messages:
        if message.native != NULL and message.provider == provider:
            yield message.native
        elif message.role == "assistant":
            yield _assistant(message)
        elif message.role == "tool":
            yield from (_result(part) for part in message.parts if isinstance(part, ToolResult))
        else:
            yield {"role": "user", "content": _content(message)}


def _assistant(message: Message) -> Mapping[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if message.calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    elif said["content"] is None:
        said["content"] = ""
    return said


def _result(part: ToolResult) -> Mapping[str, Any]:
    return {"role": "tool", "tool_call_id": part.id, "content": part.text}


def _content(message: Message) -> str | list[Mapping[str, Any]]:
    if all(isinstance(part, Text) for part in message.parts):
        return message.text
    return [_content_part(part) for part in message.parts if isinstance(part, Text | Media)]


def _content_part(part: Text | Media) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.url is None:
        raise InvalidInput(f"media of type {part.mime} has no address; give it as a data: URL")
    if part.mime.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": part.url}}
    return {"type": "file", "file": {"file_data": part.url}}


class _Function(Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    index: int | None = None
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)
    extra_content: Any = UNSET


class _Delta(Struct):
    content: str | list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Chunk(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    model: str = ""
    error: Any = UNSET


_chunks: Final = msgspec.json.Decoder(_Chunk)
_STOPS: Final = {"length": "length", "content_filter": "refused", "tool_calls": "calls", "function_call": "calls"}


@dataclass(slots=True)
class _Calling:
    """A call as far as it has come."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: Any = UNSET


@dataclass(slots=True)
class Assembly:
    """A reply as far as it has come."""

    asked: str
    """Which model was asked, for what is told of a failure."""
    provider: str
    key: str = field(default="", repr=False)
    """What is told of no failure."""
    done: bool = False
    usage: Usage | None = None
    _text: list[str] = field(default_factory=list)
    _reasoning: list[str] = field(default_factory=list)
    _details: list[Any] = field(default_factory=list)
    _calls: list[_Calling] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)
    _finish: str | None = None
    _refused: bool = False
    _model: str = ""

    @property
    def begun(self) -> bool:
        """Whether any of it was generated."""
        return bool(self._text or self._reasoning or self._calls)

    def take(self, data: str | bytes) -> Iterator[Piece]:
        """Take one chunk in, and yield what it adds.

        Raises:
            ModelError: the provider says that it failed.
            msgspec.DecodeError: it is no chunk.
        """
        if self.done:
            return
        if data == DONE:
            self.done = True
            return
        chunk = _chunks.decode(data)
        if chunk.error is not UNSET and chunk.error is not None:
            raise faults.in_stream(chunk.error, model=self.asked, begun=self.begun, usage=self.usage, key=self.key)
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            self.usage = _usage(chunk.usage)
        for choice in (chunk.choices or ())[:1]:
            self._finish = choice.finish_reason or self._finish
            if (delta := choice.delta or choice.message) is not None:
                yield from self._grow(delta)

    def _grow(self, delta: _Delta) -> Iterator[Piece]:
        if thought := delta.reasoning_content or delta.reasoning:
            self._reasoning.append(thought)
            yield ReasoningPiece(thought)
        self._details += delta.reasoning_details or ()
        self._refused = self._refused or bool(delta.refusal)
        if text := _said(delta.content) or delta.refusal:
            self._text.append(text)
            yield TextPiece(text)
        for call in delta.tool_calls or ():
            yield self._grow_call(call)

    def _grow_call(self, call: _Call) -> Piece:
        place = self._place(call)
        growing = self._calls[place]
        name, more = call.function.name or "", call.function.arguments or ""
        # Some endpoints repeat id and name in every chunk; they are said once.
        began = CallPiece(
            index=place,
            id="" if growing.id else call.id or "",
            name="" if growing.name else name,
            arguments=more,
        )
        growing.id, growing.name = growing.id or call.id or "", growing.name or name
        growing.arguments += more
        growing.extra = call.extra_content if call.extra_content is not UNSET else growing.extra
        return began

    def _place(self, call: _Call) -> int:
        """Return which call this is more of; an endpoint that does not number them starts each with its id."""
        if call.index is None:
            if not self._calls or (call.id and call.id != self._calls[-1].id):
                self._calls.append(_Calling())
            return len(self._calls) - 1
        if call.index not in self._places:
            self._places[call.index] = len(self._calls)
            self._calls.append(_Calling())
        return self._places[call.index]

    def reply(self) -> Reply:
        """Return the whole reply.

        Raises:
            ModelCut: it is not whole.
            ModelRefused: its length was used up within a call.
        """
        if not self.done or self._finish in (None, "error"):
            raise ModelCut(f"{self.asked} ended its stream before its answer", usage=self.usage or Usage())
        stop = _STOPS.get(self._finish, "end")
        came = [ToolCall(call.id, call.name, call.arguments) for call in self._calls]
        calls = whole_calls(came, short=stop == "length", asked=self.asked, usage=self.usage)
        if self._refused:
            stop = "refused"
        elif calls and stop == "end":
            stop = "calls"
        parts: list[Part] = [Reasoning("".join(self._reasoning))] if self._reasoning else []
        parts += [Text("".join(self._text))] if self._text else []
        message = Message("assistant", (*parts, *calls), provider=self.provider)
        message = msgspec.structs.replace(message, native=self._native(message))
        return Reply(message=message, usage=self.usage or Usage(), stop=stop, model=self._model)

    def _native(self, message: Message) -> Raw:
        """Return the provider's own form where it has something that only it understands and wants back."""
        extras = {call.id: call.extra for call in self._calls if call.extra is not UNSET}
        if not self._details and not extras:
            return NULL
        own = dict(_assistant(message))
        if self._details:
            own["reasoning_details"] = self._details
        for call in own.get("tool_calls", ()):
            if call["id"] in extras:
                call["extra_content"] = extras[call["id"]]
        return Raw(msgspec.json.encode(own))


def _said(content: str | list[Any] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text")
    return "".join(text for text in texts if isinstance(text, str))


def _usage(told: _Usage) -> Usage:
    details = told.prompt_tokens_details
    return Usage(
        input=told.prompt_tokens,
        output=told.completion_tokens,
        cached=details.cached_tokens if details is not None else None,
    )
