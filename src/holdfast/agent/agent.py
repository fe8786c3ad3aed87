"""An LLM agent as a durable function: its input is a message, its code is the loop, its result the answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, cast, overload

from holdfast.agent.generating import PATIENCE
from holdfast.agent.harness import Harness
from holdfast.agent.model import Model
from holdfast.agent.output import Output
from holdfast.agent.phases import checked_phases
from holdfast.agent.tool import Toolset, as_tool, checked_tools
from holdfast.agent.turn import Turn
from holdfast.core.budget import Budget, checked_budget
from holdfast.core.codec import Codec, canonical
from holdfast.core.errors import InvalidInput
from holdfast.core.hooks import Hooks, checked_hooks
from holdfast.core.retry import Retry, checked_seconds
from holdfast.core.stepkey import encode_name
from holdfast.engine.context import Context
from holdfast.engine.function import Durable, look_at
from holdfast.engine.talk import Talk

R_co = TypeVar("R_co", covariant=True)
OnChange = Literal["adopt", "pin"]
_TURNS: Final = 50
_AT_ONCE: Final = 8
_TRIES: Final = 2
_FINDING: Final = Lock()
"""Runs that begin at once find one model, not each its own."""


class AgentOptions(TypedDict, total=False):
    """The keywords of `hf.Agent` but for `model`, `harness`, `phases` and `output`."""

    instructions: str | Callable[..., Any]
    tools: Sequence[Any]
    budget: Budget | None
    turn_limit: int
    tool_limit: int
    output_limit: int
    compact_after: int | None
    approval_expires: float | timedelta | None
    retry: Retry
    settings: Mapping[str, Any]
    workspace: str | Path | None
    on_change: OnChange
    hooks: Hooks | None
    description: str
    aliases: Sequence[str]


class Agent(Durable[R_co, [str]], Generic[R_co]):
    """A model with instructions and tools, whose turns are durable runs.

    A run is started with a message and returns the answer: text, or what `output` says. Wherever a durable function is
    taken, an agent is too.
    """

    @overload
    def __init__(self: "Agent[str]", name: str, *, model: Model | str, **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(
        self, name: str, *, model: Model | str, output: type[R_co], **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: "Agent[str]", name: str, *, phases: Sequence["Agent[Any]"], **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(
        self, name: str, *, phases: Sequence["Agent[Any]"], output: type[R_co], **options: Unpack[AgentOptions]
    ) -> None: ...
    @overload
    def __init__(self: "Agent[str]", name: str, *, harness: Harness, **options: Unpack[AgentOptions]) -> None: ...
    @overload
    def __init__(self, name: str, *, harness: Harness, output: type[R_co], **options: Unpack[AgentOptions]) -> None: ...
    def __init__(
        self,
        name: str,
        *,
        model: Model | str | None = None,
        harness: Harness | None = None,
        phases: Sequence["Agent[Any]"] = (),
        output: Any = str,
        instructions: str | Callable[..., Any] = "",
        tools: Sequence[Any] = (),
        budget: Budget | None = None,
        turn_limit: int = _TURNS,
        tool_limit: int = _AT_ONCE,
        output_limit: int = _TRIES,
        compact_after: int | None = None,
        approval_expires: float | timedelta | None = None,
        retry: Retry = PATIENCE,
        settings: Mapping[str, Any] | None = None,
        workspace: str | Path | None = None,
        on_change: OnChange = "adopt",
        hooks: Hooks | None = None,
        description: str = "",
        aliases: Sequence[str] = (),
    ) -> None:
        """Describe an agent; nothing is opened or asked before a run of it is driven.

        Args:
            name: Under which its runs are known; code that resumes them has an agent of this name.
            model: Who writes the next message, or its name: `"openai:gpt-5-mini"`. Or `harness`, or `phases`.
            harness: What takes the turn elsewhere and keeps its own memory of the conversation; see `holdfast.harness`.
            phases: Agents of which one at a time has the word, with its own model, instructions and tools beside these.
                A conversation begins in the first, and stays in the one that its model last entered.
            output: The type of the answer. What has not this form is asked for again, `output_limit` times.
            instructions: What the model is told first; of a function what it returns, recorded once in each run.
            tools: Functions, tools, agents, durable functions and toolsets (MCP servers) that the model may call.
            budget: What a run may take if nothing else is said where it is started.
            turn_limit: How often the model may be asked in one run.
            tool_limit: How many calls of one message are under way at once.
            output_limit: How often another answer is asked for, where one has not the form of `output`.
            compact_after: Above how many tokens, about, what was said is replaced by a summary; None for never.
            approval_expires: How long a person has to agree to a call of a tool that needs it.
            retry: How a model that is busy, or was cut off, is asked again.
            settings: Of the provider: temperature, max_tokens and so on, sent as they are.
            workspace: The directory that a harness works in, the same for every turn.
            on_change: `"adopt"` lets other instructions, tools or models take over a run under way; `"pin"` keeps a
                run with the version that it was started with.
            hooks: What is done with an answer before its run ends, as steps of it.
            description: What another agent's model is told of this one as a tool.
            aliases: Names that it had before.

        Raises:
            InvalidInput: some of it means nothing.
        """

        async def turn(ctx: Context, message: str) -> Any:
            return await Turn(self, ctx).take(message)

        turn.__doc__ = description or None
        turn.__name__ = turn.__qualname__ = name
        super().__init__(turn, name=name, aliases=aliases)
        given = _several("tools", tools)
        self.tools = checked_tools([as_tool(one) for one in given if not isinstance(one, Toolset)])
        """What the model may call, by name; those of toolsets are found when a run is under way."""
        self.toolsets = _named([one for one in given if isinstance(one, Toolset)])
        self.output = Output(self.name, output)
        self.description = description
        self.budget = checked_budget(budget)
        self.turn_limit = _count("turn_limit", turn_limit)
        self.tool_limit = _count("tool_limit", tool_limit)
        self.output_limit = _count("output_limit", output_limit, least=0)
        self.compact_after = _count("compact_after", compact_after) if compact_after is not None else None
        if approval_expires is not None:
            checked_seconds("approval_expires=", approval_expires)
        self.approval_expires = approval_expires
        if not isinstance(retry, Retry):
            raise InvalidInput(f"retry= is an hf.Retry, not {retry!r}")
        self.retry = retry
        self.settings: Mapping[str, Any] = dict(settings or {})
        if on_change not in ("adopt", "pin"):
            raise InvalidInput(f"on_change= is 'adopt' or 'pin', not {on_change!r}")
        self.on_change, self.pin = on_change, on_change == "pin"
        self.hooks = checked_hooks(hooks)
        if not isinstance(instructions, str) and not callable(instructions):
            raise InvalidInput(f"instructions= is text, or a function that returns it, not {instructions!r}")
        self.instructions = instructions
        self.workspace = Path(workspace) if workspace is not None else None
        self.phases = checked_phases(self, _several("phases", phases))
        """Who has the word by turns, by name; empty where it is always the agent itself."""
        self.harness = _checked_harness(harness, model or next(iter(self.phases), None))
        if self.phases and model is not None:
            raise InvalidInput("an agent with phases= has no model=: each of its phases has one")
        if harness is not None:
            self._refuse_with_harness(harness)
        elif not self.phases and not isinstance(model, str) and not callable(getattr(model, "ask", None)):
            raise InvalidInput(f"model= is a model or the name of one, as in 'openai:gpt-5-mini', not {model!r}")
        elif workspace is not None:
            raise InvalidInput("workspace= is the directory of a harness, and this agent has none")
        self._model = model

    def _refuse_with_harness(self, harness: Harness) -> None:
        if self.compact_after is not None:
            raise InvalidInput(f"compact_after= is for models: harness {harness.name!r} has a memory of its own")
        if (self.tools or self.toolsets) and not harness.takes_tools:
            raise InvalidInput(f"harness {harness.name!r} calls no tools of the agent's: leave tools= out")

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    @cached_property
    def model(self) -> Model:
        """Who writes the next message; one given by name is looked up when it is first needed."""
        if self._model is None:
            raise InvalidInput(f"agent {self.name!r} has a harness or phases, and no model of its own")
        if not isinstance(self._model, str):
            return self._model
        providers: Any = import_module("holdfast.agent.providers")
        return cast(Model, providers.find(self._model))

    async def find_model(self) -> Model:
        """Return `model` without blocking the event loop: one given by name may have its SDK to import first."""
        if "model" in self.__dict__ or not isinstance(self._model, str):
            return self.model
        return await asyncio.to_thread(self._find_model)

    def _find_model(self) -> Model:
        with _FINDING:
            return self.model

    @cached_property
    def code(self) -> str:
        """The version of the agent when none is given: a digest of what its runs depend on."""
        told = self.instructions if isinstance(self.instructions, str) else _name_of(self.instructions)
        specs = [[tool.spec.name, tool.spec.description, tool.spec.schema] for tool in self.tools.values()]
        form: dict[str, Any] = {"name": self.name, "instructions": told, "tools": specs, "output": self.output.schema}
        if self.harness is not None:
            form["harness"] = self.harness.name
        if self.phases:
            form["phases"] = [phase.code for phase in self.phases.values()]
        return sha256(canonical(form, f"the version of {self.name}")).hexdigest()[:16]

    @cached_property
    def result(self) -> Codec:
        """The codec of the answer."""
        return self.output.codec

    async def instructions_for(self, ctx: Context, talk: Talk, name: str) -> str:
        """Return what the model is told first in a run; of a function what it returned when it was first called.

        That is recorded under a name.
        """
        following = talk.next()
        recorded = following is not None and following.name == encode_name(name)
        if isinstance(self.instructions, str):
            given = self.instructions
            return str(await ctx.step(_text, given, name=name, on_input_change="keep")) if recorded else given
        if following is None or recorded:
            return str(await ctx.step(self.instructions, name=name, returns=str, on_input_change="keep"))
        # The run was begun with a text, so that nothing is recorded here.
        code = look_at(self.instructions)
        return str(await talk.drive.perform(code, (), {}))


def _checked_harness(harness: Any, model: Any) -> Harness | None:
    if harness is None:
        if model is None:
            raise InvalidInput("an agent has a model=, a harness= or phases=")
        return None
    if model is not None:
        raise InvalidInput("an agent has a model=, a harness= or phases=, and only one of them")
    if not callable(getattr(harness, "open", None)) or not isinstance(getattr(harness, "name", None), str):
        raise InvalidInput(f"harness= is a harness of holdfast.harness or your own, not {harness!r}")
    checked: Harness = harness
    return checked


def _text(given: str) -> str:
    return given


def _named(toolsets: Sequence[Toolset]) -> dict[str, Toolset]:
    named: dict[str, Toolset] = {}
    for one in toolsets:
        if named.setdefault(one.name, one) is not one:
            raise InvalidInput(f"two toolsets are called {one.name!r}: give one of them another name")
    return named


def _several(what: str, given: Any) -> Sequence[Any]:
    if isinstance(given, str | bytes | Mapping) or callable(given):
        raise InvalidInput(f"{what}= is a list of {what}, not {given!r}")
    return list(given)


def _count(what: str, number: Any, *, least: int = 1) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InvalidInput(f"{what}= is a whole number of at least {least}, not {number!r}")
    return number


def _name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
