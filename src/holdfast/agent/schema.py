"""The JSON Schema of a function's arguments, from its type hints."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_origin, get_type_hints

from holdfast.agent.reader import Reader, reader_of, text_beside
from holdfast.core.codec import decode_any, encode
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.engine.step import Step
from holdfast.store.protocol import Transaction

_UNSAID: Final = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument that a model may give."""

    name: str
    reader: Reader
    default: Any
    description: str

    @property
    def required(self) -> bool:
        """True where a call without it cannot be made."""
        return self.default is _UNSAID


def read_parameters(function: Callable[..., Any], *, leave_first: bool = False) -> list[Parameter]:
    """Return what a model may give to a function: every parameter but one that the agent gives itself.

    `leave_first` leaves out the first whatever it is: a durable function's context.

    Raises:
        InvalidInput: a parameter has no name or a type that cannot be read; the message says which and why.
    """
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isclass(function):
        raise InvalidInput(f"{name} is a class: a tool is a function, or an object's method")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"{name} yields: a tool returns what it has to say; hf.Step's emit() tells of progress")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} does not tell its parameters: write a function around it") from error
    hints = _hints(function, name)
    bound: Mapping[str, Any] = {}
    if isinstance(function, functools.partial):
        bound = function.keywords
    elif parameters and (leave_first or _is_given(hints.get(parameters[0].name))):
        del parameters[0]
    return [_parameter(name, each, hints.get(each.name, Any)) for each in parameters if each.name not in bound]


def schema_of(parameters: Sequence[Parameter], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of an object with these members; `texts` describes those whose types do not."""
    properties: dict[str, Any] = {}
    defs: dict[str, Any] = {}
    for one in parameters:
        schema = _joined(defs, one.reader)
        text = one.description or ("" if "description" in schema else texts.get(one.name, ""))
        schema = schema | {"description": text} if text else dict(schema)
        default = _default(one)
        if default is not _UNSAID:
            schema["default"] = default
        properties[one.name] = schema
    whole: dict[str, Any] = {"type": "object", "properties": properties}
    required = [one.name for one in parameters if one.required]
    if required:
        whole["required"] = required
    whole["additionalProperties"] = False
    if defs:
        whole["$defs"] = defs
    return whole


def _hints(function: Any, name: str) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except Exception as error:
        raise InvalidInput(
            f"the annotations of {name} cannot be read: {error}; import the names at the top of its module"
        ) from error


def _is_given(hint: Any) -> bool:
    """Say whether a parameter is the agent's to give."""
    return hint is Transaction or hint is Step or get_origin(hint) is Step


def _parameter(function: str, parameter: inspect.Parameter, hint: Any) -> Parameter:
    where = f"parameter {parameter.name!r} of {function}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise InvalidInput(f"{where}: a tool's parameters are named one by one; *args and **kwargs are not")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise InvalidInput(f"{where}: a tool's parameters are given by name; those before a `/` cannot be")
    if parameter.name in ("self", "cls") and hint is Any:
        raise InvalidInput(f"{function} is a method without its object: give the agent `thing.method`")
    if _is_given(hint):
        raise InvalidInput(f"{where}: what the agent gives itself stands first, and not in a functools.partial")
    if type(parameter.default).__module__ == "pydantic.fields":
        raise InvalidInput(f"{where}: a pydantic Field is no default here; write Annotated[..., Field(...)]")
    try:
        reader = reader_of(hint)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
    return Parameter(parameter.name, reader, parameter.default, text_beside(hint))


def _default(parameter: Parameter) -> Any:
    """Return a default as JSON tells it; one that is no data is not told."""
    if parameter.required:
        return _UNSAID
    try:
        return decode_any(encode(parameter.default))
    except (InvalidValue, InvalidInput):
        return _UNSAID


def _joined(defs: dict[str, Any], reader: Reader) -> dict[str, Any]:
    """Add what a schema refers to, and return the schema; two types of one name get two names."""
    renamed: dict[str, str] = {}
    for name, schema in reader.defs.items():
        free = name
        number = 2
        while free in defs and defs[free] != schema:
            free, number = f"{name}{number}", number + 1
        renamed[name] = free
        defs.setdefault(free, schema)
    if all(old == new for old, new in renamed.items()):
        return reader.schema
    return _renamed(defs, reader, renamed)


def _renamed(defs: dict[str, Any], reader: Reader, renamed: Mapping[str, str]) -> dict[str, Any]:
    def swap(schema: Any) -> Any:
        body = json.dumps(schema)
        for old, new in renamed.items():
            body = body.replace(f'"$ref": "#/$defs/{old}"', f'"$ref": "#/$defs/={new}"')
        return json.loads(body.replace("#/$defs/=", "#/$defs/"))

    for old, new in renamed.items():
        defs[new] = swap(reader.defs[old])
    swapped: dict[str, Any] = swap(reader.schema)
    return swapped
