"""A small value of a type, for messages that show what would have been right."""

from typing import Any, Final

import msgspec
from msgspec import inspect

from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidValue

_PLAIN: Final[dict[type, Any]] = {
    inspect.AnyType: "text",
    inspect.NoneType: None,
    inspect.BoolType: True,
    inspect.IntType: 1,
    inspect.FloatType: 1.5,
    inspect.StrType: "text",
    inspect.BytesType: "AAEC",
    inspect.DateTimeType: "2030-01-31T18:00:00Z",
    inspect.DateType: "2030-01-31",
    inspect.TimeType: "18:00:00",
    inspect.TimeDeltaType: "PT60S",
    inspect.UUIDType: "01234567-89ab-7def-8123-456789abcdef",
    inspect.DecimalType: "1.50",
}
_MANY: Final = (inspect.ListType, inspect.SetType, inspect.FrozenSetType, inspect.VarTupleType)


class _NoSample(Exception):
    """A type that no sample is known of."""


def sample_of(codec: Codec) -> bytes | None:
    """Return a value of a codec's type as JSON; None where none is known that it would read."""
    try:
        body = msgspec.json.encode(_sample(inspect.type_info(codec.annotation)))
        codec.decode(body)
    except (_NoSample, InvalidValue, TypeError, ValueError, RecursionError):
        return None
    return body


def _sample(kind: Any) -> Any:
    if type(kind) in _PLAIN:
        return _PLAIN[type(kind)]
    match kind:
        case inspect.Metadata():
            return _sample(kind.type)
        case inspect.UnionType():
            some = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            return _sample(some[0])
        case inspect.EnumType():
            return next(iter(kind.cls)).value
        case inspect.LiteralType():
            return kind.values[0]
        case inspect.TupleType():
            return [_sample(each) for each in kind.item_types]
        case inspect.DictType():
            return {str(_sample(kind.key_type)): _sample(kind.value_type)}
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return _fields(kind)
    if isinstance(kind, _MANY):
        return [_sample(kind.item_type)]
    raise _NoSample


def _fields(kind: Any) -> Any:
    needed = {field.encode_name: _sample(field.type) for field in kind.fields if field.required}
    if isinstance(kind, inspect.NamedTupleType):
        return list(needed.values())
    if isinstance(kind, inspect.StructType):
        if kind.array_like:
            raise _NoSample
        if kind.tag_field is not None:
            return {kind.tag_field: kind.tag} | needed
    return needed
