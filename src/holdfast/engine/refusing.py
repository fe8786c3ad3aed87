"""What a verb that starts runs cannot be called with, in the words of whoever called it."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from holdfast.core.errors import InvalidInput
from holdfast.engine.function import Durable

Function = TypeVar("Function", bound=Callable[..., Any])


def refuse_plain(verb: str, what: Any) -> None:
    """Refuse to start what is not a durable function.

    Raises:
        InvalidInput: it is not one.
    """
    if not isinstance(what, Durable):
        raise InvalidInput(f"{verb} wants a durable function, not {what!r}{decorated(what)}")


def decorated(what: Any) -> str:
    """Return what to do with a function that is not durable; nothing for what never can be."""
    return "; decorate it with @hf.durable" if callable(what) else ""


def by_place(verb: str) -> Callable[[Function], Function]:
    """Have a verb refuse keywords that are not Holdfast's: those of the function are given by place.

    A type checker refuses them by the signature, which stays as it is.
    """

    def decorate(function: Function) -> Function:
        known = (function.__kwdefaults__ or {}).keys()

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            if not known >= options.keys():
                raise _unknown(verb, args, [name for name in options if name not in known])
            return function(*args, **options)

        return cast("Function", call)

    return decorate


def _unknown(verb: str, args: tuple[Any, ...], names: list[str]) -> InvalidInput:
    what = next((each for each in args if isinstance(each, Durable)), None)
    error = InvalidInput(
        f"{verb} takes no {', '.join(f'{name}=' for name in names)}: keywords are Holdfast's, and the function's own "
        f"arguments are given by place: {verb}({what.name if what is not None else 'function'}, ...)"
    )
    if what is not None:
        error.hint = what.form
    return error
