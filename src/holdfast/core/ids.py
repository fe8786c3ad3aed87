"""The ids that stand in rows, and how new ones are made."""

import re
from typing import Final, NewType

import uuid_utils

from holdfast.core import limits
from holdfast.core.errors import InvalidInput

RunId = NewType("RunId", str)
"""A UUIDv7 in its canonical text form."""
WorkerId = NewType("WorkerId", str)
Seq = NewType("Seq", int)
"""An entry's number in its run, from 1; also a reader's cursor."""
Fence = NewType("Fence", int)
"""Grows each time a run is claimed. A writer holding an old fence is refused, however late it wakes."""

TENANT: Final = "default"
SCHEDULE_NAME: Final = "holdfast:schedule"
"""The name of the runs that say since when a store knows a schedule."""
CHECKPOINT_NAME: Final = "holdfast:checkpoint"
"""The name of the runs that hold the checkpoints of users' own loops; no worker drives them."""
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_run_id() -> RunId:
    """Return a fresh id, ordered by time of creation."""
    return RunId(str(uuid_utils.uuid7()))


def new_worker_id() -> WorkerId:
    """Return a fresh worker id: one per process and opening, never reused."""
    return WorkerId(str(uuid_utils.uuid7()))


def run_id(text: str) -> RunId:
    """Return `text` as a run id.

    Raises:
        InvalidInput: it is not a canonical UUID.
    """
    if not is_id(text):
        raise InvalidInput(f"{str(text)[:60]!r} is not a run id")
    return RunId(text)


def is_id(text: object) -> bool:
    """Say whether something is an id in its canonical form."""
    return isinstance(text, str) and _UUID.fullmatch(text) is not None


def id_bytes(run: RunId) -> bytes:
    """Return the sixteen bytes of a run id, as stored and checksummed."""
    return bytes.fromhex(run.replace("-", ""))


def id_text(raw: bytes) -> RunId:
    """Return the text of a stored id; the inverse of `id_bytes`."""
    digits = raw.hex()
    return RunId(f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}")


def born_at(run: RunId) -> int:
    """Return when an id was made, in µs, by the clock of whoever made it."""
    return int(run.replace("-", "")[:12], 16) * 1000


def checked_text(what: str, text: str, most_bytes: int) -> str:
    """Return `text` if it can be stored exactly and compared byte by byte.

    Nothing is normalised: two keys that look alike but differ in bytes are two keys.

    Raises:
        InvalidInput: it is empty, too long, not text, or holds a NUL or a lone surrogate.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be text, not {type(text).__name__}")
    if not text:
        raise InvalidInput(f"{what} is empty")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} holds a lone surrogate, which is not text") from None
    if size > most_bytes:
        raise InvalidInput(f"{what} is {size:,} bytes; the limit is {most_bytes:,}")
    if "\x00" in text:
        raise InvalidInput(f"{what} holds a NUL character")
    return text


def checked_key(key: str) -> str:
    """Return a caller's key if it can be kept for ever."""
    return checked_text("the key", key, limits.KEY_BYTES)
