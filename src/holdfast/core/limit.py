"""A limit that all workers of a store share: how many steps at once, and how many starts in a span of time."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from datetime import timedelta
from typing import Final

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.core.retry import checked_seconds, seconds

_LOOK_MICROS: Final = 5_000_000
"""How long a step that waits may go without looking: it is woken, but a hint can be lost."""
_FIRST_LOOKS_MICROS: Final = 1_000_000
"""The same for the step that is next: a slot may also become free by a death, of which nobody tells."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `at_once` steps under way and `rate` starts in any `per` seconds, over all workers of a store.

    The name is what is shared: two limits of one name are one, and whoever asked last said how wide it is. Higher
    `priority` goes first.
    """

    name: str
    _: KW_ONLY
    at_once: int | None = None
    rate: float | None = None
    per: float | timedelta = 1.0
    priority: int = 0

    def __post_init__(self) -> None:
        checked_text("Limit(name)", self.name, limits.NAME_BYTES)
        if self.at_once is None and self.rate is None:
            raise InvalidInput(f"Limit({self.name!r}) limits nothing: give at_once=, rate= or both")
        if self.at_once is not None:
            _checked_whole("Limit(at_once=)", self.at_once, 1, limits.SLOTS)
        _checked_whole("Limit(priority=)", self.priority, -limits.PRIORITY, limits.PRIORITY)
        checked_seconds("Limit(per=)", self.per, least=1e-3)
        rate: object = self.rate
        if rate is not None:
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= limits.STARTS:
                raise InvalidInput(
                    f"Limit(rate=) is a number above 0 and at most {limits.STARTS:,}, not {rate!r}; "
                    "for more, say it for a shorter per="
                )
            checked_seconds("Limit(per=) / Limit(rate=)", seconds(self.per) / rate)

    def with_priority(self, priority: int) -> "Limit":
        """Return the same limit for steps of another priority."""
        return replace(self, priority=priority)

    @property
    def starts(self) -> int | None:
        """How many steps may start within any `span`; None when starts are not limited."""
        return None if self.rate is None else max(1, math.floor(self.rate))

    @property
    def span(self) -> int:
        """In µs: `per`, or as much longer or shorter as makes the starts a whole number."""
        if self.rate is None or self.starts is None:
            return 0
        return math.ceil(seconds(self.per) * 1e6 * (self.starts / self.rate))


def look_again_at(now: int, *, first: bool, start_at: int | None) -> int:
    """Return when a step that waits should look by itself; `start_at` is when the next start is allowed, if it is that.

    All times are in µs.
    """
    if not first:
        return now + _LOOK_MICROS
    return now + _FIRST_LOOKS_MICROS if start_at is None else min(start_at, now + _LOOK_MICROS)


def _checked_whole(what: str, number: object, least: int, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise InvalidInput(f"{what} is a whole number between {least:,} and {most:,}, not {number!r}")
