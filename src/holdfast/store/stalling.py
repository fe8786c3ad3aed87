"""Why a run is set aside that makes no progress: how often it was tried, and where it stood."""

from collections.abc import Sequence
from typing import Final

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.errors import Damaged, UnknownEntry
from holdfast.store.value import RunRow

TAIL: Final = 3 * limits.STALLS
"""How many of its last entries are looked at: a try leaves two at most, and the whole journal may be what kills."""
_REASON_BYTES: Final = 500
_OPEN: Final = (e.StepStarted, e.StepDoubted, e.QuestionAsked)


def no_progress(row: RunRow, tail: Sequence[StoredEntry]) -> str:
    """Return the reason of a hopeless run; `tail` are its last entries, the newest last."""
    return f"no_progress: {row.stalls} workers died or gave up without a new entry{_where(row, tail)}"[:_REASON_BYTES]


def _where(row: RunRow, tail: Sequence[StoredEntry]) -> str:
    for stored in reversed(tail):
        try:
            entry = e.read_entry(row.run, stored)
        except (Damaged, UnknownEntry):
            return ""
        step = getattr(entry, "step", None)
        if isinstance(entry, e.RunStarted):
            return ", before its first step was recorded"
        if step is not None:
            return f", {'in' if isinstance(entry, _OPEN) else 'after'} step {step}"
    return ""
