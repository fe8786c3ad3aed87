"""OpenAI's responses."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from tests.rigs.provider.frame import KINDS, Carries, Frame, event, halves
from tests.rigs.provider.generation import Generation
from tests.rigs.provider.turn import Answer, Call


class Responses:
    """Streams numbered events, and ends them with `response.completed`, or with how else it ended."""

    def events(self, generation: Generation, *, half_call: bool) -> Sequence[Frame]:
        return list(_Telling(generation).frames(half_call=half_call))

    def resource(self, generation: Generation) -> Mapping[str, Any]:
        status = _ending(generation.answer) if generation.done else "cancelled" if generation.over else "in_progress"
        if not generation.over and generation.come == 0:
            status = "queued"
        return _response(generation, status)

    def previous(self, asked: Mapping[str, Any]) -> str | None:
        found: str | None = asked.get("previous_response_id")
        return found

    def answered(self, asked: Mapping[str, Any]) -> Sequence[str]:
        given = asked["input"] if isinstance(asked.get("input"), list) else []
        # Who keeps the conversation himself sends each call beside its result.
        sent = {item["call_id"] for item in given if item.get("type") == "function_call"}
        results = [item["call_id"] for item in given if item.get("type") == "function_call_output"]
        return [call for call in results if call not in sent]

    def skipped(self, query: Mapping[str, str]) -> int:
        return int(query["starting_after"]) + 1 if "starting_after" in query else 0

    def error(self, status: int) -> Mapping[str, Any]:
        return {"error": {"message": f"it says {status}", "type": KINDS.get(status, "error"), "code": None}}

    def error_frame(self) -> bytes:
        data = {"type": "error", "code": "server_error", "message": "it broke", "param": None, "sequence_number": 99}
        return event(data, name="error")


class _Telling:
    """One answer as events."""

    def __init__(self, generation: Generation) -> None:
        self._generation, self._answer = generation, generation.answer
        self._numbers = count()

    def frames(self, *, half_call: bool) -> Iterator[Frame]:
        begun = _response(self._generation, "in_progress")
        yield self._event("response.created", response=begun)
        yield self._event("response.in_progress", response=begun)
        place = count()
        if self._answer.reasoning:
            yield from self._thoughts(next(place))
        if self._answer.tokens:
            yield from self._text(next(place))
        for call in self._answer.calls:
            yield from self._call(next(place), call, half=half_call)
        ending = _ending(self._answer)
        yield self._event(f"response.{ending}", "end", response=_response(self._generation, ending))

    def _thoughts(self, place: int) -> Iterator[Frame]:
        item = _thought_item(self._answer)
        where: dict[str, Any] = {"output_index": place, "item_id": item["id"], "summary_index": 0}
        yield self._event("response.output_item.added", output_index=place, item={**item, "summary": []})
        part = {"type": "summary_text", "text": ""}
        yield self._event("response.reasoning_summary_part.added", **where, part=part)
        for thought in self._answer.reasoning:
            yield self._event("response.reasoning_summary_text.delta", **where, delta=thought)
        text = "".join(self._answer.reasoning)
        yield self._event("response.reasoning_summary_text.done", **where, text=text)
        yield self._event("response.output_item.done", output_index=place, item=item)

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
        yield self._event("response.output_item.done", output_index=place, item=_text_item(self._answer))

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


def _ending(answer: Answer) -> str:
    return "failed" if answer.fails else "incomplete" if answer.short else "completed"


def _items(answer: Answer) -> list[Mapping[str, Any]]:
    thought = [_thought_item(answer)] if answer.reasoning else []
    said = [_text_item(answer)] if answer.tokens else []
    return [*thought, *said, *map(_call_item, answer.calls)]


def _thought_item(answer: Answer) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": "".join(answer.reasoning)}]
    return {"id": "rs_1", "type": "reasoning", "summary": summary}


def _text_item(answer: Answer) -> dict[str, Any]:
    content = [{"type": "output_text", "text": answer.text, "annotations": []}]
    return {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": content}


def _call_item(call: Call) -> dict[str, Any]:
    return {
        "id": f"fc_{call.id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def _response(generation: Generation, status: str) -> Mapping[str, Any]:
    answer = generation.answer
    usage = {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached, "cache_write_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": len(answer.reasoning)},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
    over = status in ("completed", "incomplete", "failed")
    return {
        "id": generation.id, "object": "response", "created_at": 1, "status": status, "model": generation.model,
        "output": _items(answer) if over and status != "failed" else [],
        "error": {"code": "server_error", "message": "it failed"} if status == "failed" else None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "background": generation.background,
        "previous_response_id": generation.previous,
        "temperature": 1.0, "top_p": 1.0, "tool_choice": "auto", "tools": [],
        "usage": usage if over else None,
    }  # fmt: skip
