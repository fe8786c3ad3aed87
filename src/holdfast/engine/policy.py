"""What an author declares of a step: beside the function by `@hf.step`, or where it is called."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, overload

from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput
from holdfast.core.limit import Limit
from holdfast.core.retry import Retry, checked_exceptions, checked_seconds
from holdfast.core.status import Effect
from holdfast.core.stepkey import encode_name
from holdfast.core.storable import refuse_unstorable

F = TypeVar("F", bound=Callable[..., Any])

_SPEC: Final = "__holdfast_step__"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a step's author declared; None means not said, so that a call may say it and a default may follow."""

    name: str | None = None
    effect: Effect | None = None
    verify: Callable[..., Any] | None = None
    in_doubt: str | None = None
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    heartbeat: float | timedelta | None = None
    returns: Any = None
    not_performed: tuple[type[BaseException], ...] | None = None
    aliases: tuple[str, ...] = ()
    """Names that the step had before; what was recorded under one of them counts."""
    limit: Limit | None = None

    def __post_init__(self) -> None:
        if self.in_doubt not in (None, "raise", "wait"):
            raise InvalidInput(f"in_doubt= is 'raise' or 'wait', not {self.in_doubt!r}")
        if self.verify is not None and not callable(self.verify):
            raise InvalidInput(f"verify= is a function, not {self.verify!r}")
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidInput(f"retry= is an hf.Retry, not {self.retry!r}")
        if self.limit is not None and not isinstance(self.limit, Limit):
            raise InvalidInput(f"limit= is an hf.Limit, not {self.limit!r}")
        if self.timeout is not None:
            checked_seconds("timeout=", self.timeout, least=1e-6)
        if self.heartbeat is not None:
            checked_seconds("heartbeat=", self.heartbeat, least=1e-3)
        if self.name is not None:
            encode_name(self.name)


def declared(
    *,
    effect: Effect | str | None = None,
    returns: Any = None,
    not_performed: Sequence[type[BaseException]] | None = None,
    **rest: Any,
) -> Policy:
    """Return what was said of a step, checked.

    Raises:
        InvalidInput: some of it means nothing.
    """
    known = {"name", "verify", "in_doubt", "retry", "timeout", "heartbeat", "aliases", "limit"}
    unknown = sorted(set(rest) - known)
    if unknown:
        raise InvalidInput(
            f"ctx.step takes no {', '.join(unknown)}=: keywords are Holdfast's; functools.partial takes the others"
        )
    if returns is not None:
        refuse_unstorable("returns= is", returns)
        Codec(returns)
    never = checked_exceptions("not_performed=", not_performed) if not_performed is not None else None
    return Policy(effect=as_effect(effect), returns=returns, not_performed=never, **rest)


def refuse_doubt(policy: Policy, effect: Effect | None, name: str) -> None:
    """Refuse to say what ends a doubt of a step that is never in doubt, but done again."""
    said = next((word for word in ("verify", "in_doubt") if getattr(policy, word) is not None), None)
    if said is not None and effect is not Effect.ONCE:
        raise InvalidInput(
            f"{said}= is for effect='once', and {name or 'this step'} is {str(effect or Effect.REPEAT)!r}: it is never "
            "in doubt, but done again"
        )


def several(what: str, names: Sequence[str]) -> Sequence[str]:
    """Return names, which one text is not.

    Raises:
        InvalidInput: it is one.
    """
    if isinstance(names, str):
        raise InvalidInput(f"{what} is a list of names, not one text")
    return names


NOTHING_SAID: Final = Policy()


@overload
def step(function: F, /) -> F: ...
@overload
def step(
    *,
    name: str | None = None,
    effect: Effect | str | None = None,
    verify: Callable[..., Any] | None = None,
    in_doubt: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    heartbeat: float | timedelta | None = None,
    returns: Any = None,
    not_performed: Sequence[type[BaseException]] | None = None,
    aliases: Sequence[str] = (),
    limit: Limit | None = None,
) -> Callable[[F], F]: ...
def step(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    effect: Effect | str | None = None,
    verify: Callable[..., Any] | None = None,
    in_doubt: str | None = None,
    retry: Retry | None = None,
    timeout: float | timedelta | None = None,
    heartbeat: float | timedelta | None = None,
    returns: Any = None,
    not_performed: Sequence[type[BaseException]] | None = None,
    aliases: Sequence[str] = (),
    limit: Limit | None = None,
) -> Any:
    """Declare how a function behaves as a step, beside the function; `ctx.step` may still say otherwise.

    `not_performed` names the exceptions that prove a `once` effect did not happen; `aliases` are the names that the
    step had before it was renamed.
    """
    if function is not None:
        return _declare_nothing(function)
    policy = declared(
        name=name,
        effect=effect,
        verify=verify,
        in_doubt=in_doubt,
        retry=retry,
        timeout=timeout,
        heartbeat=heartbeat,
        returns=returns,
        not_performed=not_performed,
        aliases=tuple(encode_name(alias) for alias in several("aliases=", aliases)),
        limit=limit,
    )
    refuse_doubt(policy, policy.effect, policy.name or "")

    def declare(function: F) -> F:
        setattr(function, _SPEC, policy)
        return function

    return declare


def _declare_nothing(function: Any) -> Any:
    """Return the function of a bare `@hf.step`; a word in its place is an option without its name."""
    if isinstance(function, str):
        option = "effect" if function in list(Effect) else "name"
        raise InvalidInput(f"hf.step wants its options by name: write @hf.step({option}={str(function)!r})")
    if not callable(function):
        raise InvalidInput(f"hf.step wants a function, not {function!r}")
    setattr(function, _SPEC, NOTHING_SAID)
    return function


def as_effect(effect: Effect | str | None) -> Effect | None:
    """Return the effect that a word names."""
    if effect is None or isinstance(effect, Effect):
        return effect
    try:
        return Effect(effect)
    except ValueError:
        raise InvalidInput(f"effect= is 'repeat', 'keyed' or 'once', not {effect!r}") from None


def policy_of(function: Any) -> Policy:
    """Return what was declared beside a function."""
    policy: Policy = getattr(function, _SPEC, NOTHING_SAID)
    return policy
