"""Whether values of a type are data: seen before anything is done for a result that could never be kept."""

import functools
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

from holdfast.core.errors import InvalidValue


def refuse_unstorable(what: str, annotation: Any) -> None:
    """Refuse a result's type of which no value can be stored.

    Raises:
        InvalidValue: it holds a class that is not data; `what` begins the message.
    """
    found = unstorable(annotation)
    if found is None:
        return
    error = InvalidValue(
        f"{what} {annotation!r}, which cannot be stored: a {found.__module__}.{found.__qualname__} is not data"
    )
    error.hint = (
        "Return a dataclass, a msgspec.Struct, a pydantic model or plain values, and annotate that; `Any` is for plain "
        "values of any kind."
    )
    raise error


def unstorable(annotation: Any) -> type | None:
    """Return the first class in an annotation that is not data; None where all of it is, or is not known."""
    try:
        return _unstorable(annotation)
    except TypeError:
        return None  # it cannot be hashed or read: whoever makes a codec of it says what is wrong


@functools.lru_cache(maxsize=4096)
def _unstorable(annotation: Any) -> type | None:
    seen: list[type] = []
    open_kinds = [inspect.type_info(annotation)]
    while open_kinds:
        kind = open_kinds.pop()
        if isinstance(kind, inspect.CustomType):
            if not hasattr(kind.cls, "__pydantic_validator__"):
                return kind.cls
        elif (cls := getattr(kind, "cls", None)) not in seen:
            if cls is not None:
                seen.append(cls)
            open_kinds += held_types(kind)
    return None


def held_types(kind: Any) -> Iterator[inspect.Type]:
    """Yield the types that a type is made of."""
    for name in ("type", "item_type", "key_type", "value_type"):
        if isinstance(inner := getattr(kind, name, None), inspect.Type):
            yield inner
    yield from getattr(kind, "types", ())
    yield from getattr(kind, "item_types", ())
    yield from (field.type for field in getattr(kind, "fields", ()))
