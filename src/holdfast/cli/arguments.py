"""A durable function's arguments from text: JSON where it parses and fits the parameter, else the text itself."""

import inspect
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.cli.target import Function
from holdfast.core.codec import encode
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.core.plural import counted, given
from holdfast.engine.form import written
from holdfast.engine.starting import complete


def read_arguments(function: Function, texts: Sequence[str]) -> dict[str, Any]:
    """Return named arguments from words of a command line.

    Raises:
        InvalidInput: there are too many or too few, or one does not fit its parameter.
    """
    parameters = function.parameters
    if len(texts) > len(parameters):
        raise _refused(
            function, f"{function.name} takes {counted(len(parameters), 'argument')}, but {given(len(texts))}"
        )
    named = {
        parameter.name: _argument(function, parameter, text) for parameter, text in zip(parameters, texts, strict=False)
    }
    return complete(function, named)


def _argument(function: Function, parameter: inspect.Parameter, text: str) -> Any:
    forms = [encode(text, f"argument {parameter.name!r}")]
    try:
        msgspec.json.decode(text)
        forms.insert(0, text.encode())
    except msgspec.MsgspecError:
        pass
    why = ""
    for form in forms:
        try:
            return function.decode_input(msgspec.json.encode({parameter.name: Raw(form)}))[parameter.name]
        except InvalidValue as error:
            why = why or str(error.__cause__ or error)
    refused = _refused(function, f"{text!r} does not fit the parameter {written(parameter)}: {why}")
    refused.hint += _by_name(function, text)
    raise refused


def example_of(function: Function) -> list[str] | None:
    """Return the words that give a function arguments which it would take; None where they are not known."""
    sample = function.sample()
    if sample is None:
        return None
    words = []
    for name, body in sample.items():
        value, text = msgspec.json.decode(body), body.decode()
        # Text needs no quotes where it would not be read as anything else.
        words.append(value if isinstance(value, str) and _argument_or_none(function, name, value) == value else text)
    return [*(["--"] if any(word.startswith("-") for word in words) else []), *words]


def _argument_or_none(function: Function, name: str, text: str) -> Any:
    parameter = next(parameter for parameter in function.parameters if parameter.name == name)
    try:
        return _argument(function, parameter, text)
    except InvalidInput:
        return None


def _refused(function: Function, message: str) -> InvalidInput:
    error = InvalidInput(message)
    error.hint = f"It takes: {function.name}({', '.join(map(written, function.parameters))})"
    return error


def _by_name(function: Function, text: str) -> str:
    """Return what to say where an object of named arguments was given as if it were one of them."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return ""
    names = {parameter.name for parameter in function.parameters}
    if not isinstance(value, dict) or not value or not set(value) <= names:
        return ""
    return f"\nArguments by name are written: --input {shlex.quote(text)}"
