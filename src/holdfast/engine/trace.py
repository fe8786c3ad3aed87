"""Where an error was raised, as the journal keeps it: the frames of the user's code, without Holdfast's own."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.entry import ErrorInfo
from holdfast.core.errors import HoldfastError
from holdfast.engine.payload import Secrets, error_info, message_of

_OURS: Final = f"{Path(__file__).resolve().parents[1]}/"
_FRAMES: Final = 12
_LOOKED_AT: Final = 100
_CAUSES: Final = 4
_CAUSED: Final = "\nThe above was the cause of:\n"


def traced(error: BaseException, secrets: Secrets) -> ErrorInfo:
    """Return an error as the journal keeps it, with where it was raised."""
    return replace(error_info(error, secrets), traceback=trace_of(error, secrets))


def trace_of(error: BaseException, secrets: Secrets) -> str | None:
    """Return the places that an error came through, the innermost last, and before them those of its cause.

    None where no code but ours raised it. A cause that a journal keeps already is left out: a replay would not have it.
    """
    told = [_told(each) for each in _chain(error)]
    text = _CAUSED.join(text for text in reversed(told) if text)
    if not text:
        return None
    raw = secrets.redact_text(text).encode(errors="replace")
    if len(raw) <= limits.TRACE_BYTES:
        return raw.decode()
    return "…" + raw[-(limits.TRACE_BYTES - 3) :].decode(errors="ignore")


def _chain(error: BaseException) -> Iterator[BaseException]:
    for _ in range(_CAUSES):
        yield error
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        # By their types: an error may resist being looked at.
        if cause is None or _is_kept(error) or _is_kept(cause):
            return
        error = cause


def _is_kept(error: BaseException) -> bool:
    """Say whether a journal has the error's own cause."""
    return issubclass(type(error), HoldfastError)


def _told(error: BaseException) -> str:
    all_frames = traceback.extract_tb(error.__traceback__, limit=-_LOOKED_AT)
    frames = [frame for frame in all_frames if not frame.filename.startswith(_OURS)]
    if not frames:
        return ""
    return "".join(traceback.format_list(frames[-_FRAMES:])) + f"{type(error).__name__}: {message_of(error)[:200]}"
