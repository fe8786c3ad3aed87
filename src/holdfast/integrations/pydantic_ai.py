"""pydantic-ai agents that survive a crash: by its own interface for durable execution, what they do are steps."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeVar

from pydantic_ai import messages as theirs
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    BoundDurableOperation,
    CapabilityOperationId,
    DurabilityEngineSpec,
    DurableOperation,
    DurableOperationBackend,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
    durable_unit_scope,
)
from pydantic_ai.exceptions import (
    ModelConnectionError,
    ModelRateLimitError,
    ModelServerError,
    ModelUnavailableError,
    ToolFailed,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

import holdfast as hf
from holdfast.integrations.policy import ToolPolicy, ToolStep, Untold
from holdfast.integrations.relay import Relay, current_relay, current_step, durably, step_here

__all__ = ["PATIENCE", "HoldfastDurability", "ToolPolicy", "current_step", "durably"]

Deps = TypeVar("Deps")
METADATA: Final = "holdfast"
"""Under which word of its metadata a tool says how it is performed."""
PATIENCE: Final = hf.Retry(
    attempts=8,
    first=1.0,
    most=60.0,
    on=(ModelRateLimitError, ModelUnavailableError, ModelServerError, ModelConnectionError),
)
"""How a model that is busy or cannot be reached is asked again, if nothing else is said."""
_RECORDED: Final = "pydantic_ai"
"""Marks a tool's outcome as pydantic-ai writes it; what a person gave in its place has no such mark."""


