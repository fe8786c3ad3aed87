"""What may be given to a set of branches, and what comes out of one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import CORO_CREATED, Signature, getcoroutinestate, isawaitable, iscoroutine, signature
from typing import Any

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.engine.branches import Errors
from holdfast.engine.function import Durable, look_at


def raised_first(results: list[Any], errors: Errors) -> list[Any]:
    """Return results, or raise the error of the first that failed."""
    if errors:
        first = errors[min(errors)]
        if len(errors) > 1:
            first.add_note(f"{len(errors) - 1} more of {len(results)} branches failed")
        raise first
    return results


def check_codes(codes: Sequence[Any]) -> None:
    """Refuse what cannot be a branch before any of them has begun.

    Raises:
        InvalidInput: one cannot be awaited, or not by this branch alone.
    """
    begun: set[int] = set()
    for place, code in enumerate(codes, 1):
        if not isawaitable(code):
            raise InvalidInput(
                f"ctx.gather wants what can be awaited, as in ctx.gather(ctx.step(f), g(ctx)); number {place} is "
                f"{str(code)[:60]!r} of type {type(code).__name__}"
            )
        if iscoroutine(code):
            if id(code) in begun or getcoroutinestate(code) != CORO_CREATED:
                raise InvalidInput(f"ctx.gather was given a coroutine twice, or one in use, as number {place}: {code}")
            begun.add(id(code))


def check_map(at_once: Any, errors: Any) -> None:
    """Refuse what cannot be said of a set of branches.

    Raises:
        InvalidInput: it is no number of branches, or no word for what becomes of errors.
    """
    if isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1:
        raise InvalidInput(f"ctx.map(at_once=) is a whole number of at least 1, not {at_once!r}")
    if errors not in ("raise", "return"):
        raise InvalidInput(f"ctx.map(errors=) is 'raise' or 'return', not {errors!r}")


def check_mapped(function: Any, items: Any, options: Mapping[str, Any]) -> None:
    """Refuse a function that no branch can call, or what cannot be said of it.

    Raises:
        InvalidInput: it has no name, or takes no such keywords, or not one item; or the items are none.
    """
    if not callable(function):
        if callable(items):
            raise InvalidInput(f"ctx.map wants the function first: ctx.map({_name(items)}, items)")
        raise InvalidInput(f"ctx.map wants a function, not {function!r}")
    if not isinstance(items, Iterable):
        raise InvalidInput(f"ctx.map wants items that can be gone through, not {items!r}")
    _check_one(function)
    if isinstance(function, Durable):
        if options:
            raise InvalidInput(f"ctx.map of a durable function takes no {', '.join(options)}=: it has no steps")
        return
    if not look_at(_innermost(function)).name and options.get("name") is None:
        raise InvalidInput("a lambda has no name that stays: give ctx.map a name=")


def _check_one(function: Any) -> None:
    """Refuse a function that cannot be called with one item."""
    name = _name(function)
    try:
        form = Signature(function.parameters) if isinstance(function, Durable) else signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not tell what it takes
    try:
        if isinstance(function, Durable):
            function.bind((None,))
        else:
            form.bind(*((None,) if look_at(_innermost(function)).inject is not None else ()), None)
    except (TypeError, InvalidInput):
        raise InvalidInput(
            f"ctx.map gives {name} one item as its one argument, and it is {name}{form}: let it take one and unpack "
            "that, or let functools.partial carry the others"
        ) from None


def _innermost(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


def _name(function: Any) -> str:
    inner = _innermost(function)
    if isinstance(inner, Durable):
        return inner.name
    return look_at(inner).name or "the function"


def branch_keys(items: Sequence[Any], key: Callable[[Any], str]) -> list[str]:
    """Return the key of every item's branch.

    Raises:
        InvalidInput: one is no text that can be kept, or two are the same.
    """
    keys: dict[str, None] = {}
    for item in items:
        one = checked_text("what ctx.map(key=) gives", key(item), limits.NAME_BYTES)
        if one in keys:
            raise InvalidInput(f"ctx.map(key=) gives {one!r} to two items")
        keys[one] = None
    return list(keys)


def close_unbegun(codes: Sequence[Any]) -> None:
    """Close coroutines that were never begun, so that nobody is warned of them."""
    for code in codes:
        if iscoroutine(code) and getcoroutinestate(code) == CORO_CREATED:
            code.close()
