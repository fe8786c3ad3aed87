"""What stands in a header: only what HTTP can carry, and never told."""

import re
from collections.abc import Mapping
from typing import Final

import httpx2

from holdfast.core.errors import InvalidInput

_CARRIED: Final = re.compile(r"[\t\x20-\x7e]*")
_UNCARRIED: Final = "a header holds what HTTP cannot carry"


def is_carried(value: str) -> bool:
    """Say whether a text can stand in a header: one line of ASCII can."""
    return _CARRIED.fullmatch(value) is not None


def checked_key(what: str, key: str | None) -> str | None:
    """Return a key that can be sent.

    Raises:
        InvalidInput: it cannot; the key is not told.
    """
    if key is not None and not is_carried(key.strip()):
        raise InvalidInput(f"{what} holds what a header cannot carry: a line's end within it, or what is not ASCII")
    return key


def checked_headers(what: str, headers: Mapping[str, str] | None) -> dict[str, str]:
    """Return headers that can be sent.

    Raises:
        InvalidInput: one cannot; its value is not told.
    """
    for name, value in (headers or {}).items():
        if not is_carried(name):
            raise InvalidInput(f"{what}: the name of {_UNCARRIED}")
        if not is_carried(value):
            raise InvalidInput(f"{what}: {_UNCARRIED}: {name}")
    return dict(headers or {})


def told(error: BaseException) -> str:
    """Return what an error of the network says, without what we sent."""
    if isinstance(error, httpx2.LocalProtocolError):
        # It repeats the header, and that may be the key.
        return _UNCARRIED
    return str(error) or type(error).__name__
