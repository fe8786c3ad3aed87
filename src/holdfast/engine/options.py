"""What may be said of a step where it is called."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypedDict

from holdfast.core.errors import InvalidInput
from holdfast.core.limit import Limit
from holdfast.core.retry import Retry
from holdfast.core.status import Effect
from holdfast.core.stepkey import encode_name
from holdfast.engine.branches import Branch
from holdfast.engine.function import StepCode
from holdfast.engine.policy import Policy, declared


class CallOptions(TypedDict, total=False):
    """What may be said of a call; each takes precedence over what the function declared."""

    name: str | None
    effect: Effect | Literal["repeat", "keyed", "once"] | None
    verify: Callable[..., Any] | None
    in_doubt: Literal["raise", "wait"] | None
    retry: Retry | None
    timeout: float | timedelta | None
    heartbeat: float | timedelta | None
    returns: Any
    not_performed: tuple[type[BaseException], ...] | None
    limit: Limit | None
    on_input_change: Literal["refuse", "keep"]


class StepOptions(CallOptions, total=False):
    """The keywords of `ctx.step`."""

    key: str | None


class MapOptions(CallOptions, total=False):
    """The keywords of `ctx.map` but for `key`."""

    at_once: int
    errors: Literal["raise", "return"]


def read_options(code: StepCode, branch: Branch, options: dict[str, Any]) -> tuple[str, bool, Policy | None]:
    """Return a step's key, whether its recorded result counts for any input, and what else the call says of it.

    Raises:
        InvalidInput: that cannot be said of it.
    """
    key, name = options.pop("key", None), options.pop("name", None)
    keep = _is_kept(options.pop("on_input_change", "refuse"))
    step_key = branch.key(code.name if name is None else encode_name(name), key)
    if not options:
        return step_key, keep, None
    # Checked before the journal is asked: what is refused here has no place there, on replay neither.
    said = declared(**options)
    code.check(said)
    return step_key, keep, said


def _is_kept(policy: str) -> bool:
    if policy not in ("refuse", "keep"):
        raise InvalidInput(f"on_input_change= is 'refuse' or 'keep', not {policy!r}")
    return policy == "keep"
