"""Event ids: `17` is an entry, `17:4:40` a chunk after it, and `@2` the store's epoch when it is not the first."""

import re
from typing import Final, NamedTuple

from holdfast.core.errors import BadCursor, Conflict

_FORM: Final = re.compile(r"(0|[1-9][0-9]{0,17})(?::([1-9][0-9]{0,17}):([1-9][0-9]{0,17}))?(?:@([1-9][0-9]{0,8}))?")


class Cursor(NamedTuple):
    """A place in a run's feed; compares in the feed's order. An entry is (seq, 0, 0), its chunks follow it."""

    seq: int
    fence: int = 0
    number: int = 0


START: Final = Cursor(0)


def check_form(text: str) -> re.Match[str]:
    """Return the parts of an event id.

    Raises:
        BadCursor: it has not the form of one.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise BadCursor(text[:80], "is not an event id")
    return form


def parse_cursor(text: str | int | None, *, epoch: int) -> Cursor:
    """Return the place that an event id names; none is the start.

    Raises:
        BadCursor: it has not the form of an event id.
        Conflict: it was given out before the store was restored from a backup.
    """
    if text is None or text == "":
        return START
    form = check_form(str(text))
    seq, fence, number, of_epoch = form.groups()
    if int(of_epoch or 1) != epoch:
        raise Conflict(
            f"event id {text!r} is of epoch {of_epoch or 1}, but the store is at epoch {epoch}: "
            "it was restored from a backup, and what followed may differ",
            hint="Read the run again from its start.",
        )
    return Cursor(int(seq), int(fence or 0), int(number or 0))


def format_cursor(cursor: Cursor, *, epoch: int) -> str:
    """Return the event id of a place."""
    text = f"{cursor.seq}:{cursor.fence}:{cursor.number}" if cursor.number else str(cursor.seq)
    return text if epoch == 1 else f"{text}@{epoch}"
