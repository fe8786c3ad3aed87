"""What a model wrote as a call's arguments, read strictly: wrong ones are told to the model, precisely."""

import json
import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from holdfast.agent.reader import Misread
from holdfast.agent.schema import Parameter
from holdfast.core import limits
from holdfast.core.codec import encode
from holdfast.core.errors import InvalidInput
from holdfast.core.plural import listed

_INTEGERS: Final = range(-(2**63), 2**64)
"""What a stored number may be."""
_DIGITS: Final = 20
_SHOWN: Final = 10
"""How many mistakes a model is told of at once."""


class BadArguments(Exception):
    """A call that cannot be made as it is; the message is for the model, which may mend it."""


class _Refused(Exception):
    """The text is no JSON that we take."""


def read_arguments(tool: str, parameters: Sequence[Parameter] | None, text: str | bytes) -> dict[str, Any]:
    """Return a call's arguments by name; `parameters` of None takes any object as it is.

    Raises:
        BadArguments: the tool cannot be called with them.
    """
    try:
        given = _load(text)
    except _Refused as error:
        raise BadArguments(f"The arguments of {tool} cannot be read: {error}. Nothing was done.") from None
    if parameters is None:
        return given
    known = {one.name: one for one in parameters}
    wrong = [f"there is no argument {name!r}" for name in given if name not in known]
    wrong += [f"{name!r} is missing" for name, one in known.items() if one.required and name not in given]
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name in known:
            try:
                read[name] = known[name].reader.read(encode(value))
            except Misread as error:
                wrong += [f"{_place(name, where)}: {why}" for where, why in error.wrong]
            except InvalidInput as error:
                wrong.append(f"{name}: {error}")
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        takes = f" It takes {listed('argument', list(known))}." if known else " It takes no arguments."
        raise BadArguments(
            f"{tool} was not called, because its arguments are wrong: {'; '.join(wrong[:_SHOWN])}{more}.{takes}"
        )
    return read


def _place(name: str, where: str) -> str:
    return name if not where else f"{name}{where}" if where.startswith("[") else f"{name}.{where}"


def _load(text: str | bytes) -> dict[str, Any]:
    """Return the object that a text is.

    Raises:
        _Refused: it is none, or one of which two readers could think differently.
    """
    if len(text) > limits.PAYLOAD_BYTES:
        raise _Refused(f"they are longer than {limits.PAYLOAD_BYTES} bytes")
    try:
        whole = text.decode() if isinstance(text, bytes) else text
        if not whole.strip():
            return {}
        given = json.loads(whole, object_pairs_hook=_single, parse_constant=_constant, parse_int=_whole)
        _check(given, 0)
    except RecursionError:
        raise _Refused(f"they are nested more than {limits.NESTING} levels deep") from None
    except ValueError as error:
        raise _Refused(f"they are not valid JSON ({error})") from None
    if not isinstance(given, dict):
        raise _Refused("they must be a JSON object with the arguments by name")
    return given


def _single(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _Refused(f"{name!r} is given twice")
        members[name] = value
    return members


def _constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is not JSON")


def _whole(digits: str) -> int:
    # Not even made a number: that takes time that grows with the square of its length.
    if len(digits) > _DIGITS or int(digits) not in _INTEGERS:
        raise _Refused("a whole number is too large: at most 64 bits are taken")
    return int(digits)


def _check(value: Any, depth: int) -> None:
    """Refuse what could be read but not kept."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
            raise _Refused("a text holds half of a surrogate pair")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused("a number is too large")
    elif isinstance(value, list | dict):
        if depth >= limits.NESTING:
            raise _Refused(f"they are nested more than {limits.NESTING} levels deep")
        for each in value:
            _check(each, depth + 1)
        if isinstance(value, dict):
            for each in value.values():
                _check(each, depth + 1)
