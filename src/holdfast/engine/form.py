"""The form of a durable function: the context first, and by name whatever else it takes."""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from holdfast.core.errors import InvalidInput

_OPEN: Final[tuple[Any, ...]] = (Any, Union, UnionType, inspect.Parameter.empty)
"""Annotations that may be a context's."""


def checked_parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    """Return the parameters of a durable function behind its context.

    Raises:
        InvalidInput: it does not take its context first, or takes what has no name.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        raise InvalidInput(f"{name} needs a first parameter for its context: `ctx: hf.Context`")
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        raise InvalidInput(f"{name}: a durable function's parameters are named; *args and **kwargs are not")
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters[1:]):
        raise InvalidInput(f"{name}: a durable function's parameters are named; those before a `/` are not")
    _check_context(function, parameters)
    return parameters[1:]


class _AsWritten(str):
    """An annotation that is not evaluated yet, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def written(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is written, whether or not its annotation is evaluated: `number: int = 2`."""
    if isinstance(parameter.annotation, str):
        parameter = parameter.replace(annotation=_AsWritten(parameter.annotation))
    return str(parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD))


def _check_context(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
    first, *others = parameters
    form = f"write `async def {function.__name__}(ctx: hf.Context, ...)`"
    if first.name in ("self", "cls"):
        raise InvalidInput(
            f"{function.__name__} is a method, and a run that goes on elsewhere has no object for it: {form} outside "
            "of the class; what its steps need comes from App(deps=)"
        )
    if _kind(function, first) is False:
        raise InvalidInput(f"the first parameter of {function.__name__} is its context, not `{first}`: {form}")
    late = next((each.name for each in others if _kind(function, each) is True), None)
    if late is not None:
        raise InvalidInput(f"{function.__name__} takes its context first and once, not as {late!r}: {form}")


def _kind(function: Callable[..., Any], parameter: inspect.Parameter) -> bool | None:
    """Say whether a parameter is annotated as a context; None where that cannot be told."""
    from holdfast.engine.context import Context  # lazy: it imports what defines durable functions

    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = eval(annotation, getattr(function, "__globals__", {}))
        except Exception:
            return None  # by a name that is not there yet, or only for a type checker
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    kind = get_origin(annotation) or annotation
    if not isinstance(kind, type) or kind in _OPEN or getattr(kind, "_is_protocol", False):
        return None
    if issubclass(kind, Context):
        return True
    try:
        return None if issubclass(Context, kind) else False
    except TypeError:
        return None  # a TypedDict or a Protocol of attributes, which classes cannot be compared with
