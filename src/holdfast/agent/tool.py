"""A tool: a function that a model may call, with what is declared of it."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, overload, runtime_checkable

from msgspec import Struct

from holdfast.agent.arguments import read_arguments
from holdfast.agent.docstring import read_docstring
from holdfast.agent.model import ToolSpec
from holdfast.agent.result import Shown, show
from holdfast.agent.schema import Parameter, read_parameters, schema_of
from holdfast.core.codec import Codec
from holdfast.core.errors import HoldfastError, InvalidInput, ToolError
from holdfast.core.limit import Limit
from holdfast.core.retry import Retry
from holdfast.core.status import Effect
from holdfast.engine.function import Durable, StepCode, look_at
from holdfast.engine.log import Log
from holdfast.engine.payload import Secrets
from holdfast.engine.policy import Policy, declared, policy_of, refuse_doubt

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Approval = bool | Callable[..., bool]
WhenInDoubt = Literal["tell", "wait", "raise"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What every provider takes as the name of a tool."""
_NO_SECRETS: Final = Secrets()


class Tool(Generic[P, R_co]):
    """A function that a model may call; made by `@hf.tool`. Calling it directly calls the plain function."""

    def __init__(
        self,
        function: Callable[P, R_co],
        spec: ToolSpec,
        policy: Policy,
        *,
        parameters: Sequence[Parameter] | None = None,
        approval: Approval = False,
        in_doubt: WhenInDoubt = "tell",
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.spec = spec
        self.policy = policy
        """What a step that performs it is declared to be; its effect is always said."""
        self.in_doubt: WhenInDoubt = in_doubt
        """What ends a doubt that `verify` did not: the model is told, a person is waited for, or the run fails."""
        self.child: Durable[Any, ...] | None = function if isinstance(function, Durable) else None
        """The durable function or agent that a call starts a run of, instead of performing a step."""
        self._parameters = parameters
        self._approval = approval

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    @functools.cached_property
    def code(self) -> StepCode:
        """What a step performs: the function, under the tool's name and policy; of a child there is none."""
        if self.child is not None:
            raise InvalidInput(f"{self.name} starts a run of its own: it is no step")
        seen = look_at(self.function)
        codec = seen.own_codec if self.policy.returns is None else Codec(self.policy.returns)
        return replace(seen, name=self.name, policy=self.policy, own_codec=codec, simple=False)

    def read(self, arguments: str | bytes) -> dict[str, Any]:
        """Return the arguments of a call, by name and with their types, from the JSON that the model wrote.

        What is left out and has a default stays out. No text at all means no arguments.

        Raises:
            BadArguments: the tool cannot be called with them; its message is for the model.
        """
        return read_arguments(self.name, self._parameters, arguments)

    def needs_approval(self, arguments: Mapping[str, Any]) -> bool:
        """Say whether a person must agree to a call before it is made; a predicate that fails means yes."""
        if isinstance(self._approval, bool):
            return self._approval
        known = self._parameters or ()
        filled = {one.name: one.default for one in known if not one.required} | dict(arguments)
        try:
            return bool(self._approval(**filled))
        except Exception as error:
            Log().warning("needs_approval could not tell, so a person is asked", tool=self.name, error=repr(error))
            return True

    def render(self, value: Any, secrets: Secrets = _NO_SECRETS) -> Shown:
        """Return what the model is told of a result, and the blob where all of it stands if that is a part.

        It never fails: a value that is not data is told as such, since the call has been made.
        """
        return show(self.name, value, secrets)


class ToolsetUnavailable(HoldfastError):
    """Tools that a run wants cannot be reached; nothing was done with them."""

    code = "toolset_unavailable"
    hint = "See whether the server can be started or reached; the run goes on when it is retried."


class FoundTool(Struct, frozen=True, omit_defaults=True):
    """A tool that was found when a run was under way, as the run records it."""

    name: str
    """What the model calls it."""
    source: str
    """What the server calls it."""
    description: str
    schema: Mapping[str, Any]
    effect: Effect = Effect.ONCE


@runtime_checkable
class Toolset(Protocol):
    """Tools that are not known before a run is under way: those of an MCP server.

    The agent asks `find` once in a run, in a step whose value is recorded, and makes its tools from what is recorded
    ever after: a server that changes its list later changes nothing in a run under way.
    """

    @property
    def name(self) -> str:
        """Under which the list is recorded; one agent has no two of the same name."""

    async def find(self) -> Sequence[FoundTool]:
        """Return the tools that there are now.

        Raises:
            ToolsetUnavailable: they cannot be asked for; coming back may help.
        """

    def make(self, found: FoundTool) -> Tool[..., Any]:
        """Return the tool that was found, whether or not it is still there; nothing is opened for it."""


def as_tool(what: Any) -> Tool[..., Any]:
    """Return what stands in an agent's `tools=` as a tool: a tool, a function, a durable function or an agent.

    Raises:
        InvalidInput: it is none of them.
    """
    if isinstance(what, Tool):
        return what
    if not callable(what):
        raise InvalidInput(f"tools= takes functions, tools, agents and durable functions, not {what!r}")
    return tool(what)


def checked_tools(tools: Sequence[Tool[..., Any]]) -> dict[str, Tool[..., Any]]:
    """Return tools by name.

    Raises:
        InvalidInput: two have the same.
    """
    named: dict[str, Tool[..., Any]] = {}
    for one in tools:
        if named.setdefault(one.name, one) is not one:
            raise InvalidInput(f"two tools are called {one.name!r}: give one of them @hf.tool(name=...)")
    return named


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | Literal["repeat", "keyed", "once"] | None = None,
    needs_approval: Approval = False,
    timeout: float | timedelta | None = None,
    retry: Retry | None = None,
    verify: Callable[..., Any] | None = None,
    in_doubt: WhenInDoubt = "tell",
    heartbeat: float | timedelta | None = None,
    not_performed: Sequence[type[BaseException]] = (),
    limit: Limit | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | str | None = None,
    needs_approval: Approval = False,
    timeout: float | timedelta | None = None,
    retry: Retry | None = None,
    verify: Callable[..., Any] | None = None,
    in_doubt: WhenInDoubt = "tell",
    heartbeat: float | timedelta | None = None,
    not_performed: Sequence[type[BaseException]] = (),
    limit: Limit | None = None,
) -> Any:
    """Make a function a tool: its name, parameters and docstring are what the model is told of it.

    Its effect is `once` unless something else is said, here or by `@hf.step`. A first parameter annotated
    `hf.Step[Deps]` is given by the agent and not shown to the model.

    Raises:
        InvalidInput: the function cannot be a tool, or an option means nothing.
    """
    if isinstance(function, str) or (function is not None and not callable(function)):
        raise InvalidInput(f"hf.tool wants a function, and its options by name, not {function!r}")
    if in_doubt not in ("tell", "wait", "raise"):
        raise InvalidInput(f"in_doubt= is 'tell', 'wait' or 'raise', not {in_doubt!r}")
    said = {
        "effect": effect,
        "timeout": timeout,
        "retry": retry,
        "verify": verify,
        "in_doubt": None if in_doubt == "tell" else in_doubt,
        "heartbeat": heartbeat,
        "not_performed": tuple(not_performed) or None,
        "limit": limit,
    }
    said = {option: value for option, value in said.items() if value is not None}

    def make(function: Any) -> Tool[..., Any]:
        if isinstance(function, Tool):
            raise InvalidInput(f"{function.name} is a tool already")
        if isinstance(function, Durable):
            return _child(function, name, description, needs_approval, said)
        parameters = read_parameters(function)
        policy = _policy(function, said)
        spec = _spec(function, parameters, name, description)
        _check_approval(spec.name, parameters, needs_approval)
        made: Tool[..., Any] = Tool(
            function, spec, policy, parameters=parameters, approval=needs_approval, in_doubt=in_doubt
        )
        made.code.check(policy)
        made.code.refuse(None)
        return made

    return make if function is None else make(function)


