"""Starting a run of an app's function by its name, with arguments that came as JSON."""

from collections.abc import Sequence
from inspect import Parameter, formatannotation
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.core.errors import InvalidInput, InvalidValue, NotFound
from holdfast.core.plural import listed
from holdfast.engine.app import App
from holdfast.engine.form import written
from holdfast.engine.function import Durable

Function = Durable[Any, ...]


def read_input(function: Function, text: bytes | str | Raw, what: str) -> dict[str, Any]:
    """Return named arguments from one JSON value: an object of them, or the bare value of a single parameter.

    Raises:
        InvalidInput: it is not JSON, or does not fit the function; `what` names it.
    """
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _refused(function, f"{what} is not JSON: {error}") from None
    given, names = value, [parameter.name for parameter in function.parameters]
    if len(names) == 1 and not (isinstance(value, dict) and names[0] in value):
        value = {names[0]: value}
    if not isinstance(value, dict):
        raise _refused(function, f"{what} must be an object: {function.name} takes {len(names)} named arguments")
    try:
        return complete(function, function.decode_input(msgspec.json.encode(value)))
    except InvalidValue as error:
        raise _refused(function, _unknown(function, given) or str(error)) from None


def complete(function: Function, named: dict[str, Any]) -> dict[str, Any]:
    """Return named arguments if none that has no default is left out.

    Raises:
        InvalidInput: one is.
    """
    missing = [p.name for p in function.parameters if p.default is p.empty and p.name not in named]
    if missing:
        raise _refused(function, f"{function.name} misses its {listed('argument', missing)}")
    return named


def _unknown(function: Function, given: Any) -> str:
    """Return that an object names what is no parameter, where that is what was given."""
    names = {parameter.name for parameter in function.parameters}
    unknown = [name for name in given if name not in names] if isinstance(given, dict) else []
    return f"{function.name} has no {listed('parameter', unknown)}" if unknown else ""


def _refused(function: Function, message: str) -> InvalidInput:
    error = InvalidInput(message)
    error.hint = f"It takes: {function.name}({', '.join(map(written, function.parameters))})"
    return error


def find_function(app: App, name: str) -> Function:
    """Return the function that runs of a name are started of.

    Raises:
        NotFound: the app has none.
    """
    found = app.get(name)
    if found is None or found.name != name:
        error = NotFound(f"a durable function {name!r}")
        error.hint = f"There is: {', '.join(part.name for part in startable(app)) or 'none'}."
        raise error
    return found


def startable(app: App) -> Sequence[Function]:
    """Return the functions of an app by name, each once and none of Holdfast's own."""
    parts = {part.name: part for name in app.names if (part := app.get(name)) is not None}
    return [parts[name] for name in sorted(parts) if not name.startswith("holdfast:")]


def type_of(parameter: Parameter) -> str:
    """Return a parameter's annotation as it is written; empty where there is none."""
    if parameter.annotation is parameter.empty:
        return ""
    if isinstance(parameter.annotation, str):
        return parameter.annotation
    return formatannotation(parameter.annotation)
