"""A run of the OpenAI Agents SDK as durable code: its model and its tools are steps, its approvals are questions."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from agents import (
    Agent,
    CodeInterpreterTool,
    FileSearchTool,
    FunctionTool,
    Handoff,
    HostedMCPTool,
    ImageGenerationTool,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    Runner,
    RunResult,
    RunState,
    Tool,
    ToolApprovalItem,
    TResponseInputItem,
    WebSearchTool,
)
from agents.items import TResponseStreamEvent
from agents.tool_context import ToolContext
from openai import APIConnectionError, InternalServerError, RateLimitError

import holdfast as hf
from holdfast.core.errors import InvalidInput
from holdfast.integrations.openai_agents.response import ask, calls_in, dump, load, stored
from holdfast.integrations.openai_agents.session import HoldfastSession
from holdfast.integrations.policy import ToolPolicy, ToolStep, Untold
from holdfast.integrations.relay import Relay, current_relay

PATIENCE: Final = hf.Retry(
    attempts=8, first=1.0, most=60.0, on=(RateLimitError, APIConnectionError, InternalServerError)
)
"""How a model that is busy or cannot be reached is asked again, if nothing else is said."""
_HOSTED: Final = (CodeInterpreterTool, FileSearchTool, HostedMCPTool, ImageGenerationTool, WebSearchTool)
"""Tools that a provider calls while it generates: they are part of a generation."""
_ELSEWHERE: Final = ("conversation_id", "auto_previous_response_id")


async def run(
    ctx: hf.Context,
    agent: Agent[Any],
    input: str | list[TResponseInputItem],
    /,
    *,
    policies: Mapping[str, ToolPolicy] | None = None,
    retry: hf.Retry = PATIENCE,
    timeout: float | timedelta | None = None,
    previews: bool = False,
    approval_expires: float | timedelta | None = None,
    **options: Any,
) -> RunResult:
    """Do as `Runner.run(agent, input, **options)`, as part of a durable run: what was done is not done again.

    A generation is a `repeat` step, tried again by `retry`; a call of a function tool is a `once` step unless
    `policies` says otherwise of its name. With `previews` the model is asked for a stream, which whoever follows the
    run sees. A call that needs approval is a question to a person, who has `approval_expires` to answer.

    Raises:
        InvalidInput: some of what the agent has cannot be made durable.
        StepError: the model did not answer, or a tool failed that tells its model nothing of it.
    """
    making = _Making(ctx, policies or {}, {"retry": retry, "timeout": timeout}, previews)
    made, given = making.agent(agent), making.checked(options)
    try:
        result = await _go(ctx, made, input, (), given)
        while result.interruptions:
            state = result.to_state()
            items = list(result.interruptions)
            decisions = await ctx.gather(*(_ask(ctx, item, approval_expires) for item in items))
            for item, decision in zip(items, decisions, strict=True):
                _decide(state, item, decision)
            result = await _go(ctx, made, state, [item.call_id or "" for item in items], given)
        return result
    finally:
        if options.get("run_config") is None:
            await given["run_config"].model_provider.aclose()  # made here, so closed here


async def _go(
    ctx: hf.Context, agent: Agent[Any], input: Any, calls: Sequence[str], options: Mapping[str, Any]
) -> RunResult:
    relay = Relay(ctx)
    relay.expect(calls)
    return await relay.run(Runner.run(agent, input, **options))


async def _ask(ctx: hf.Context, item: ToolApprovalItem, expires: float | timedelta | None) -> hf.Decision:
    """Ask a person about a call; the question is made of the recorded call alone, so that the answer holds for it."""
    show = {"tool": item.qualified_name or item.name, "arguments": _parsed(item.arguments)}
    return await ctx.ask(f"Call {item.name}?", show=show, expires=expires)


def _decide(state: RunState[Any], item: ToolApprovalItem, decision: hf.Decision) -> None:
    if decision:
        state.approve(item)
        return
    why = "nobody agreed to it in time" if decision.expired else "a person refused it"
    note = f" They say: {decision.note}" if decision.note else ""
    state.reject(item, rejection_message=f"It was not called: {why}.{note}")


def _parsed(arguments: str | None) -> Any:
    try:
        return json.loads(arguments or "{}")
    except ValueError:
        return arguments


@dataclass(frozen=True)
class _Making:
    """What stays the same while an agent, and whoever it may hand over to, are made durable."""

    ctx: hf.Context
    policies: Mapping[str, ToolPolicy]
    asking: Mapping[str, Any]
    previews: bool
    _made: dict[int, Agent[Any]] = field(default_factory=dict)

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return an agent whose tools and model are steps; agents that know each other still do."""
        known = self._made.get(id(agent))
        if known is not None:
            return known
        if agent.mcp_servers:
            raise InvalidInput(
                f"agent {agent.name!r} has mcp_servers, whose tools are not steps: give them to it as function tools, "
                "by MCPUtil.get_function_tools"
            )
        made = self._made[id(agent)] = copy(agent)
        made.tools = [self._tool(tool, agent) for tool in agent.tools]
        made.handoffs = [self._handoff(each) for each in agent.handoffs]
        if isinstance(agent.model, Model):
            made.model = _StepModel(agent.model, self)
        return made

    def _handoff(self, handoff: Any) -> Any:
        if isinstance(handoff, Agent):
            return self.agent(handoff)
        invoke = handoff.on_invoke_handoff

        async def invoke_and_make(context: Any, arguments: str) -> Agent[Any]:
            return self.agent(await invoke(context, arguments))

        assert isinstance(handoff, Handoff)
        return replace(handoff, on_invoke_handoff=invoke_and_make)

    def _tool(self, tool: Tool, agent: Agent[Any]) -> Tool:
        if isinstance(tool, _HOSTED):
            return tool
        if not isinstance(tool, FunctionTool):
            raise InvalidInput(
                f"{type(tool).__name__} of agent {agent.name!r} acts on this machine and is no function tool: nothing "
                "is known of it after a crash. Give the agent a function tool that does the same."
            )
        made = copy(tool)
        made.on_invoke_tool = _StepTool(made.on_invoke_tool, ToolStep.of(self.policies.get(tool.name, {}), tool.name))
        return made

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a run, with a provider whose models are steps.

        Raises:
            InvalidInput: one of them would do something twice when the run is resumed.
        """
        session = options.get("session")
        if session is not None and not isinstance(session, HoldfastSession):
            raise InvalidInput("session= is a HoldfastSession: another would be written again by a resumed run")
        for name in _ELSEWHERE:
            if options.get(name):
                raise InvalidInput(f"{name}= keeps the conversation at the provider, which a resumed run would repeat")
        config = options.get("run_config")
        config = RunConfig(**config) if isinstance(config, dict) else config or RunConfig()
        model = _StepModel(config.model, self) if isinstance(config.model, Model) else config.model
        provider = _StepProvider(config.model_provider, self)
        return {**options, "run_config": replace(config, model=model, model_provider=provider)}


class _StepProvider(ModelProvider):  # type: ignore[misc]
    """A provider whose models are steps."""

    def __init__(self, provider: ModelProvider, making: _Making) -> None:
        self._provider, self._making = provider, making

    def get_model(self, model_name: str | None) -> Model:
        return _StepModel(self._provider.get_model(model_name), self._making)

    async def aclose(self) -> None:
        await self._provider.aclose()


class _StepModel(Model):  # type: ignore[misc]
    """A model whose generations are steps."""

    def __init__(self, model: Model, making: _Making) -> None:
        self._model, self._making = model, making

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        relay = current_relay()
        if relay is None:
            return await self._model.get_response(*args, **options)

        async def perform(step: hf.Step[Any]) -> Any:
            return dump(await ask(self._model, step if self._making.previews else None, args, options))

        said = load(await relay.step("model", perform, on_input_change="keep", **self._making.asking))
        relay.expect(calls_in(said))
        return said

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        events: AsyncIterator[TResponseStreamEvent] = self._model.stream_response(*args, **options)
        return events

    async def close(self) -> None:
        await self._model.close()


class _StepTool:
    """Calls a function tool as a step."""

    def __init__(self, invoke: Any, tool: ToolStep) -> None:
        self._invoke, self._tool = invoke, tool

    async def __call__(self, ctx: ToolContext[Any], input: str) -> Any:
        relay = current_relay()
        if relay is None:
            return await self._invoke(ctx, input)

        async def perform(step: hf.Step[Any]) -> Any:
            return stored(await self._invoke(ctx, input))

        try:
            return await self._tool.call(relay, ctx.tool_name, perform, ctx.tool_call_id)
        except Untold as error:
            return str(error)
