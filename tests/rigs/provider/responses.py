"""OpenAI's responses."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tests.rigs.provider.frame import KINDS, Carries, Frame, event, halves
from tests.rigs.provider.turn import Answer, Call


class Responses:
    """Streams numbered events, and ends them with `response.completed`."""

    def frames(self, answer: Answer, model: str, *, half_call: bool) -> Sequence[Frame]:
        return list(_Telling(answer, model).frames(half_call=half_call))

    def whole(self, answer: Answer, model: str) -> Mapping[str, Any]:
        return _response(answer, model, "completed", _items(answer))

    def error(self, status: int) -> Mapping[str, Any]:
        return {"error": {"message": f"it says {status}", "type": KINDS.get(status, "error"), "code": None}}

    def error_frame(self) -> bytes:
        data = {"type": "error", "code": "server_error", "message": "it broke", "param": None, "sequence_number": 99}
        return event(data, name="error")


class _Telling:
    """One answer as events."""

    def __init__(self, answer: Answer, model: str) -> None:
        self._answer, self._model = answer, model
        self._numbers = count()

    def frames(self, *, half_call: bool) -> Iterator[Frame]:
        begun = _response(self._answer, self._model, "in_progress", [])
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        place = count()
        if self._answer.tokens:
            yield from self._text(next(place))
        for call in self._answer.calls:
            yield from self._call(next(place), call, half=half_call)
        done = _response(self._answer, self._model, "completed", _items(self._answer))
        yield self._event("response.completed", "end", response=done)

    def _text(self, place: int) -> Iterator[Frame]:
        where: dict[str, Any] = {"output_index": place, "item_id": "msg_1"}
        begun = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        part = {"type": "output_text", "text": "", "annotations": []}
        yield self._event("response.content_part.added", **where, content_index=0, part=part)
        for token in self._answer.tokens:
            yield self._event("response.output_text.delta", "token", **where, content_index=0, delta=token, logprobs=[])
        text = self._answer.text
        yield self._event("response.output_text.done", **where, content_index=0, text=text, logprobs=[])
        yield self._event("response.content_part.done", **where, content_index=0, part={**part, "text": text})
        yield self._event("response.output_item.done", output_index=place, item=_items(self._answer)[0])

    def _call(self, place: int, call: Call, *, half: bool) -> Iterator[Frame]:
        item = _call_item(call)
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", "call", output_index=place, item=begun)
        for part in halves(call.arguments)[: 1 if half else 2]:
            name = "response.function_call_arguments.delta"
            yield self._event(name, "call", output_index=place, item_id=item["id"], delta=part)
        yield self._event(
            "response.function_call_arguments.done",
            output_index=place, item_id=item["id"], name=call.name, arguments=call.arguments,
        )  # fmt: skip
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _event(self, kind: str, carries: Carries = "frame", **data: Any) -> Frame:
        return Frame(event({"type": kind, "sequence_number": next(self._numbers), **data}, name=kind), carries)


def _items(answer: Answer) -> list[Mapping[str, Any]]:
    content = [{"type": "output_text", "text": answer.text, "annotations": []}]
    said = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}
    return [*([said] if answer.tokens else []), *map(_call_item, answer.calls)]


def _call_item(call: Call) -> dict[str, Any]:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _response(answer: Answer, model: str, status: str, items: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    usage = {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached, "cache_write_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": len(answer.reasoning)},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": model, "output": items,
        "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "parallel_tool_calls": True,
        "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": [],
        "usage": usage if status == "completed" else None,
    }  # fmt: skip
