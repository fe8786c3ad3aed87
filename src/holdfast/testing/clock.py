"""A clock that moves only when it is told to."""

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

    def __call__(self) -> int:
        return self._now

    def advance(self, duration: float | timedelta) -> int:
        """Move on by `duration` (seconds, or a timedelta) and return the new time.

        Raises:
            ValueError: it would move back; a store's clock may stand still but does not turn round.
        """
        micros = round(seconds(duration) * 1_000_000)
        if micros < 0:
            raise ValueError("a moving clock does not move back")
        self._now += micros
        return self._now
