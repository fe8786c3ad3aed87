"""The server's clock, as seen from here between two looks at it."""

import time
from typing import Final

from holdfast.store.clock import Clock

_CLOCK_ID: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Goes on while the machine sleeps, and nobody can set it."""


class ServerClock:
    """Says what time it is on the server; never early, and late by no more than a message takes.

    A test that brings its own clock is believed instead, by the statements too.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._offset = 0

    def __call__(self) -> int:
        return self._clock() if self._clock is not None else self.mark() + self._offset

    @property
    def given(self) -> int | None:
        """The time to tell the server; None means that it knows best."""
        return self._clock() if self._clock is not None else None

    @staticmethod
    def mark() -> int:
        """Return a moment to hand to `saw`."""
        return time.clock_gettime_ns(_CLOCK_ID) // 1000

    def saw(self, server_micros: int, asked: int) -> None:
        """Note what the server's clock said to a question asked at a moment of ours."""
        self._offset = server_micros - asked
