"""What models and tools of the OpenAI Agents SDK say, as data that comes back as it was."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agents import Model, ModelResponse, ToolOutputFileContent, ToolOutputImage, ToolOutputText, Usage
from agents.items import TResponseOutputItem
from agents.usage import deserialize_usage, serialize_usage
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFailedEvent,
    ResponseFunctionToolCall,
    ResponseIncompleteEvent,
    ResponseReasoningSummaryTextDeltaEvent,
    ResponseTextDeltaEvent,
)
from pydantic import BaseModel, TypeAdapter

import holdfast as hf

_ITEMS: Final[TypeAdapter[list[TResponseOutputItem]]] = TypeAdapter(list[TResponseOutputItem])
_OUTPUTS: Final = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


async def ask(
    model: Model, step: "hf.Step[Any] | None", args: Sequence[Any], options: Mapping[str, Any]
) -> ModelResponse:
    """Return a whole generation; with a step, as a stream that is shown while it comes.

    Raises:
        ModelCut: the stream ended before its end.
        ModelRefused: the provider says that it failed, or is not whole.
    """
    if step is None:
        return await model.get_response(*args, **options)
    async for event in model.stream_response(*args, **options):
        match event:
            case ResponseTextDeltaEvent(delta=text):
                step.emit(hf.models.TextPiece(text))
            case ResponseReasoningSummaryTextDeltaEvent(delta=text):
                step.emit(hf.models.ReasoningPiece(text))
            case ResponseCompletedEvent(response=response):
                return ModelResponse(output=response.output, usage=_usage(response.usage), response_id=response.id)
            case ResponseFailedEvent() | ResponseIncompleteEvent():
                raise hf.models.ModelRefused(f"the model did not come to an end: {event.type}")
            case _:
                pass
    raise hf.models.ModelCut("the stream ended before the model's answer did")


def _usage(told: Any) -> Usage:
    if told is None:
        return Usage(requests=1)
    return Usage(
        requests=1,
        input_tokens=told.input_tokens,
        output_tokens=told.output_tokens,
        total_tokens=told.total_tokens,
        input_tokens_details=told.input_tokens_details,
        output_tokens_details=told.output_tokens_details,
    )


def dump(said: ModelResponse) -> dict[str, Any]:
    """Return a generation as data, with what it took."""
    return {
        # What was not set is left out: sent back to the provider, a null would be refused.
        "output": [
            item.model_dump(mode="json", exclude_unset=True) if isinstance(item, BaseModel) else item
            for item in said.output
        ],
        "usage": serialize_usage(said.usage),
        "response_id": said.response_id,
        "request_id": said.request_id,
    }


def load(recorded: Mapping[str, Any]) -> ModelResponse:
    """Return the generation that `dump` made data of."""
    return ModelResponse(
        output=_ITEMS.validate_python(recorded["output"]),
        usage=deserialize_usage(recorded["usage"]),
        response_id=recorded["response_id"],
        request_id=recorded["request_id"],
    )


def calls_in(said: ModelResponse) -> list[str]:
    """Return the ids of the function calls in a generation."""
    return [item.call_id for item in said.output if isinstance(item, ResponseFunctionToolCall)]


def stored(result: Any) -> Any:
    """Return what a tool came to, as its model will be told: data as it is, anything else as text."""
    if isinstance(result, list) and any(isinstance(item, _OUTPUTS) for item in result):
        return [stored(item) for item in result]
    if isinstance(result, _OUTPUTS):
        return result.model_dump(mode="json", exclude_none=True)
    try:
        same = json.loads(json.dumps(result, allow_nan=False)) == result
    except (TypeError, ValueError):
        same = False
    return result if same and not isinstance(result, tuple) else str(result)
