"""An argument that does not fit its parameter: which, what was wanted and given, and what would have been right."""

import inspect
from collections.abc import Iterable
from typing import Any

from holdfast.core.codec import Codec, encode
from holdfast.core.errors import InvalidValue
from holdfast.core.sample import sample_of


def misfit(function: str, parameter: str, types: dict[str, Codec], value: Any, error: InvalidValue) -> InvalidValue:
    """Return the refusal of a value for one of a function's parameters, with a call that would be taken, if known.

    `types` are those of the parameters to be given, in order. What is no data at all is refused for that.
    """
    try:
        encode(value, "it")
    except InvalidValue:
        return error
    refused = error
    if error.__cause__ is not None:
        given = repr(value)
        given = given if len(given) <= 80 else f"{given[:77]}..."
        refused = InvalidValue(
            f"argument {parameter!r} of {function} must be {type_name(types[parameter].annotation)}, not {given} "
            f"of type {type(value).__name__}: {error.__cause__}"
        )
    refused.hint = f"Pass what is annotated, or annotate {parameter!r} with the type it has."
    samples = _samples(types.values())
    if samples is not None:
        refused.hint += f" This would be taken: start({', '.join([function, *samples])})"
    return refused


def type_name(annotation: Any) -> str:
    """Return an annotation as its author wrote it, without the module."""
    written = inspect.formatannotation(annotation)
    module = getattr(annotation, "__module__", "")
    return written.removeprefix(f"{module}.") if module else written


def _samples(codecs: Iterable[Codec]) -> list[str] | None:
    """Return arguments of these types as Python writes them; None where one is not known."""
    samples = []
    for codec in codecs:
        body = sample_of(codec)
        if body is None:
            return None
        samples.append(repr(codec.decode(body)))
    return samples
