"""Values to bytes and back, by LangGraph's serializer in its strict mode: a type that is not allowed is refused."""

import dataclasses
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.event_hooks import SerdeEvent, register_serde_event_listener
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.core import limits
from holdfast.core.errors import Damaged, InvalidInput, InvalidValue, PayloadTooLarge
from holdfast.integrations.langgraph.delta import Encoded

Allowed = type | tuple[str, str]
_MSGPACK: Final = "msgpack"
_PLAIN: Final = frozenset({"null", "bytes", "bytearray", _MSGPACK})
"""The forms that LangGraph's serializer makes; a row with another, which would be read by other code, is not ours."""
_ONE: Final = b"\x91"
"""The head of a list of one element."""


class _Blocked(threading.local):
    """What this thread was kept from building."""

    names: list[str] | None = None


_blocked: Final = _Blocked()


def _hear(event: SerdeEvent) -> None:
    # LangGraph hands out the raw data of a type that it blocks, and says so only here.
    if _blocked.names is not None and event["kind"] in ("msgpack_blocked", "msgpack_method_blocked"):
        _blocked.names.append(f"{event['module']}.{event['name']}")


register_serde_event_listener(_hear)


def strict_serializer(allow: Iterable[Allowed]) -> JsonPlusSerializer:
    """Return a serializer that builds LangGraph's own safe types and those of `allow`, and nothing else.

    Raises:
        InvalidInput: something in `allow` is neither a class nor a pair of a module and a name.
    """
    named: list[tuple[str, str]] = []
    for each in allow:
        pair = (each.__module__, each.__name__) if isinstance(each, type) else each
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise InvalidInput(f"allow= takes classes and pairs of a module and a name, not {each!r}")
        named.append(pair)
    return JsonPlusSerializer(allowed_msgpack_modules=named or None)


def checked_serializer(serde: SerializerProtocol) -> SerializerProtocol:
    """Return a serializer of the caller's own.

    Raises:
        InvalidInput: it would run pickle.
    """
    inner = getattr(serde, "serde", serde)
    if getattr(inner, "pickle_fallback", False):
        raise InvalidInput("a serializer with pickle_fallback is refused: pickle runs what a row says")
    return serde


class Coder:
    """One serializer, made strict."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._is_plain = isinstance(serde, JsonPlusSerializer)

    def encode(self, what: str, value: Any) -> Encoded:
        """Return a value's bytes; `look` has still to be asked whether they can be read again.

        Raises:
            InvalidValue: it cannot be stored.
        """
        if self._is_plain and type(value) is list:
            return Encoded(_MSGPACK, len(value), [self._dump(what, [each])[1][1:] for each in value])
        kind, raw = self._dump(what, value)
        return Encoded(kind, None, [raw])

    def look(self, what: str, value: Any, encoded: Encoded, known_bytes: int = 0) -> None:
        """Make sure that a value will come back as it is, but for pieces that were stored so before.

        Raises:
            InvalidValue: it holds something of a type that is not allowed, or that cannot be built again.
            PayloadTooLarge: what is new of it is larger than a payload may be.
        """
        if (size := sum(map(len, encoded.pieces)) - known_bytes) > limits.PAYLOAD_BYTES:
            raise PayloadTooLarge(what, size=size, limit=limits.PAYLOAD_BYTES)
        if encoded.count is None:
            self._look_at(what, value, encoded.kind, encoded.pieces[0])
            return
        place = 0
        for each, piece in zip(value, encoded.pieces, strict=True):
            place += len(piece)
            if place > known_bytes:
                self._look_at(what, [each], encoded.kind, _ONE + piece)

    def _look_at(self, what: str, value: Any, kind: str, raw: bytes) -> None:
        again, blocked = self._load(kind, raw)
        if blocked:
            raise _refusal(what, blocked)
        for one, other in zip(value, again, strict=True) if type(value) is list else [(value, again)]:
            is_built = dataclasses.is_dataclass(one) or hasattr(one, "model_dump")
            if is_built and type(one) is not type(other):
                raise InvalidValue(
                    f"{what} holds a {_name(one)}, which cannot be built again from what is stored of it"
                )

    def decode(self, what: str, encoded: Encoded) -> Any:
        """Return the value of stored bytes.

        Raises:
            Damaged: a row names a form or a type that is not allowed.
        """
        return self.loads(what, encoded.kind, self.whole(encoded))

    @staticmethod
    def whole(encoded: Encoded) -> bytes:
        """Return a value's bytes as the serializer itself would make them."""
        raw = b"".join(encoded.pieces)
        return raw if encoded.count is None else _head(encoded.count) + raw

    def dumps(self, what: str, value: Any) -> tuple[str, bytes]:
        """Return the bytes of a value that is stored whole, looked at.

        Raises:
            InvalidValue: it cannot be stored.
        """
        kind, raw = self._dump(what, value)
        self.look(what, value, Encoded(kind, None, [raw]))
        return kind, raw

    def loads(self, what: str, kind: str, raw: bytes) -> Any:
        """Return the value of what `dumps` returned.

        Raises:
            Damaged: it names a form or a type that is not allowed.
        """
        if self._is_plain and kind not in _PLAIN:
            raise Damaged(run="", seq=None, what=f"{what} is stored in a form {kind!r}, which is not read")
        value, blocked = self._load(kind, raw)
        if blocked:
            raise Damaged(
                run="", seq=None, what=f"{what} holds a {blocked[0]}, which is not among the types that are allowed"
            )
        return value

    def _dump(self, what: str, value: Any) -> tuple[str, bytes]:
        try:
            kind, raw = self._serde.dumps_typed(value)
        except Exception as error:  # whichever serializer it is, and whatever its values do when they are asked
            raise InvalidValue(f"{what} cannot be stored: {error}") from error
        if kind == "pickle":
            raise InvalidValue(f"{what} would be pickled, which runs what a row says")
        return kind, bytes(raw)

    def _load(self, kind: str, raw: bytes) -> tuple[Any, Sequence[str]]:
        names = _blocked.names = []
        try:
            return self._serde.loads_typed((kind, raw)), names
        finally:
            _blocked.names = None


def _refusal(what: str, blocked: Sequence[str]) -> InvalidValue:
    module, _, name = blocked[0].rpartition(".")
    error = InvalidValue(f"{what} holds a {blocked[0]}, which is not among the types that are allowed")
    error.hint = f"Allow it: HoldfastSaver(..., allow=[{name}]), with {name} from {module}; or keep plain data."
    return error


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _head(count: int) -> bytes:
    """Return how msgpack begins a list of so many elements."""
    if count < 16:
        return bytes([0x90 | count])
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")
