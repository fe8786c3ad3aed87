"""OpenAI's Responses: requests, and the fold of their events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.agent.harness import Ended, How, Start
from holdfast.agent.harnesses.wire import address_of
from holdfast.agent.model import CallPiece, ModelCut, Piece, ReasoningPiece, TextPiece
from holdfast.core.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

_OVER: Final = {"response.completed", "response.failed", "response.incomplete"}
_RUNNING: Final = {"queued", "in_progress"}


class Responses:
    """The format, as `openai` reads it."""

    path: Final = "/responses"
    word: Final = "response"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, start: Start, messages: Sequence[Message], previous: str | None) -> bytes:
        body: dict[str, Any] = {"model": model, "background": True, "store": True, "stream": True}
        if start.instructions:
            # They are not carried over from one response to the next.
            body["instructions"] = start.instructions
        if start.tools:
            body["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema,
                 "strict": False}
                for tool in start.tools
            ]  # fmt: skip
        body |= {name: start.settings[name] for name in sorted(start.settings)}
        if start.output is not None:
            form = {"type": "json_schema", "name": "output", "schema": start.output}
            body["text"] = {**body.get("text", {}), "format": form}
        if previous is not None:
            body["previous_response_id"] = previous
        body["input"] = [item for message in messages for item in _items(message)]
        return msgspec.json.encode(body)

    def query(self, after: str | None) -> Mapping[str, str]:
        return {"stream": "true", **({"starting_after": after} if after else {})}

    def fold(self, asked: str, previous: str | None) -> "Response":
        return Response(asked, previous)


def _items(message: Message) -> Iterator[Mapping[str, Any]]:
    if message.role == "tool":
        for part in message.parts:
            if isinstance(part, ToolResult):
                yield {"type": "function_call_output", "call_id": part.id, "output": part.text}
    elif all(isinstance(part, Text) for part in message.parts):
        yield {"role": message.role, "content": message.text}
    else:
        content = [_content(part) for part in message.parts if isinstance(part, Text | Media)]
        yield {"role": message.role, "content": content}


def _content(part: Text | Media) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    if part.mime.startswith("image/"):
        return {"type": "input_image", "image_url": address_of(part), "detail": "auto"}
    name = "file_data" if address_of(part).startswith("data:") else "file_url"
    return {"type": "input_file", name: address_of(part)}


class _Event(Struct):
    type: str
    sequence_number: int | None = None
    response: dict[str, Any] | None = None
    item: dict[str, Any] | None = None
    output_index: int = 0
    delta: Any = None
    message: str = ""
    code: str | None = None


_events: Final = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Response:
    """One response, as far as it has been told."""

    asked: str
    previous: str | None
    id: str = ""
    over: bool = False
    _number: int = -1
    _resource: dict[str, Any] = field(default_factory=dict)
    _calls: dict[int, int] = field(default_factory=dict)

    @property
    def after(self) -> str:
        return str(self._number) if self._number >= 0 else ""

    @property
    def sure(self) -> bool:
        return True  # its last event has all of it

    @property
    def usage(self) -> Usage:
        return _usage(self._resource)

    def take(self, data: str) -> Iterator[Piece]:
        event = _events.decode(data)
        if event.type == "error":
            why = event.message or event.code or "it does not say why"
            raise ModelCut(f"{self.asked} broke off: {why}", usage=self.usage)
        if self.over or (event.sequence_number is not None and event.sequence_number <= self._number):
            return
        if event.response is not None:
            self._told(event.response)
            self.over = event.type in _OVER
        if event.sequence_number is not None:
            self._number = event.sequence_number
        yield from self._pieces(event)

    def look(self, resource: bytes) -> None:
        told = msgspec.json.decode(resource, type=dict[str, Any])
        self._told(told)
        self.over = told.get("status") not in _RUNNING

    def _told(self, resource: dict[str, Any]) -> None:
        id = resource.get("id")
        if not isinstance(id, str) or not id or (self.id and id != self.id):
            raise msgspec.ValidationError(f"it tells of response {id!r}")
        self.id, self._resource = id, resource

    def _pieces(self, event: _Event) -> Iterator[Piece]:
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                yield TextPiece(str(event.delta))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                yield ReasoningPiece(str(event.delta))
            case "response.output_item.added" if event.item is not None and event.item.get("type") == "function_call":
                place = self._calls.setdefault(event.output_index, len(self._calls))
                yield CallPiece(place, id=str(event.item.get("call_id", "")), name=str(event.item.get("name", "")))
            case "response.function_call_arguments.delta":
                place = self._calls.setdefault(event.output_index, len(self._calls))
                yield CallPiece(place, arguments=str(event.delta))

    def ended(self) -> Ended:
        resource = self._resource
        status, model = str(resource.get("status")), str(resource.get("model", ""))
        if self.previous is not None and resource.get("previous_response_id", self.previous) != self.previous:
            why = f"{self.asked} did not go on from response {self.previous}: it does not keep conversations"
            return Ended(how="failed", why=why, usage=self.usage, model=model, id=self.after)
        how, why = _how(status, resource)
        parts = list(_parts(resource.get("output") or ()))
        calls = any(isinstance(part, ToolCall) for part in parts)
        # One whose length ended within its calls cannot be gone on from: nobody may answer half of one.
        goes_on = how == "completed" or (how in ("limit", "incomplete") and bool(parts) and not calls)
        return Ended(
            message=Message("assistant", tuple(parts)) if goes_on else None,
            cursor={"response": self.id} if goes_on else None,
            how=how, why=f"{self.asked} {why}" if why else "", usage=self.usage, model=model, id=self.after,
        )  # fmt: skip


def _how(status: str, resource: Mapping[str, Any]) -> tuple[How, str]:
    """Return how a response ended, and what is told of one that has not completed."""
    if status == "completed":
        return "completed", ""
    if status == "incomplete":
        reason = str((resource.get("incomplete_details") or {}).get("reason"))
        how: How = "limit" if reason.startswith("max_") else "incomplete"
        return how, f"stopped before its end: {reason}"
    error = resource.get("error") or {}
    said = error.get("message") or error.get("code")
    return "failed", f"was {status} at the provider" + (f": {said}" if said else "")


def _parts(items: Sequence[Mapping[str, Any]]) -> Iterator[Part]:
    for item in items:
        match item.get("type"):
            case "reasoning":
                told = "".join(part.get("text", "") for part in (item.get("summary") or item.get("content") or ()))
                if told:
                    yield Reasoning(told)
            case "message":
                text = "".join(part.get("text") or part.get("refusal") or "" for part in item.get("content") or ())
                if text:
                    yield Text(text)
            case "function_call":
                yield ToolCall(str(item["call_id"]), str(item["name"]), str(item.get("arguments") or "{}"))


def _usage(resource: Mapping[str, Any]) -> Usage:
    told = resource.get("usage") or {}
    details = told.get("input_tokens_details") or {}
    return Usage(input=told.get("input_tokens"), output=told.get("output_tokens"), cached=details.get("cached_tokens"))
