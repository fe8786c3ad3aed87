"""What becomes of a checkpoint when its loop is left: success completes it, a shutdown keeps it, all else fails it."""

import asyncio
from enum import StrEnum
from typing import Final

from holdfast.core.errors import StoreUnavailable, Unwind

_SHUTDOWNS: Final = (KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit, Unwind, StoreUnavailable)
"""What says nothing of the loop itself: somebody wants the process to end, or the store does not answer."""


class Verdict(StrEnum):
    """How a checkpoint is left."""

    COMPLETE = "complete"
    KEEP = "keep"
    FAIL = "fail"


def verdict(error: BaseException | None) -> Verdict:
    """Return what becomes of a checkpoint whose loop was left by this error, or by none."""
    if error is None:
        return Verdict.COMPLETE
    if isinstance(error, BaseExceptionGroup):
        # One failure among those that a shutdown left behind is still a failure.
        return Verdict.FAIL if error.split(_SHUTDOWNS)[1] is not None else Verdict.KEEP
    return Verdict.KEEP if isinstance(error, _SHUTDOWNS) else Verdict.FAIL
