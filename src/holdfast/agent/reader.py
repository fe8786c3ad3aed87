"""One type: its JSON Schema, and how a value of it is read; by msgspec, or by pydantic where the type is pydantic's."""

import functools
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from inspect import cleandoc, formatannotation
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import msgspec.inspect

from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput, InvalidValue
from holdfast.core.storable import held_types

_REF: Final = "#/$defs/"
_AT: Final = re.compile(r" - at `(?:key in )?\$(.*)`$")
_FOREIGN: Final = ("pydantic", "pydantic_core", "annotated_types")
"""Packages whose marks on a type only pydantic reads."""
_WITH_FIELDS: Final = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)
_NAMED: Final = ("properties", "$defs", "patternProperties", "dependentSchemas")
"""Keywords of a schema below which the keys are names of the author's."""


class Misread(Exception):
    """A value does not have its type: where in it, and why."""

    def __init__(self, *wrong: tuple[str, str]) -> None:
        super().__init__("; ".join(f"{where}: {why}" for where, why in wrong))
        self.wrong = wrong


@dataclass(frozen=True, slots=True)
class Reader:
    """A type as a model is told of it, and as what the model writes is read."""

    schema: dict[str, Any]
    defs: dict[str, Any]
    """What the schema refers to, by name."""
    read: Callable[[bytes], Any]
    """Returns a value from its JSON; raises `Misread`."""


def reader_of(annotation: Any) -> Reader:
    """Return how values of a type are described and read.

    Raises:
        InvalidInput: nothing that a model writes could have this type.
    """
    try:
        if any(_is_foreign(part) for part in _parts(annotation)):
            return _by_pydantic(annotation)
        return _by_msgspec(annotation)
    except InvalidInput:
        raise
    except Exception as error:
        # Two libraries' schema makers, and hooks of the type's author: whatever they raise is said of the type.
        why = str(error).replace("\n", " ") or type(error).__name__
        raise InvalidInput(f"{formatannotation(annotation)} cannot be described to a model: {why}") from error


def _parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and everything that it is written with."""
    yield annotation
    for part in getattr(annotation, "__metadata__", ()):
        yield part
    for part in get_args(annotation):
        if get_origin(annotation) is not None and not isinstance(part, str):
            yield from _parts(part)


def _is_foreign(part: Any) -> bool:
    if hasattr(part, "__pydantic_validator__") or hasattr(part, "__get_pydantic_core_schema__"):
        return True
    return type(part).__module__.partition(".")[0] in _FOREIGN


# By msgspec


def _dated(annotation: Any) -> Any:
    """Return a type whose schema says that a moment is one: msgspec tells only those that have a time zone."""
    if annotation is datetime:
        return Annotated[datetime, msgspec.Meta(extra_json_schema={"format": "date-time"})]
    if get_origin(annotation) in (Union, UnionType) and datetime in get_args(annotation):
        return functools.reduce(operator.or_, map(_dated, get_args(annotation)))
    return annotation


def _by_msgspec(annotation: Any) -> Reader:
    annotation = _dated(annotation)
    collected: dict[str, Any] = {}

    def hook(kind: type) -> dict[str, Any]:
        if not hasattr(kind, "__pydantic_validator__"):
            raise NotImplementedError
        inner = _by_pydantic(kind)
        collected.update(inner.defs)
        return inner.schema

    try:
        (schema,), defs = msgspec.json.schema_components([annotation], schema_hook=hook, ref_template=_REF + "{name}")
    except TypeError as error:
        if "is not supported" not in str(error):
            raise
        raise InvalidInput(
            f"{formatannotation(annotation)} cannot be described to a model: {str(error).rpartition(chr(10))[2]}"
        ) from error
    codec = Codec(annotation)

    def read(body: bytes) -> Any:
        try:
            return codec.decode(body)
        except InvalidValue as error:
            raise _misread(error.__cause__ or error) from error

    return Reader(_untitled(schema), _described(annotation, _untitled_all(defs | collected)), read)


def _described(annotation: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """Return definitions with the texts that authors put beside fields, which msgspec does not read."""
    seen: set[type] = set()
    to_visit: list[Any] = [msgspec.inspect.type_info(annotation)]
    while to_visit:
        kind = to_visit.pop()
        to_visit += held_types(kind) if getattr(kind, "cls", None) not in seen else ()
        if not isinstance(kind, _WITH_FIELDS) or kind.cls in seen:
            continue
        seen.add(kind.cls)
        properties = defs.get(kind.cls.__name__, {}).get("properties", {})
        hints = get_type_hints(kind.cls, include_extras=True)
        for field in kind.fields:
            text = text_beside(hints.get(field.name))
            if text and field.encode_name in properties:
                properties[field.encode_name].setdefault("description", text)
    return defs


def text_beside(hint: Any) -> str:
    """Return what an annotation itself says of what it annotates: a text, or an object with a text."""
    if get_origin(hint) is not Annotated:
        return ""
    for mark in get_args(hint)[1:]:
        text = mark if isinstance(mark, str) else getattr(mark, "description", getattr(mark, "documentation", None))
        if isinstance(text, str) and text:
            return cleandoc(text)
    return ""


def _misread(error: BaseException) -> Misread:
    """Return what msgspec said, with the place in front."""
    foreign = _pydantic_wrong(error)
    if foreign is not None:
        return Misread(*foreign)
    said = str(error)
    found = _AT.search(said)
    where = found[1].removeprefix(".") if found is not None else ""
    return Misread((where, _AT.sub("", said)))


# By pydantic


def _by_pydantic(annotation: Any) -> Reader:
    from pydantic import TypeAdapter, ValidationError  # lazy: only whoever uses it has it

    adapter: Any = TypeAdapter(annotation)
    schema = adapter.json_schema(ref_template=_REF + "{model}")
    defs = schema.pop("$defs", {})

    def read(body: bytes) -> Any:
        try:
            return adapter.validate_json(body, strict=True)
        except ValidationError as error:
            raise Misread(*(_pydantic_wrong(error) or ())) from error

    return Reader(_untitled(schema), _untitled_all(defs), read)


def _pydantic_wrong(error: BaseException) -> list[tuple[str, str]] | None:
    """Return where and why, of an error of pydantic's; None of another."""
    errors = getattr(error, "errors", None)
    if type(error).__module__.partition(".")[0] not in _FOREIGN or not callable(errors):
        return None
    return [
        (".".join(str(part) for part in one["loc"]), one["msg"])
        for one in errors(include_url=False, include_context=False, include_input=False)
    ]


# Titles


def _untitled(schema: Any) -> Any:
    """Return a schema without titles: names of classes, which tell a model nothing and cost it tokens."""
    if isinstance(schema, list):
        return [_untitled(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for keyword, value in schema.items():
        if keyword in ("enum", "const", "default", "examples"):
            kept[keyword] = value
        elif keyword in _NAMED and isinstance(value, dict):
            kept[keyword] = _untitled_all(value)
        elif keyword != "title":
            kept[keyword] = _untitled(value)
    return kept


def _untitled_all(named: dict[str, Any]) -> dict[str, Any]:
    return {name: _untitled(schema) for name, schema in named.items()}
