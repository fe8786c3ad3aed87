"""Google's Interactions: requests, and the fold of their events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.agent.harness import Ended, How, Start
from holdfast.agent.harnesses.wire import address_of
from holdfast.agent.model import CallPiece, ModelCut, Piece, ReasoningPiece, TextPiece
from holdfast.core.message import Media, Message, Part, Reasoning, Text, ToolCall, ToolResult, Usage

_DONE: Final = "[DONE]"
_REVISION: Final = "2026-05-20"
_RUNNING: Final = {"queued", "in_progress"}
_CONFIG: Final = {
    "image_config", "max_output_tokens", "seed", "speech_config", "stop_sequences", "temperature", "thinking_level",
    "thinking_summaries", "tool_choice", "top_p", "transcription_config", "video_config",
}  # fmt: skip
"""Settings that stand in a request's `generation_config`; all others stand beside it."""
_HOWS: Final[Mapping[str, How]] = {
    "completed": "completed", "requires_action": "completed", "incomplete": "limit", "budget_exceeded": "limit",
    "requires_continuation": "incomplete",
}  # fmt: skip


class Interactions:
    """The format, as `google-genai` reads it."""

    path: Final = "/v1/interactions"
    word: Final = "interaction"

    def headers(self, key: str) -> Mapping[str, str]:
        return {"api-revision": _REVISION, **({"x-goog-api-key": key} if key else {})}

    def body(self, model: str, start: Start, messages: Sequence[Message], previous: str | None) -> bytes:
        body: dict[str, Any] = {"model": model, "background": True, "store": True, "stream": True}
        if start.instructions:
            body["system_instruction"] = start.instructions
        if start.tools:
            body["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.schema}
                for tool in start.tools
            ]
        settings = {name: start.settings[name] for name in sorted(start.settings)}
        config = {name: settings.pop(name) for name in sorted(_CONFIG & settings.keys())}
        body |= settings
        if config:
            body["generation_config"] = {**settings.get("generation_config", {}), **config}
        if start.output is not None:
            body["response_format"] = {"type": "text", "mime_type": "application/json", "schema": start.output}
        if previous is not None:
            body["previous_interaction_id"] = previous
        body["input"] = [step for message in messages for step in _steps(message)]
        return msgspec.json.encode(body)

    def query(self, after: str | None) -> Mapping[str, str]:
        return {"stream": "true", **({"last_event_id": after} if after else {})}

    def fold(self, asked: str, previous: str | None) -> "Interaction":
        return Interaction(asked, previous)


def _steps(message: Message) -> Iterator[Mapping[str, Any]]:
    if message.role == "tool":
        for part in message.parts:
            if isinstance(part, ToolResult):
                told = {"type": "function_result", "call_id": part.id, "name": part.name, "result": part.text}
                yield told | ({"is_error": True} if part.error else {})
    else:
        content = [_content(part) for part in message.parts if isinstance(part, Text | Media)]
        yield {"type": "model_output" if message.role == "assistant" else "user_input", "content": content}