class HoldfastDurability(BaseDurabilityCapability[Deps]):  # type: ignore[misc]
    """A capability of an agent: run inside `durably(ctx, ...)`, what it does are steps of the run.

    A generation is a `repeat` step, tried again by `retry`; a tool call is `once` unless the tool's metadata says
    otherwise. With `previews` whoever follows the run sees the answer while it comes, so the model is asked for a
    stream. An `event_stream_handler` is called live: of what is replayed it hears again. Anywhere else the agent runs
    as if this were not there.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_call_result_upgrade_lenient=True,  # what a person gave as a tool's result is plain
        journal_discovery=True,
        sequential_tools_in_durable_context=False,
        tool_config_key=METADATA,
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[Deps] | None = None,
        previews: bool = True,
        retry: hf.Retry = PATIENCE,
        timeout: float | timedelta | None = None,
    ) -> None:
        self._previews, self._listener = previews, event_stream_handler
        self._asking: dict[str, Any] = {"retry": retry, "timeout": timeout}
        listens = previews or event_stream_handler is not None
        super().__init__(models=models, event_stream_handler=self._hear if listens else None, name=name)

    @property
    def in_durable_context(self) -> bool:
        """Whether this is the code of a run, outside of its steps."""
        return current_relay() is not None

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Whether events are wanted: outside of a run only by a handler of the user's own."""
        return self._listener is not None or (self._previews and self.in_durable_context)

    def get_durable_operation_backend(self) -> "_Backend":
        """Return what turns operations into steps."""
        return _Backend(self.name, self._asking)

    def get_default_run_id(self) -> str | None:
        """Return an id that is the same whenever the run is resumed."""
        relay = current_relay()
        return relay.next_id() if relay is not None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id that is the same whenever the run is resumed."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when it began, which the time that an agent may take is counted from, whoever resumes it."""
        relay = current_relay()
        return await relay.now() if relay is not None else None

    async def wrap_run(self, ctx: RunContext[Deps], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Announce the calls that the history left open: they are made before a model is asked."""
        relay = current_relay()
        said = next((each for each in reversed(ctx.messages) if isinstance(each, theirs.ModelResponse)), None)
        if relay is not None and said is not None:
            relay.expect(_calls(said))
        return await super().wrap_run(ctx, handler=handler)

    async def _hear(self, ctx: RunContext[Deps], events: AsyncIterable[theirs.AgentStreamEvent]) -> None:
        step = step_here()
        heard = _previewed(events, step) if self._previews and step is not None else events
        if self._listener is not None:
            await self._listener(ctx, heard)
        async for _ in heard:
            pass  # what the listener left


@dataclass(frozen=True)
class _Backend(DurableOperationBackend[Any]):  # type: ignore[misc]
    """What turns the operations of one agent into steps."""

    agent: str
    asking: Mapping[str, Any]

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """Return the caller of an operation."""
        return _Bound(self, operation)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: Any | None, tool_name: str
    ) -> ToolStep | Literal[False]:
        """Return what a tool says of how it is performed; False for one that is no step."""
        said = (tool.tool_def.metadata or {}).get(METADATA, {}) if tool is not None else {}
        return False if said is False else ToolStep.of(said, tool_name)

    def options(self, operation: DurableOperation[Any, Any, Any]) -> Mapping[str, Any]:
        """Return how an operation is performed that is no tool's call: each may be done again."""
        if operation.config_role == "model":
            return self.asking
        lists = isinstance(operation.operation_id, ToolsetGetToolsId | ToolsetGetInstructionsId)
        return {"retry": hf.Retry()} if lists else {}

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Return nothing: a step needs no registration."""
        return ()


class _Bound(BoundDurableOperation[Any, Any, Any]):  # type: ignore[misc]
    """An operation that is a step wherever it is called in a run."""

    def __init__(self, backend: _Backend, operation: DurableOperation[Any, Any, Any]) -> None:
        self._backend, self._operation = backend, operation

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        """What it performs."""
        return self._operation

    async def __call__(self, params: Any, *, config: Any = None) -> Any:
        relay, operation = current_relay(), self._operation
        if relay is None or isinstance(operation.operation_id, EventStreamHandlerId):
            return await operation.handler(params)
        if isinstance(operation.operation_id, ToolsetCallToolId):
            return await self._call(relay, params, config or ToolStep.of({}, params.name))
        label = operation.invocation_label(params) if operation.invocation_label is not None else ""
        given = self._backend.options(operation)
        value = operation.result_codec.load(
            await relay.step(
                f"{self._backend.agent}.{_name(operation.operation_id, label)}",
                lambda step: self._perform(params),
                place=_place(params),
                on_input_change="keep",
                **given,
            )
        )
        if isinstance(value, theirs.ModelResponse):
            relay.expect(_calls(value))
        return value

    async def _call(self, relay: Relay, params: Any, tool: ToolStep) -> Any:
        """Call a tool; of a call that may or may not have happened, the model is told just that."""

        async def perform(step: hf.Step[Any]) -> Any:
            return {_RECORDED: await self._perform(params)}

        try:
            outcome = await tool.call(relay, f"{self._backend.agent}.{params.name}", perform, params.ctx.tool_call_id)
        except Untold as error:
            raise ToolFailed(str(error)) from error
        if isinstance(outcome, dict) and set(outcome) == {_RECORDED}:
            return self._operation.result_codec.load(outcome[_RECORDED])
        return outcome

    async def _perform(self, params: Any) -> Any:
        with durable_unit_scope():
            return self._operation.result_codec.dump(await self._operation.handler(params))


def _name(operation: DurableOperationId, label: str) -> str:
    """Return what a step is called; it stands in journals, so that it never changes."""
    match operation:
        case ModelRequestId():
            return "model"
        case ModelCompactMessagesId():
            return "compact"
        case ModelCancelSuspendedResponseId():
            return "cancel"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"tools.{toolset}"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"instructions.{toolset}"
        case ToolsetValidateToolArgumentsId():
            return f"validate.{label}"
        case CapabilityOperationId(capability_id=capability, operation=name):
            return f"{capability}.{name}"
        case _:  # kinds of operations are added by minor releases
            return type(operation).__name__


def _place(params: Any) -> str | None:
    """Return which call of a message an operation belongs to."""
    context = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    place: str | None = getattr(context, "tool_call_id", None)
    return place


def _calls(said: theirs.ModelResponse) -> list[str]:
    return [part.tool_call_id for part in said.parts if isinstance(part, theirs.ToolCallPart)]


async def _previewed(
    events: AsyncIterable[theirs.AgentStreamEvent], step: hf.Step[Any]
) -> AsyncIterator[theirs.AgentStreamEvent]:
    """Pass events on, and show whoever follows the run what they say."""
    calls: dict[int, int] = {}
    async for event in events:
        for piece in _pieces(event, calls):
            step.emit(piece)
        yield event


def _pieces(event: theirs.AgentStreamEvent, calls: dict[int, int]) -> Iterator[Any]:
    """Return what an event adds to the answer; `calls` has the place of each part that is a call."""
    match event:
        case theirs.PartStartEvent(index=index, part=theirs.ToolCallPart() as call):
            calls[index] = len(calls)
            arguments = call.args_as_json_str() if call.args else ""
            yield hf.models.CallPiece(calls[index], call.tool_call_id, call.tool_name, arguments)
        case theirs.PartStartEvent(part=theirs.TextPart(content=text)) if text:
            yield hf.models.TextPiece(text)
        case theirs.PartStartEvent(part=theirs.ThinkingPart(content=text)) if text:
            yield hf.models.ReasoningPiece(text)
        case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)) if text:
            yield hf.models.TextPiece(text)
        case theirs.PartDeltaEvent(delta=theirs.ThinkingPartDelta(content_delta=str(text))) if text:
            yield hf.models.ReasoningPiece(text)
        case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=str(more))) if more:
            yield hf.models.CallPiece(calls.setdefault(index, len(calls)), arguments=more)
        case _:
            pass
