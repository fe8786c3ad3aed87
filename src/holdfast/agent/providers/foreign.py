"""Messages in pydantic-ai's form, and back."""

from collections.abc import Iterator

import msgspec
from msgspec import Raw
from pydantic import TypeAdapter
from pydantic_ai import messages as theirs

from holdfast.agent.model import Request
from holdfast.core.codec import NULL
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult

_responses = TypeAdapter(theirs.ModelResponse)


def messages_of(request: Request, provider: str) -> list[theirs.ModelMessage]:
    """Return a request's messages; `provider` is whose own form of a message is understood."""
    sent = list(_messages(request, provider))
    if not sent or not isinstance(sent[-1], theirs.ModelRequest):
        sent.append(theirs.ModelRequest(parts=[], instructions=request.instructions or None))
    return sent


def _messages(request: Request, provider: str) -> Iterator[theirs.ModelMessage]:
    parts: list[theirs.ModelRequestPart] = []
    for message in request.messages:
        if message.role != "assistant":
            parts += _asked(message)
            continue
        if parts:
            yield theirs.ModelRequest(parts=parts, instructions=request.instructions or None)
            parts = []
        yield _said(message, provider)
    if parts:
        yield theirs.ModelRequest(parts=parts, instructions=request.instructions or None)


def _asked(message: Message) -> Iterator[theirs.ModelRequestPart]:
    if message.role == "user":
        content = [_content(part) for part in message.parts if isinstance(part, Text | Media)]
        yield theirs.UserPromptPart(content[0] if len(content) == 1 and isinstance(content[0], str) else content)
        return
    for part in message.parts:
        if isinstance(part, ToolResult):
            outcome = theirs.ToolReturnPart(
                part.name, part.text, part.id, outcome="failed" if part.error else "success"
            )
            yield outcome


def _content(part: Text | Media) -> theirs.UserContent:
    if isinstance(part, Text):
        return part.text
    if part.url is None:
        raise InvalidInput(f"media of type {part.mime} has no address; give it as a data: URL")
    if part.url.startswith("data:"):
        return theirs.BinaryContent.from_data_uri(part.url)
    if part.mime.startswith("image/"):
        return theirs.ImageUrl(part.url, media_type=part.mime)
    return theirs.DocumentUrl(part.url, media_type=part.mime)


def _said(message: Message, provider: str) -> theirs.ModelResponse:
    if message.native != NULL and message.provider == provider:
        return _responses.validate_json(bytes(message.native))
    parts: list[theirs.ModelResponsePart] = [theirs.TextPart(message.text)] if message.text else []
    parts += [theirs.ToolCallPart(call.name, call.arguments, call.id) for call in message.calls]
    return theirs.ModelResponse(parts=parts)


def message_of(response: theirs.ModelResponse, provider: str) -> Message:
    """Return what a model said; its own form is kept where it has parts that ours cannot hold.

    The arguments of a call are as they came, empty where none did.
    """
    plain = all(_is_plain(part) for part in response.parts)
    native = NULL if plain else Raw(_native(response))
    return Message("assistant", tuple(_parts(response)), native=native, provider=provider)


def _native(response: theirs.ModelResponse) -> bytes:
    kept: bytes = _responses.dump_json(response)
    # What it took and when stands beside the message already.
    without = {"usage", "timestamp"}
    return msgspec.json.encode(
        {name: value for name, value in msgspec.json.decode(kept).items() if name not in without}
    )


def _is_plain(part: theirs.ModelResponsePart) -> bool:
    return isinstance(part, theirs.TextPart | theirs.ToolCallPart) and part.provider_details is None


def _parts(response: theirs.ModelResponse) -> Iterator[Part]:
    for part in response.parts:
        match part:
            case theirs.TextPart(content=text) if text:
                yield Text(text)
            case theirs.ThinkingPart(content=text) if text:
                yield Reasoning(text)
            case theirs.ToolCallPart():
                yield ToolCall(part.tool_call_id, part.tool_name, _arguments(part))
            case _:
                pass


def _arguments(call: theirs.ToolCallPart) -> str:
    if call.args is None or isinstance(call.args, str):
        return call.args or ""
    written: str = call.args_as_json_str()
    return written
