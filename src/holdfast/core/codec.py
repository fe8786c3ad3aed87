"""Values to JSON bytes and back by their type: live equals replayed, or it is an error at once."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import sha256
from inspect import formatannotation
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.core import limits
from holdfast.core.errors import InvalidValue, PayloadTooLarge

NULL: Final = Raw(b"null")
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def _encode_foreign(value: Any) -> Any:
    """Encode what msgspec does not know: pydantic models; anything else is not data."""
    serializer = getattr(type(value), "__pydantic_serializer__", None)
    if serializer is not None:
        _refuse_secrets(value)
        return serializer.to_python(value, mode="json")
    raise InvalidValue(f"a {type(value).__module__}.{type(value).__qualname__} is not data and cannot be stored")


def _refuse_secrets(value: Any) -> None:
    """Refuse a pydantic secret, which would be stored as its mask."""
    if hasattr(type(value), "get_secret_value"):
        raise InvalidValue("it holds a secret, which is not stored")
    if hasattr(type(value), "__pydantic_fields__"):
        _refuse_secrets([getattr(value, name) for name in type(value).__pydantic_fields__])
    elif isinstance(value, Mapping):
        _refuse_secrets(list(value.values()))
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_secrets(item)


def _decode_foreign(wanted: type, value: Any) -> Any:
    """Decode by a type that msgspec does not know: pydantic models."""
    validator = getattr(wanted, "__pydantic_validator__", None)
    if validator is not None:
        return validator.validate_python(value)
    raise InvalidValue(f"{wanted!r} is not a type that a stored value can have")


_PLAIN: Final = msgspec.json.Encoder(enc_hook=_encode_foreign)
_SORTED: Final = msgspec.json.Encoder(enc_hook=_encode_foreign, order="sorted")
_ANY: Final = msgspec.json.Decoder()
_FLAT: Final = frozenset({str, int, bool, type(None)})
"""Types that can neither nest nor hold NaN."""


def encode(value: Any, what: str = "the value") -> bytes:
    """Return `value` as JSON.

    Raises:
        InvalidValue: it is not data (NaN, a lone surrogate, nesting too deep, a client or a pool).
        PayloadTooLarge: it is over the limit; `what` names the culprit.
    """
    try:
        body = _PLAIN.encode(value)
    except InvalidValue as error:
        raise InvalidValue(f"{what}: {error}") from None
    except RecursionError:
        raise InvalidValue(f"{what} is nested more than {limits.NESTING} levels deep") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidValue(f"{what} cannot be stored: {error}") from error
    _check(value, body, what)
    return body


def _check(value: Any, body: bytes, what: str) -> None:
    if len(body) > limits.PAYLOAD_BYTES:
        raise PayloadTooLarge(what, size=len(body), limit=limits.PAYLOAD_BYTES)
    if value.__class__ in _FLAT:
        return
    refuse_deep(body, what)
    # msgspec writes NaN and infinities as null: only then is the slow look needed.
    if b"null" in body and not _finite(value):
        raise InvalidValue(f"{what} holds NaN or an infinity, which JSON cannot carry")


def refuse_deep(body: bytes, what: str, most: int = limits.NESTING) -> None:
    """Refuse JSON that nests too deep, before anybody decodes it.

    Raises:
        InvalidValue: it does.
    """
    if body.count(b"[") + body.count(b"{") > most and _too_deep(body, most):
        raise InvalidValue(f"{what} is nested more than {most} levels deep")


def _too_deep(body: bytes, most: int = limits.NESTING) -> bool:
    """Say whether lists and objects nest too deep: take texts out, then the innermost pairs, level by level."""
    brackets = _TEXT.sub(b"", body).translate(_SQUARE, _NOT_BRACKETS)
    for _ in range(most):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _finite(value: Any) -> bool:
    """Say whether no float inside `value` is NaN or infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_finite(key) and _finite(item) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return all(_finite(item) for item in value)
    if isinstance(value, msgspec.Struct):
        return all(_finite(getattr(value, name)) for name in value.__struct_fields__)
    if is_dataclass(value):
        return all(_finite(getattr(value, field.name)) for field in fields(value))
    if hasattr(type(value), "__pydantic_fields__"):
        return all(_finite(getattr(value, name)) for name in type(value).__pydantic_fields__)
    return True


def canonical(value: Any, what: str = "the input") -> bytes:
    """Return the one JSON form of `value`: UTF-8, keys by code point, exact integers.

    Raises:
        InvalidValue: it is not data.
        PayloadTooLarge: it is over the limit.
    """
    try:
        body = _sorted(value)
    except InvalidValue as error:
        raise InvalidValue(f"{what}: {error}") from None
    except RecursionError:
        raise InvalidValue(f"{what} is nested more than {limits.NESTING} levels deep") from None
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidValue(f"{what} cannot be stored: {error}") from error
    _check(value, body, what)
    return body


def _sorted(value: Any) -> bytes:
    try:
        return _SORTED.encode(value)
    except TypeError:
        # Keys that are not text: turn them into text first, as the stored form does, and sets into sorted lists.
        text = msgspec.to_builtins(value, str_keys=True, order="sorted", enc_hook=_encode_foreign)
        return _SORTED.encode(text)


def digest(value: Any, what: str = "the input") -> str:
    """Return the SHA-256 of the canonical form, in hex."""
    return sha256(canonical(value, what)).hexdigest()


def decode_any(body: bytes | Raw) -> Any:
    """Return plain data: dicts, lists, text, numbers."""
    return _ANY.decode(body)


class Codec:
    """Encodes and decodes values of one annotation."""

    __slots__ = ("_decode", "annotation")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        try:
            decoder = msgspec.json.Decoder(annotation, dec_hook=_decode_foreign)
        except (TypeError, ValueError) as error:
            raise InvalidValue(f"{formatannotation(annotation)} is not a type that can be stored: {error}") from error
        self._decode: Callable[[bytes | Raw], Any] = decoder.decode

    def decode(self, body: bytes | Raw, what: str = "the value") -> Any:
        """Return the value that `body` holds.

        Raises:
            InvalidValue: the stored bytes do not have this type.
        """
        try:
            return self._decode(body)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise InvalidValue(f"{what} does not have the type {formatannotation(self.annotation)}: {error}") from error

    def round_trip(self, value: Any, what: str) -> tuple[bytes, Any]:
        """Return the stored bytes of `value` and what a replay will read from them.

        Raises:
            InvalidValue: a replay would read something else.
        """
        body = encode(value, what)
        try:
            back = self._decode(body)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            said = f"{what} does not come back as {formatannotation(self.annotation)}: {error}"
            raise InvalidValue(f"{said}; annotate it with the type it has") from error
        if back is not value and not _same(value, back, body):
            raise InvalidValue(
                f"{what} is {_short(value)} but would be read back as {_short(back)}; annotate it with the type it has"
            )
        return body, back


def _same(value: Any, back: Any, body: bytes) -> bool:
    try:
        if bool(value == back):
            return True
    except Exception:
        return False
    # Types without an __eq__ of their own: the same type and the same bytes.
    own_eq: object = type(value).__eq__
    return type(value) is type(back) and own_eq is object.__eq__ and _PLAIN.encode(back) == body


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