def _content(part: Text | Media) -> Mapping[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    kind = part.mime.partition("/")[0]
    told = {"type": kind if kind in ("image", "audio", "video") else "document", "mime_type": part.mime}
    head, _, data = address_of(part).partition(";base64,")
    return told | ({"data": data} if head.startswith("data:") else {"uri": address_of(part)})


class _Event(Struct):
    event_type: str
    event_id: str = ""
    interaction: dict[str, Any] | None = None
    interaction_id: str = ""
    index: int = 0
    step: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


_events: Final = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class _Step:
    """One step as far as it has been told."""

    kind: str
    id: str = ""
    name: str = ""
    text: str = ""
    arguments: str = ""
    stopped: bool = False
    growing: bool = False
    """Its arguments come bit by bit; what its beginning had of them is not theirs."""

    def write(self, more: str) -> None:
        self.arguments = self.arguments + more if self.growing else more
        self.growing = True

    def part(self) -> Part | None:
        match self.kind:
            case "thought":
                return Reasoning(self.text) if self.text else None
            case "model_output":
                return Text(self.text) if self.text else None
            case "function_call":
                return ToolCall(self.id, self.name, _plain(self.arguments))
            case _:
                return None  # what the provider did by itself

    def is_whole(self) -> bool:
        """Say whether all of it came, as far as that shows."""
        if self.kind != "function_call":
            return self.stopped
        return self.stopped and bool(self.id and self.name) and _is_whole(self.arguments)


@dataclass(slots=True)
class Interaction:
    """One interaction, as far as it has been told."""

    asked: str
    previous: str | None
    id: str = ""
    after: str = ""
    over: bool = False
    _seen: set[str] = field(default_factory=set)
    _steps: dict[int, _Step] = field(default_factory=dict)
    _calls: dict[int, int] = field(default_factory=dict)
    _resource: dict[str, Any] = field(default_factory=dict)
    _whole: bool = False
    """The provider told all of it at once."""

    @property
    def sure(self) -> bool:
        """Its last event repeats neither what was said, so that half a call shows only by itself, nor why it failed."""
        if self._whole:
            return True
        if _HOWS.get(str(self._resource.get("status"))) != "completed":
            return False
        calls = any(step.kind == "function_call" for step in self._steps.values())
        waits = self._resource.get("status") == "requires_action"
        return bool(self._steps) and calls == waits and all(step.is_whole() for step in self._steps.values())

    @property
    def usage(self) -> Usage:
        return _usage(self._resource)

    def take(self, data: str) -> Iterator[Piece]:
        if data == _DONE:
            return
        event = _events.decode(data)
        if event.event_type == "error":
            error = event.error or {}
            why = error.get("message") or error.get("code") or "it does not say why"
            raise ModelCut(f"{self.asked} broke off: {why}", usage=self.usage)
        if self.over or event.event_id in self._seen:
            return
        if event.interaction is not None:
            self._told(event.interaction)
            self.over = event.event_type == "interaction.completed"
        if event.event_id:
            self._seen.add(event.event_id)
            self.after = event.event_id
        yield from self._grow(event)

    def look(self, resource: bytes) -> None:
        told = msgspec.json.decode(resource, type=dict[str, Any])
        self._told(told)
        self.over = told.get("status") not in _RUNNING
        if self.over:
            self._whole = True
            self._steps = dict(enumerate(map(_kept, told.get("steps") or ())))

    def _told(self, resource: dict[str, Any]) -> None:
        id = resource.get("id")
        if not isinstance(id, str) or not id or (self.id and id != self.id):
            raise msgspec.ValidationError(f"it tells of interaction {id!r}")
        self.id, self._resource = id, resource

    def _grow(self, event: _Event) -> Iterator[Piece]:
        match event.event_type:
            case "step.start" if event.step is not None:
                step = self._steps[event.index] = _kept(event.step)
                if step.kind == "function_call":
                    place = self._calls.setdefault(event.index, len(self._calls))
                    yield CallPiece(place, id=step.id, name=step.name)
            case "step.delta" if event.delta is not None:
                yield from self._more(event.index, event.delta)
            case "step.stop" if event.index in self._steps:
                self._steps[event.index].stopped = True

    def _more(self, index: int, delta: Mapping[str, Any]) -> Iterator[Piece]:
        match delta.get("type"):
            case "text":
                self._step(index, "model_output").text += str(delta.get("text", ""))
                yield TextPiece(str(delta.get("text", "")))
            case "thought_summary":
                said = str((delta.get("content") or {}).get("text", ""))
                self._step(index, "thought").text += said
                yield ReasoningPiece(said)
            case "arguments_delta":
                more = str(delta.get("arguments") or "")
                self._step(index, "function_call").write(more)
                yield CallPiece(self._calls.setdefault(index, len(self._calls)), arguments=more)

    def _step(self, index: int, kind: str) -> _Step:
        step = self._steps.setdefault(index, _Step(kind))
        if step.kind != kind:
            raise msgspec.ValidationError(f"step {index} is {step.kind}, and more of it is {kind}")
        return step

    def ended(self) -> Ended:
        resource = self._resource
        status, model = str(resource.get("status")), str(resource.get("model", ""))
        if self.previous is not None and resource.get("previous_interaction_id", self.previous) != self.previous:
            why = f"{self.asked} did not go on from interaction {self.previous}: it does not keep conversations"
            return Ended(how="failed", why=why, usage=self.usage, model=model, id=self.after)
        how = _HOWS.get(status, "failed")
        parts = [part for _, step in sorted(self._steps.items()) if (part := step.part()) is not None]
        calls = any(isinstance(part, ToolCall) for part in parts)
        # One whose length ended within its calls cannot be gone on from: nobody may answer half of one.
        goes_on = how == "completed" or (how in ("limit", "incomplete") and bool(parts) and not calls)
        return Ended(
            message=Message("assistant", tuple(parts)) if goes_on else None,
            cursor={"interaction": self.id} if goes_on else None,
            how=how, why="" if how == "completed" else f"{self.asked} {_why(status, resource)}",
            usage=self.usage, model=model, id=self.after,
        )  # fmt: skip


def _why(status: str, resource: Mapping[str, Any]) -> str:
    errors = resource.get("errors") or ()
    said = "; ".join(str(error.get("message") or error.get("code")) for error in errors)
    told = "stopped before its end" if _HOWS.get(status) in ("limit", "incomplete") else "ended at the provider"
    return f"{told}: {status}" + (f": {said}" if said else "")


def _kept(step: Mapping[str, Any]) -> _Step:
    """Return a step as it stands in a resource, or at its beginning."""
    kind = str(step.get("type", ""))
    told = step.get("summary") if kind == "thought" else step.get("content")
    text = "".join(str(part.get("text", "")) for part in told or ())
    arguments = step.get("arguments")
    given = msgspec.json.encode(arguments).decode() if arguments else ""
    return _Step(kind, str(step.get("id", "")), str(step.get("name", "")), text, given)


def _plain(arguments: str) -> str:
    """Return a call's arguments in one form, whether they came as text or as an object; what is no JSON stays."""
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}")).decode()
    except msgspec.DecodeError:
        return arguments


def _is_whole(arguments: str) -> bool:
    """Say whether arguments do not lack their end; what is wrong otherwise is the model's to mend."""
    try:
        msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError as error:
        return "truncated" not in str(error)
    return True


def _usage(resource: Mapping[str, Any]) -> Usage:
    told = resource.get("usage") or {}
    if told.get("total_input_tokens") is None:
        return Usage()
    return Usage(
        input=told["total_input_tokens"] + (told.get("total_tool_use_tokens") or 0),
        output=(told.get("total_output_tokens") or 0) + (told.get("total_thought_tokens") or 0),
        cached=told.get("total_cached_tokens"),
    )