def _policy(function: Any, said: Mapping[str, Any]) -> Policy:
    """Return the policy of a tool: what is said of it, over what `@hf.step` said, over what holds for tools."""
    beside = policy_of(function)
    own = declared(**said)
    policy = replace(beside, **{option: getattr(own, option) for option in said})
    never = policy.not_performed or ()
    # Whoever raises ToolError knows what happened, and says it.
    policy = replace(policy, effect=policy.effect or Effect.ONCE, not_performed=(*never, ToolError))
    refuse_doubt(policy, policy.effect, getattr(function, "__name__", "this tool"))
    return policy


def _child(
    function: Durable[Any, ...], name: str | None, description: str | None, approval: Approval, said: Mapping[str, Any]
) -> Tool[..., Any]:
    """Return the tool that starts runs of a durable function, whose own steps have what policies they have."""
    if said:
        raise InvalidInput(
            f"{function.name} is durable, and its calls are runs of their own: "
            f"{', '.join(sorted(said))}= is for its steps"
        )
    parameters = read_parameters(function.function, leave_first=True)
    about = description
    if about is None and type(function) is not Durable:
        about = getattr(function, "description", "")  # of an agent, whose function is not its author's
    spec = _spec(function.function, parameters, name or function.name, about)
    _check_approval(spec.name, parameters, approval)
    return Tool(function, spec, Policy(effect=Effect.ONCE), parameters=parameters, approval=approval)


def _spec(function: Any, parameters: Sequence[Parameter], name: str | None, description: str | None) -> ToolSpec:
    name = name or getattr(function, "__name__", "")
    if name == "<lambda>" or not name:
        raise InvalidInput(f"{function!r} has no name that a model could call it by: give it hf.tool(name=...)")
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name!r} cannot be the name of a tool: providers take 1 to 64 letters, digits, `_` and `-`; use name="
        )
    doc = read_docstring(inspect.getdoc(function) or "" if inspect.isroutine(function) else "")
    about = doc.description if description is None else inspect.cleandoc(description)
    return ToolSpec(name=name, description=about, schema=schema_of(parameters, doc.parameters))


def _check_approval(name: str, parameters: Sequence[Parameter], approval: Any) -> None:
    """Refuse a predicate that could not be called when it is needed."""
    if isinstance(approval, bool):
        return
    if not callable(approval) or inspect.iscoroutinefunction(approval):
        raise InvalidInput(f"needs_approval= of {name} is True, False or a plain function, not {approval!r}")
    try:
        inspect.signature(approval).bind(**{one.name: None for one in parameters})
    except TypeError as error:
        raise InvalidInput(
            f"needs_approval= of {name} is given the tool's own arguments by name, and does not take them: {error}"
        ) from None
    except ValueError:
        pass  # a builtin that does not tell
