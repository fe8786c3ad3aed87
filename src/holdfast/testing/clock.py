"""A clock that moves only when it is told to."""

from collections.abc import Callable
from datetime import timedelta
from typing import Final

from holdfast.core.retry import seconds

_FIRST_OF_2026: Final = 1_767_225_600_000_000


class MovingClock:
    """Stands still until `advance`; give it to a store, whose timers then follow it.

    Calling it returns the time in integer µs UTC, as every store's `clock=` expects.
    """

    def __init__(self, now: int = _FIRST_OF_2026) -> None:
        self._now = now
        self._told: list[Callable[[], object]] = []

    def __call__(self) -> int:
        return self._now

    def advance(self, duration: float | timedelta) -> int:
        """Move on by `duration` (seconds, or a timedelta) and return the new time.

        Raises:
            ValueError: it would move back; a store's clock may stand still but does not turn round.
        """
        return self.advance_to(self._now + round(seconds(duration) * 1_000_000))

    def advance_to(self, at: int) -> int:
        """Move on to `at`, in µs UTC, and return it.

        Raises:
            ValueError: that time has passed.
        """
        if at < self._now:
            raise ValueError("a moving clock does not move back")
        self._now = at
        for tell in list(self._told):
            tell()
        return at

    def listen(self, tell: Callable[[], object]) -> Callable[[], None]:
        """Call `tell` whenever the clock has moved, on the thread that moved it; return what ends that."""
        self._told.append(tell)
        return lambda: self._told.remove(tell)
