"""Anthropic's messages format: a request as its SDK takes it, and a reply put together from its events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from holdfast.agent.model import CallPiece, ModelCut, Piece, ReasoningPiece, Reply, Request, TextPiece
from holdfast.agent.providers.whole import whole_calls
from holdfast.core.codec import NULL
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

PROVIDER: Final = "anthropic"
_MAX_TOKENS: Final = 8192
"""What is asked for where nothing is said, since the format wants a number."""


def params_of(request: Request, *, model: str) -> dict[str, Any]:
    """Return what the SDK is to send; a request that goes on from another one begins with the same bytes."""
    settings = {"max_tokens": _MAX_TOKENS, **request.settings}
    params: dict[str, Any] = {"model": model, "max_tokens": settings.pop("max_tokens")}
    if request.instructions:
        params["system"] = request.instructions
    if request.tools:
        params["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in request.tools
        ]
    if request.output is not None:
        params["output_config"] = {"format": {"type": "json_schema", "schema": request.output}}
    params["messages"] = list(_messages(request.messages))
    # As they are, whether this version of the SDK has heard of them or not.
    params["extra_body"] = {name: settings[name] for name in sorted(settings)} or None
    return params


def _messages(messages: Sequence[Message]) -> Iterator[Mapping[str, Any]]:
    results: list[Mapping[str, Any]] = []
    for message in messages:
        if message.role == "tool":
            results += [_result(part) for part in message.parts if isinstance(part, ToolResult)]
            continue
        if results:
            # The results of one message's calls are wanted together, in the message after it.
            yield {"role": "user", "content": results}
            results = []
        content = _assistant(message) if message.role == "assistant" else _user(message)
        if content:
            yield {"role": message.role, "content": content}
    if results:
        yield {"role": "user", "content": results}


def _result(part: ToolResult) -> Mapping[str, Any]:
    told: dict[str, Any] = {"type": "tool_result", "tool_use_id": part.id, "content": part.text}
    return told | ({"is_error": True} if part.error else {})


def _assistant(message: Message) -> Sequence[Any]:
    if message.native != NULL and message.provider == PROVIDER:
        native: list[Any] = msgspec.json.decode(message.native)
        return native
    said: list[Any] = [{"type": "text", "text": message.text}] if message.text else []
    return said + [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)}
        for call in message.calls
    ]


def _input(arguments: str) -> Mapping[str, Any]:
    """Return a call's arguments as an object, which the format wants even where the model wrote none."""
    try:
        given = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        given = None
    return given if isinstance(given, dict) else {"written": arguments}


def _user(message: Message) -> str | Sequence[Mapping[str, Any]]:
    if all(isinstance(part, Text) for part in message.parts):
        return message.text
    return [_user_part(part) for part in message.parts if isinstance(part, Text | Media)]


def _user_part(part: Text | Media) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if part.url is None:
        raise InvalidInput(f"media of type {part.mime} has no address; give it as a data: URL")
    head, _, data = part.url.partition(";base64,")
    source: Mapping[str, Any] = {"type": "url", "url": part.url}
    if head.startswith("data:"):
        source = {"type": "base64", "media_type": part.mime, "data": data}
    return {"type": "image" if part.mime.startswith("image/") else "document", "source": source}


class _Usage(Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(Struct):
    model: str = ""
    usage: _Usage = msgspec.field(default_factory=_Usage)


class _Delta(Struct):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    citation: Any = None
    stop_reason: str | None = None


class _Event(Struct):
    type: str
    index: int = 0
    message: _Message | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


_STOPS: Final = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "calls",
    "refusal": "refused",
}
_GROWING: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
}
"""Which field of a delta is added to which field of its block."""


