"""Google's interactions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from tests.rigs.provider.frame import Carries, Frame, event, halves
from tests.rigs.provider.generation import Generation
from tests.rigs.provider.turn import Answer, Call

_DONE: Final = b"event: done\ndata: [DONE]\n\n"
_WORDS: Final = {400: "invalid_argument", 401: "unauthenticated", 403: "permission_denied", 404: "not_found",
                 429: "resource_exhausted", 500: "internal", 503: "unavailable"}  # fmt: skip


class Interactions:
    """Streams steps, ends them with `interaction.completed`, whatever it came to, and the stream with `[DONE]`."""

    def events(self, generation: Generation, *, half_call: bool) -> Sequence[Frame]:
        return list(_Telling(generation).frames(half_call=half_call))

    def resource(self, generation: Generation) -> Mapping[str, Any]:
        status = _ending(generation.answer) if generation.done else "cancelled" if generation.over else "in_progress"
        if not generation.over and generation.come == 0:
            status = "queued"
        told = _head(generation, status)
        if generation.previous is not None:
            told["previous_interaction_id"] = generation.previous
        if generation.done:
            told |= {"steps": list(_steps(generation.answer)), "usage": _usage(generation.answer)}
            told |= {"errors": [{"code": "internal", "message": "it failed"}]} if generation.answer.fails else {}
        return told

    def previous(self, asked: Mapping[str, Any]) -> str | None:
        found: str | None = asked.get("previous_interaction_id")
        return found

    def answered(self, asked: Mapping[str, Any]) -> Sequence[str]:
        given = asked["input"] if isinstance(asked.get("input"), list) else []
        return [item["call_id"] for item in given if item.get("type") == "function_result"]

    def skipped(self, query: Mapping[str, str]) -> int:
        return int(query["last_event_id"].removeprefix("ev_")) + 1 if "last_event_id" in query else 0

    def error(self, status: int) -> Mapping[str, Any]:
        return {"error": {"code": _WORDS.get(status, "unknown"), "message": f"it says {status}"}}

    def error_frame(self) -> bytes:
        return event({"error": {"code": "internal", "message": "it broke"}, "event_type": "error"}, name="error")


class _Telling:
    """One answer as events."""

    def __init__(self, generation: Generation) -> None:
        self._generation, self._answer = generation, generation.answer
        self._numbers = count()

    def frames(self, *, half_call: bool) -> Iterator[Frame]:
        generation, answer = self._generation, self._answer
        yield self._event("interaction.created", interaction=_head(generation, "in_progress"))
        yield self._event("interaction.status_update", interaction_id=generation.id, status="in_progress")
        place = count()
        if answer.reasoning:
            yield from self._thoughts(next(place))
        if answer.tokens:
            yield from self._text(next(place))
        for call in answer.calls:
            yield from self._call(next(place), call, half=half_call)
        over = {**_head(generation, _ending(answer)), "usage": _usage(answer)}
        yield self._event("interaction.completed", "end", interaction=over)
        yield Frame(_DONE, "end")

    def _thoughts(self, place: int) -> Iterator[Frame]:
        yield self._event("step.start", index=place, step={"type": "thought"})
        for thought in self._answer.reasoning:
            delta = {"type": "thought_summary", "content": {"type": "text", "text": thought}}
            yield self._event("step.delta", index=place, delta=delta)
        signed = {"type": "thought_signature", "signature": "c2lnbmVk"}
        yield self._event("step.delta", index=place, delta=signed)
        yield self._event("step.stop", index=place)

    def _text(self, place: int) -> Iterator[Frame]:
        yield self._event("step.start", index=place, step={"type": "model_output"})
        for token in self._answer.tokens:
            yield self._event("step.delta", "token", index=place, delta={"type": "text", "text": token})
        yield self._event("step.stop", index=place)

    def _call(self, place: int, call: Call, *, half: bool) -> Iterator[Frame]:
        begun = {"type": "function_call", "id": call.id, "name": call.name, "arguments": {}}
        yield self._event("step.start", "call", index=place, step=begun)
        for part in halves(call.arguments)[: 1 if half else 2]:
            delta = {"type": "arguments_delta", "arguments": part}
            yield self._event("step.delta", "call", index=place, delta=delta)
        yield self._event("step.stop", index=place)

    def _event(self, kind: str, carries: Carries = "frame", **data: Any) -> Frame:
        told = {**data, "event_id": f"ev_{next(self._numbers)}", "event_type": kind}
        return Frame(event(told, name=kind), carries)


def _ending(answer: Answer) -> str:
    if answer.fails:
        return "failed"
    return "incomplete" if answer.short else "requires_action" if answer.calls else "completed"


def _head(generation: Generation, status: str) -> dict[str, Any]:
    return {"id": generation.id, "status": status, "object": "interaction", "model": generation.model,
            "created": "2026-11-15T12:00:00Z", "updated": "2026-11-15T12:00:00Z"}  # fmt: skip


def _steps(answer: Answer) -> Iterator[Mapping[str, Any]]:
    if answer.fails:
        return
    if answer.reasoning:
        summary = [{"type": "text", "text": "".join(answer.reasoning)}]
        yield {"type": "thought", "signature": "c2lnbmVk", "summary": summary}
    if answer.tokens:
        yield {"type": "model_output", "content": [{"type": "text", "text": answer.text}]}
    for call in answer.calls:
        yield {"type": "function_call", "id": call.id, "name": call.name, "arguments": _object(call.arguments)}


def _object(arguments: str) -> Mapping[str, Any]:
    """Return a call's arguments as the object that they are kept as; what is none is kept as nothing."""
    try:
        given: Mapping[str, Any] = json.loads(arguments)
    except ValueError:
        return {}
    return given


def _usage(answer: Answer) -> Mapping[str, Any]:
    thought = len(answer.reasoning)
    return {
        "total_input_tokens": answer.input_tokens,
        "total_cached_tokens": answer.cached,
        "total_output_tokens": answer.output_tokens - thought,
        "total_thought_tokens": thought,
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
