"""Cron expressions in a time zone: which instants are their ticks."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from heapq import merge
from itertools import dropwhile, groupby
from typing import Final

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.core.plural import counted

Walls = Callable[[datetime, bool], Iterator[datetime]]
"""Yields the times of a wall clock that an expression names after a time, or before it."""
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS: Final = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, or L for the last",
    "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7 (0 and 7 are Sunday), or SUN to SAT",
}
_FORM: Final = "Write minute, hour, day of month, month and day of week: '0 2 * * *' is every night at two."
_ANY_DAY: Final = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)


def zone_of(tz: str) -> tzinfo:
    """Return the time zone of that name.

    Raises:
        InvalidInput: there is none.
    """
    if checked_text("tz=", tz, limits.NAME_BYTES) == "UTC":
        return UTC  # needs no database
    from zoneinfo import ZoneInfo  # lazy: only a schedule in another zone needs the database

    try:
        return ZoneInfo(tz)
    except (KeyError, ValueError, OSError) as error:
        refused = InvalidInput(f"tz= is the name of a time zone, such as 'Europe/Berlin', not {tz!r}")
        refused.hint = "Where the system has no time zones of its own, install the package tzdata."
        raise refused from error


class Cron:
    """An expression in a time zone; its ticks are the same instants whoever asks for them, and from whenever on.

    Where neither minutes nor hours begin with `*`, each time that is named comes once: one that the clocks leap over
    comes when they have leapt, and one that they show twice comes the first time. Any other expression means whatever
    the clocks show: what they leap over does not come, and what they show twice comes twice.
    """

    __slots__ = ("_walls", "_zone", "expression", "once")

    def __init__(self, expression: str, zone: tzinfo) -> None:
        """Read an expression.

        Raises:
            InvalidInput: it is none; the message says which field is wrong.
        """
        self.expression, self._walls = _read(expression)
        self._zone = zone
        self.once = not any(field.startswith("*") for field in self.expression.split()[:2])

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Yield the ticks after an instant, in order, in UTC."""
        start = _wall(instant, self._zone) - self._swing(instant)
        return dropwhile(lambda tick: tick <= instant, self._ticks(start, backwards=False))

    def until(self, instant: datetime) -> Iterator[datetime]:
        """Yield the ticks up to an instant and at it, the latest first, in UTC."""
        start = _wall(instant, self._zone) + self._swing(instant) + _SECOND
        return dropwhile(lambda tick: tick > instant, self._ticks(start, backwards=True))

    def _swing(self, instant: datetime) -> timedelta:
        """Return by how much the clocks are moved about then: so far apart may a time and its neighbours stand."""
        before, later = (_offset(near, self._zone) for near in (instant - _DAY, instant + _DAY))
        return abs(later - before)

    def _ticks(self, start: datetime, *, backwards: bool) -> Iterator[datetime]:
        folds = (0,) if self.once else (0, 1)
        # Each stream is in order by itself; only where a time is shown twice do the two differ.
        streams = (self._stream(start, fold, backwards) for fold in folds)
        return (tick for tick, _ in groupby(merge(*streams, reverse=backwards)))

    def _stream(self, start: datetime, fold: int, backwards: bool) -> Iterator[datetime]:
        for wall in self._walls(start, backwards):
            tick = self._instant(wall, fold)
            if tick is not None:
                yield tick

    def _instant(self, wall: datetime, fold: int) -> datetime | None:
        while True:
            instant = wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
            if _wall(instant, self._zone) == wall:
                return instant
            if not self.once:
                return None
            wall += _MINUTE


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _read(expression: str) -> tuple[str, Walls]:
    from cronsim import CronSim, CronSimError  # lazy: only who declares a schedule loads it

    given = checked_text("the cron expression", expression, limits.NAME_BYTES).strip()
    text = " ".join(_NICKNAMES.get(given.lower(), given).upper().split())
    if given.startswith("@") and text.startswith("@"):
        raise _refused(expression, f"the names are {', '.join(sorted(_NICKNAMES))}")
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise _refused(expression, f"it has {counted(len(fields), 'field')}, and must have five")

    def walls(start: datetime, backwards: bool) -> Iterator[datetime]:
        return CronSim(text, start, reverse=backwards)

    for place, (name, takes) in enumerate(_FIELDS.items()):
        try:
            CronSim(" ".join(field if place == at else "*" for at, field in enumerate(fields)), _ANY_DAY)
        except CronSimError:
            lists = "with lists (1,5), ranges (1-5) and steps (*/15)"
            raise _refused(expression, f"the {name} is {fields[place]!r}; it takes {takes}, {lists}") from None
    try:
        comes = next(walls(_ANY_DAY, False), None) is not None
    except CronSimError:
        comes = False
    if not comes:
        raise _refused(expression, "no day is ever like that")
    return text, walls


def _refused(expression: str, why: str) -> InvalidInput:
    error = InvalidInput(f"{expression!r} is not a cron expression: {why}")
    error.hint = _FORM
    return error