@dataclass(slots=True)
class Assembly:
    """A reply as far as it has come."""

    asked: str
    done: bool = False
    written: int | None = None
    """How much was put into the provider's cache."""
    _usage: _Usage = field(default_factory=_Usage)
    _counted: bool = False
    """The output was counted; what is said at the beginning is only a first guess."""
    _model: str = ""
    _stop: str | None = None
    _blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    _arguments: dict[int, str] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)

    @property
    def begun(self) -> bool:
        """Whether any of it was generated."""
        return bool(self._blocks)

    @property
    def usage(self) -> Usage:
        """What it took, as far as it is known."""
        told = self._usage
        if told.input_tokens is None:
            return Usage()
        read, written = told.cache_read_input_tokens or 0, told.cache_creation_input_tokens or 0
        return Usage(
            input=told.input_tokens + read + written,
            output=told.output_tokens if self._counted else None,
            cached=told.cache_read_input_tokens,
        )

    def take(self, event: Mapping[str, Any]) -> Iterator[Piece]:
        """Take one event in, and yield what it adds.

        Raises:
            msgspec.ValidationError: it is none.
        """
        if self.done:
            return
        told = msgspec.convert(event, _Event)
        match told.type:
            case "message_start":
                self._model = told.message.model if told.message is not None else ""
                self._count(told.message.usage if told.message is not None else _Usage())
            case "content_block_start":
                yield from self._begin(told.index, told.content_block or {})
            case "content_block_delta":
                yield from self._grow(told.index, told.delta or _Delta())
            case "content_block_stop":
                self._open.discard(told.index)
            case "message_delta":
                self._stop = (told.delta.stop_reason if told.delta is not None else None) or self._stop
                self._count(told.usage or _Usage())
                self._counted = True
            case "message_stop":
                self.done = True
            case _:
                pass  # The provider adds kinds, and asks that unknown ones be passed over.

    def _count(self, told: _Usage) -> None:
        for name in _Usage.__struct_fields__:
            if (number := getattr(told, name)) is not None:
                setattr(self._usage, name, number)
        self.written = self._usage.cache_creation_input_tokens

    def _begin(self, index: int, block: dict[str, Any]) -> Iterator[Piece]:
        self._blocks[index] = dict(block)
        self._open.add(index)
        if block.get("type") == "tool_use":
            self._arguments[index] = ""
            place = list(self._arguments).index(index)
            yield CallPiece(index=place, id=str(block.get("id", "")), name=str(block.get("name", "")))

    def _grow(self, index: int, delta: _Delta) -> Iterator[Piece]:
        block = self._blocks.setdefault(index, {"type": "text"})
        if delta.type == "input_json_delta":
            self._arguments[index] = self._arguments.get(index, "") + delta.partial_json
            if block.get("type") == "tool_use" and delta.partial_json:
                yield CallPiece(index=list(self._arguments).index(index), arguments=delta.partial_json)
        elif delta.type == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.citation]
        elif delta.type in _GROWING:
            name, of_block = _GROWING[delta.type]
            more = getattr(delta, name)
            block[of_block] = (block.get(of_block) or "") + more
            if more and name != "signature":
                yield TextPiece(more) if name == "text" else ReasoningPiece(more)

    def reply(self) -> Reply:
        """Return the whole reply.

        Raises:
            ModelCut: it is not whole.
            ModelRefused: its length was used up within a call.
        """
        if not self.done or self._stop is None:
            raise ModelCut(f"{self.asked} ended its stream before its answer", usage=self.usage)
        stop = _STOPS.get(self._stop, "end")
        short = stop == "length"
        if self._open and not short:
            raise ModelCut(f"{self.asked} ended its answer within a part of it", usage=self.usage)
        came = {index: self._call(index) for index, block in self._blocks.items() if block.get("type") == "tool_use"}
        whole = whole_calls(list(came.values()), short=short, asked=self.asked, usage=self.usage)
        calls = dict(zip(came, whole, strict=True))
        parts = [part for index in sorted(self._blocks) for part in self._part(index, calls)]
        message = Message("assistant", tuple(parts), native=self._native(), provider=PROVIDER)
        return Reply(message=message, usage=self.usage, stop=stop, model=self._model)

    def _call(self, index: int) -> ToolCall:
        block = self._blocks[index]
        return ToolCall(str(block.get("id", "")), str(block.get("name", "")), self._arguments.get(index, ""))

    def _part(self, index: int, calls: Mapping[int, ToolCall]) -> Iterator[Part]:
        block = self._blocks[index]
        match block.get("type"):
            case "text" if block.get("text"):
                yield Text(block["text"])
            case "thinking" if block.get("thinking"):
                yield Reasoning(block["thinking"])
            case "tool_use":
                yield calls[index]
            case _:
                pass

    def _native(self) -> Raw:
        """Return the blocks themselves where one of them has something that only the provider understands."""
        if all(block.get("type") in ("text", "tool_use") for block in self._blocks.values()):
            return NULL
        own = []
        for index in sorted(self._blocks):
            block = self._blocks[index]
            if index in self._arguments:
                block = {**block, "input": _input(self._arguments[index] or "{}")}
            own.append(block)
        return Raw(msgspec.json.encode(own))
