"""Durable functions and step functions, looked at once: names, parameters, and types."""

import functools
import inspect
import operator
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from msgspec import Raw

from holdfast.core import limits
from holdfast.core.budget import Budget
from holdfast.core.codec import Codec, canonical
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.core.ids import checked_text
from holdfast.core.plural import counted, given, listed
from holdfast.core.sample import sample_of
from holdfast.core.status import NotDone
from holdfast.core.stepkey import encode_name
from holdfast.core.storable import refuse_unstorable, unstorable
from holdfast.engine.form import checked_parameters, written
from holdfast.engine.misfit import misfit
from holdfast.engine.policy import NOTHING_SAID, Policy, policy_of, refuse_doubt, several
from holdfast.engine.step import Step
from holdfast.store.protocol import Transaction

if TYPE_CHECKING:
    from holdfast.engine.context import Context

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

_NAMED: Final = Codec(dict[str, Raw])


@dataclass(slots=True)
class StepCode:
    """A step function, looked at once."""

    function: Callable[..., Any]
    name: str
    """Percent-encoded; empty for a lambda, which needs a key."""
    is_async: bool
    inject: str | None
    parameters: tuple[str, ...]
    variadic: bool
    policy: Policy
    own_codec: Codec
    """Of the result, by the policy or the annotation."""
    aliases: tuple[str, ...]
    simple: bool
    """True for an async function that nothing is declared of and nothing is injected into."""
    lasting: bool
    """False where no result of its own type could be stored."""

    def check(self, policy: Policy) -> None:
        """Refuse what cannot be asked of this function.

        Raises:
            InvalidInput: it owes a sign of life and has no way to give one, or can never be in doubt.
        """
        refuse_doubt(policy, policy.effect or self.policy.effect, self.name)
        if policy.heartbeat is not None and self.inject != "step":
            raise InvalidInput(
                f"heartbeat= is for a function that can beat: let the first parameter of {self.name or 'it'} be "
                "`step: hf.Step[...]`, and call step.beat()"
            )

    def refuse(self, said: Policy | None) -> None:
        """Refuse to perform what has no result that lasts, unless the call says what comes back.

        Raises:
            InvalidValue: the effect would happen, and nothing could be known of it.
        """
        if said is None or said.returns is None:
            refuse_unstorable(f"step {self.name or 'without a name'} returns", self.own_codec.annotation)

    def input_form(self, args: Sequence[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        """Return the named arguments, as given."""
        parameters = self.parameters
        if len(parameters) == 1 == len(args) and not keywords and not self.variadic:
            return {parameters[0]: args[0]}
        if self.variadic or len(args) > len(parameters):
            return {"*": list(args), **keywords} if keywords else {"*": list(args)}
        named = dict(zip(parameters, args, strict=False))
        return named | keywords if keywords else named


def look_at(function: Callable[..., Any]) -> StepCode:
    """Look at a step function, once if it can be remembered.

    Raises:
        InvalidInput: it is not a function, or its annotations cannot be read.
    """
    if not callable(function):
        raise InvalidInput(f"ctx.step wants a function, not {function!r}")
    try:
        hash(function)
    except TypeError:
        # A method of an object that cannot be hashed: looked at each time.
        return _step_code.__wrapped__(function)
    return _step_code(function)


def _result_type(annotation: Any) -> Any:
    """Return the type of what is stored: a `verify` may say NOT_DONE instead of a result, which never is."""
    if annotation is NotDone:
        return Any
    kinds = get_args(annotation)
    if NotDone not in kinds:
        return annotation
    return functools.reduce(operator.or_, [kind for kind in kinds if kind is not NotDone])


@functools.lru_cache(maxsize=4096)
def _step_code(function: Callable[..., Any]) -> StepCode:
    if isinstance(function, Durable):
        raise InvalidInput(f"{function.name} is a durable function, whose run is of its own: use ctx.run, not ctx.step")
    own: object = getattr(function, "code", None)
    if isinstance(own, StepCode):
        return own  # of a tool, which is a step by what is declared of it
    target = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    hints = _hints(target)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # a builtin that does not tell
    inject = _injected(parameters, hints)
    if inject is not None:
        parameters = parameters[1:]
    name = getattr(function, "__name__", type(function).__name__)
    policy = policy_of(function)
    is_async = inspect.iscoroutinefunction(target)
    result = policy.returns if policy.returns is not None else _result_type(hints.get("return", Any))
    code = StepCode(
        function=function,
        name="" if name == "<lambda>" and policy.name is None else encode_name(policy.name or name),
        is_async=is_async,
        inject=inject,
        parameters=tuple(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL and p.kind is not p.VAR_KEYWORD),
        variadic=any(p.kind is p.VAR_POSITIONAL for p in parameters) or not parameters,
        policy=policy,
        own_codec=Codec(result),
        aliases=policy.aliases,
        simple=is_async and inject is None and policy is NOTHING_SAID,
        lasting=unstorable(result) is None,
    )
    code.check(policy)
    return code


def _hints(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except TypeError:
        return {}
    except Exception as error:
        raise InvalidInput(
            f"the annotations of {getattr(function, '__qualname__', function)} cannot be read: {error}; "
            "import the names at the top of its module"
        ) from error


def _injected(parameters: list[inspect.Parameter], hints: dict[str, Any]) -> str | None:
    if not parameters:
        return None
    hint = hints.get(parameters[0].name)
    if hint is Transaction:
        return "transaction"
    return "step" if hint is Step or get_origin(hint) is Step else None


class OnlyDurable:
    """Nothing has this type. It stands first in what a verb that starts runs takes, and no other function takes it.

    So a type checker refuses a function that nobody made durable, and knows which arguments may be left out: whatever
    can be called with those that are given is taken, as of any function.
    """


class Durable(Generic[R_co, P]):
    """A function whose runs survive; made by `@hf.durable`. Calling it directly calls the plain function.

    As a type it is `hf.Durable[int, [str, bool]]`: the result, and the parameters behind the context; `...` for any.
    """

    def __init__(
        self, function: Callable[..., Awaitable[R_co]], *, name: str | None = None, aliases: Sequence[str] = ()
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise InvalidInput(f"@hf.durable wants an `async def` function, not {function!r}")
        functools.update_wrapper(self, function)
        self.function = function
        self.name = checked_text("the name", function.__name__ if name is None else name, limits.NAME_BYTES)
        self.aliases = tuple(checked_text("an alias", one, limits.NAME_BYTES) for one in several("aliases=", aliases))
        self.parameters = checked_parameters(function, self.name)
        self.budget: Budget | None = None
        """What a run of it may spend where nothing is said at its start."""
        self.pin = False
        """True where only the version that a run was started with may drive it."""

    def __call__(self, ctx: "Context | OnlyDurable", /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R_co]:
        return self.function(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<durable {self.name}>"

    @functools.cached_property
    def code(self) -> str:
        """The version of the code when none is given: a digest of the source."""
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            source = self.function.__code__.co_code.hex()
        return sha256(source.encode()).hexdigest()[:16]

    @functools.cached_property
    def _types(self) -> dict[str, Codec]:
        hints = _hints(self.function)
        return {p.name: Codec(hints.get(p.name, Any)) for p in self.parameters}

    @functools.cached_property
    def result(self) -> Codec:
        """The codec of what the function returns."""
        annotation = _hints(self.function).get("return", Any)
        refuse_unstorable(f"{self.name} returns", annotation)
        return Codec(annotation)

    def check_result(self) -> None:
        """Refuse a result that could never be stored, as far as the annotation can be read by now.

        Raises:
            InvalidValue: the function would run to its end for nothing.
        """
        try:
            assert self.result is not None
        except InvalidValue:
            raise
        except InvalidInput:
            pass  # it names what its module has not defined yet; whoever starts a run looks again

    @functools.cached_property
    def _needed(self) -> set[str]:
        return {p.name for p in self.parameters if p.default is p.empty}

    def sample(self) -> dict[str, bytes] | None:
        """Return arguments as JSON that would be taken, those without a default; None where one is not known."""
        known = {name: sample_of(self._types[name]) for name in self._types if name in self._needed}
        return {name: body for name, body in known.items() if body is not None} if None not in known.values() else None

    def takes_first(self, kind: type) -> bool:
        """Say whether the first parameter behind the context is annotated `kind`."""
        return bool(self.parameters) and _hints(self.function).get(self.parameters[0].name) is kind

    def bind(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return the named arguments, as given.

        Raises:
            InvalidInput: there are too many or too few.
        """
        names = [p.name for p in self.parameters]
        if len(args) > len(names):
            raise self._refused(f"{self.name} takes {counted(len(names), 'argument')}, but {given(len(args))}")
        missing = [p.name for p in self.parameters[len(args) :] if p.default is p.empty]
        if missing:
            raise self._refused(f"{self.name} misses its {listed('argument', missing)}")
        return dict(zip(names, args, strict=False))

    def _refused(self, message: str) -> InvalidInput:
        error = InvalidInput(message)
        error.hint = self.form
        return error

    @property
    def form(self) -> str:
        """What it takes, for people."""
        return f"It takes: {self.name}({', '.join(map(written, self.parameters))})"

    def encode_input(self, named: dict[str, Any]) -> bytes:
        """Return the stored form of the input, checked to come back as it is.

        Raises:
            InvalidInput: a value is not data, or does not have its parameter's type.
        """
        known = self._types
        for name, value in named.items():
            if name not in known:
                raise InvalidInput(f"{self.name} has no parameter {name!r}")
            try:
                known[name].round_trip(value, f"argument {name!r} of {self.name}")
            except InvalidValue as error:
                wanted = {each: known[each] for each in known if each in named or each in self._needed}
                raise misfit(self.name, name, wanted, value, error) from error.__cause__
        return canonical(named, f"the input of {self.name}")

    def decode_input(self, body: bytes | Raw) -> dict[str, Any]:
        """Return the arguments from their stored form, by the parameters' types."""
        known = self._types
        raw = _NAMED.decode(body, f"the input of {self.name}")
        unknown = sorted(set(raw) - set(known))
        if unknown:
            raise InvalidValue(f"the input names {', '.join(unknown)}, which {self.name} does not take")
        return {name: known[name].decode(value, f"argument {name!r}") for name, value in raw.items()}


@overload
def durable(function: Callable[Concatenate[Any, P], Awaitable[R]], /) -> Durable[R, P]: ...
@overload
def durable(
    *, name: str | None = None, aliases: Sequence[str] = ()
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Durable[R, P]]: ...
def durable(function: Any = None, /, *, name: str | None = None, aliases: Sequence[str] = ()) -> Any:
    """Make an `async def` function durable: its runs go on from their last committed entry.

    Its first parameter is the context; the others are its input. `aliases` are the names that it had before it was
    renamed: runs that were started under them are its too.
    """
    if function is not None:
        return Durable(function)
    return lambda function: Durable(function, name=name, aliases=aliases)
