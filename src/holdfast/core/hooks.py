"""What a program does around the end of a chat turn."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.core.errors import InvalidInput

HOOK: Final = "hook "
"""How the names of their steps begin."""
HOOK_FAILED: Final = "hook failed "
"""How those begin that end a turn that failed: a retry goes on before them."""


class Outcome(Struct, frozen=True, kw_only=True):
    """How a turn came out, as its hooks are told."""

    run: str
    conversation: str | None
    message: str
    """What was said to the agent."""
    result: Any = None
    """What it answered, transformed."""
    error: str | None = None
    """What the turn failed with; None where it did not."""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Steps that end a turn, in this order; what is recorded of one is not performed again, whoever takes the turn up.

    `transform` is given the answer and returns the one that counts. `persist` is given an `Outcome`, and so is
    `on_complete`, of a turn that failed too. `flush` is given nothing, and comes last in any case. A hook that fails is
    logged and changes nothing, unless `on_error` is `"fail"` and the turn has not failed by itself.
    """

    _: KW_ONLY
    transform: Callable[..., Any] | None = None
    persist: Callable[..., Any] | None = None
    on_complete: Callable[..., Any] | None = None
    flush: Callable[..., Any] | None = None
    on_error: Literal["log", "fail"] = "log"

    def __post_init__(self) -> None:
        for name in ("transform", "persist", "on_complete", "flush"):
            if (hook := getattr(self, name)) is not None and not callable(hook):
                raise InvalidInput(f"Hooks({name}=) is a function, not {hook!r}")
        if self.on_error not in ("log", "fail"):
            raise InvalidInput(f"Hooks(on_error=) is 'log' or 'fail', not {self.on_error!r}")


def checked_hooks(given: object) -> Hooks:
    """Return hooks; those of None do nothing.

    Raises:
        InvalidInput: it is something else.
    """
    if given is None:
        return Hooks()
    if not isinstance(given, Hooks):
        raise InvalidInput(f"hooks= is a holdfast.server.Hooks, not {given!r}")
    return given
