"""What comes to a run from outside: signals by name, and decisions of people."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

from holdfast.core import limits
from holdfast.core.codec import Codec
from holdfast.core.ids import checked_text

T = TypeVar("T")


class Signal(Generic[T]):
    """A named message that runs wait for by `ctx.receive`; `type` is what it carries."""

    @overload
    def __init__(self: "Signal[T]", name: str, type: type[T]) -> None: ...
    @overload
    def __init__(self: "Signal[Any]", name: str, type: Any = ...) -> None: ...
    def __init__(self, name: str, type: Any = Any) -> None:
        self.name = checked_text("a signal's name", name, limits.NAME_BYTES)
        self.type = type

    def __repr__(self) -> str:
        return f"hf.Signal({self.name!r}, {getattr(self.type, '__name__', self.type)})"

    @cached_property
    def codec(self) -> Codec:
        """How its values are written and read."""
        return Codec(self.type)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided; true when they agreed."""

    yes: bool
    by: str | None = None
    note: str | None = None
    args: dict[str, Any] | None = None
    """What they were asked to agree to, with their changes."""
    at: int = 0
    """When, in µs."""
    expired: bool = False

    def __bool__(self) -> bool:
        return self.yes
