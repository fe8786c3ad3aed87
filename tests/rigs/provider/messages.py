"""Anthropic's messages."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from tests.rigs.provider.frame import KINDS, Carries, Frame, event, halves
from tests.rigs.provider.turn import Answer, Call

_numbers: Final = count(1)
"""No two messages have one id: whoever keeps them would take them for one."""


class Messages:
    """Streams blocks, and ends them with `message_stop`."""

    def frames(self, answer: Answer, model: str, *, half_call: bool) -> Sequence[Frame]:
        usage = {**_usage(answer), "output_tokens": 1}
        begun = {**_head(model), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        frames = [_frame("message_start", message=begun), _frame("ping")]
        index = 0
        if answer.reasoning:
            frames += _thinking(index, answer)
            index += 1
        if answer.tokens:
            frames += _text(index, answer)
            index += 1
        for number, call in enumerate(answer.calls, start=index):
            frames += _call(number, call, half=half_call)
        stop = "max_tokens" if answer.short else "tool_use" if answer.calls else "end_turn"
        delta = {"stop_reason": stop, "stop_sequence": None}
        frames.append(_frame("message_delta", delta=delta, usage={"output_tokens": answer.output_tokens}))
        return [*frames, _frame("message_stop", "end")]

    def whole(self, answer: Answer, model: str) -> Mapping[str, Any]:
        content: list[Mapping[str, Any]] = [{"type": "text", "text": answer.text}] if answer.tokens else []
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in answer.calls
        ]
        stop = "tool_use" if answer.calls else "end_turn"
        return {
            **_head(model),
            "content": content,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": {**_usage(answer), "output_tokens": answer.output_tokens},
        }

    def error(self, status: int) -> Mapping[str, Any]:
        return {"type": "error", "error": {"type": KINDS.get(status, "api_error"), "message": f"it says {status}"}}

    def error_frame(self) -> bytes:
        return event({"type": "error", "error": {"type": "api_error", "message": "it broke"}}, name="error")


def _thinking(index: int, answer: Answer) -> Iterator[Frame]:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    yield _frame("content_block_start", index=index, content_block=block)
    for thought in answer.reasoning:
        yield _frame("content_block_delta", index=index, delta={"type": "thinking_delta", "thinking": thought})
    yield _frame("content_block_delta", index=index, delta={"type": "signature_delta", "signature": "c2lnbmVk"})
    yield _frame("content_block_stop", index=index)


def _text(index: int, answer: Answer) -> Iterator[Frame]:
    yield _frame("content_block_start", index=index, content_block={"type": "text", "text": ""})
    for token in answer.tokens:
        yield _frame("content_block_delta", "token", index=index, delta={"type": "text_delta", "text": token})
    yield _frame("content_block_stop", index=index)


def _call(index: int, call: Call, *, half: bool) -> Iterator[Frame]:
    block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
    yield _frame("content_block_start", "call", index=index, content_block=block)
    for part in halves(call.arguments)[: 1 if half else 2]:
        delta = {"type": "input_json_delta", "partial_json": part}
        yield _frame("content_block_delta", "call", index=index, delta=delta)
    yield _frame("content_block_stop", index=index)


def _frame(name: str, carries: Carries = "frame", **data: Any) -> Frame:
    return Frame(event({"type": name, **data}, name=name), carries)


def _head(model: str) -> dict[str, Any]:
    return {"id": f"msg_{next(_numbers)}", "type": "message", "role": "assistant", "model": model}


def _usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.input_tokens - answer.cached,
        "cache_read_input_tokens": answer.cached,
        "cache_creation_input_tokens": 0,
    }
