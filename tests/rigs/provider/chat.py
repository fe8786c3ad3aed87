"""OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.rigs.provider.frame import KINDS, Frame, event, halves
from tests.rigs.provider.turn import Answer

_DONE: Final = b"data: [DONE]\n\n"


class Chat:
    """Streams chunks, and ends them with `[DONE]`."""

    def frames(self, answer: Answer, model: str, *, half_call: bool) -> Sequence[Frame]:
        frames = [_chunk(model, {"role": "assistant", "content": ""})]
        frames += [_chunk(model, {"reasoning_content": thought}) for thought in answer.reasoning]
        frames += [_chunk(model, {"content": token}, carries="token") for token in answer.tokens]
        for index, call in enumerate(answer.calls):
            begun = {
                "index": index,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": ""},
            }
            frames.append(_chunk(model, {"tool_calls": [begun]}, carries="call"))
            for part in halves(call.arguments)[: 1 if half_call else 2]:
                more = {"index": index, "function": {"arguments": part}}
                frames.append(_chunk(model, {"tool_calls": [more]}, carries="call"))
        finish = "length" if answer.short else "tool_calls" if answer.calls else "stop"
        frames.append(_chunk(model, {}, finish=finish))
        frames.append(Frame(event({**_head(model), "choices": [], "usage": _usage(answer)})))
        return [*frames, Frame(_DONE, "end")]

    def whole(self, answer: Answer, model: str) -> Mapping[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
        if answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.calls
            ]
        finish = "tool_calls" if answer.calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}
        return {**_head(model), "object": "chat.completion", "choices": [choice], "usage": _usage(answer)}

    def error(self, status: int) -> Mapping[str, Any]:
        return {"error": {"message": f"it says {status}", "type": KINDS.get(status, "error"), "code": None}}

    def error_frame(self) -> bytes:
        return event({"error": {"message": "it broke", "type": "server_error"}})


def _head(model: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model}


def _chunk(model: str, delta: Mapping[str, Any], *, finish: str | None = None, carries: Any = "frame") -> Frame:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return Frame(event({**_head(model), "choices": [choice], "usage": None}), carries)


def _usage(answer: Answer) -> Mapping[str, Any]:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached},
    }
