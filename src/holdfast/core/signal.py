"""What comes to a run from outside: signals by name, and decisions of people."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, overload

from holdfast.core import limits
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text

T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)


class Carrier(Protocol[T_contra]):
    """What a value can be sent by: of a signal that is received as something wider, still only what it carries."""

    def check(self, value: T_contra, /) -> None:
        """Refuse a value that cannot be sent."""


class Signal(Generic[T_co]):
    """A named message that runs wait for by `ctx.receive`; `type` is what it carries."""

    @overload
    def __init__(self: "Signal[T_co]", name: str, type: type[T_co]) -> None: ...
    @overload
    def __init__(self: "Signal[Any]", name: str, type: Any = ...) -> None: ...
    def __init__(self, name: str, type: Any = Any) -> None:
        self.name = checked_text("a signal's name", name, limits.NAME_BYTES)
        self.type = type

    def __repr__(self) -> str:
        return f"hf.Signal({self.name!r}, {getattr(self.type, '__name__', self.type)})"

    # Covariant for who receives it. For who sends it `Carrier` keeps the value's type, and the codec looks again.
    def check(self, value: T_co, /) -> None:  # type: ignore[misc]
        """Refuse a value that it does not carry.

        Raises:
            InvalidInput: it is of another type, or no data.
        """
        self.codec.round_trip(value, f"signal {self.name}")

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


def checked_args(args: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what people may change before they agree, or what somebody changed, by name.

    Raises:
        InvalidInput: it has no names.
    """
    if args is not None and not isinstance(args, Mapping):
        raise InvalidInput(f"args= is a mapping of names to values, not {type(args).__name__}")
    return dict(args) if args is not None else None
