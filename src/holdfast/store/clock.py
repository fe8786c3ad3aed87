"""The store's clock: the one place where time is read below the engine."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Returns the time in integer µs UTC."""


def system_clock() -> int:
    """Return the machine's time in µs."""
    return time.time_ns() // 1000
