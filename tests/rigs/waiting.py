"""A wait for something that sends no signal when it becomes true."""

import threading
from collections.abc import Callable
from typing import Final

_LOOKS_PER_SECOND: Final = 200


def wait_until(true: Callable[[], bool], *, seconds: float = 10.0, what: str = "it") -> None:
    """Return as soon as a look finds it true.

    Raises:
        TimeoutError: no look did.
    """
    pause = threading.Event()
    for _ in range(int(seconds * _LOOKS_PER_SECOND)):
        if true():
            return
        pause.wait(1 / _LOOKS_PER_SECOND)
    raise TimeoutError(f"{what} did not come true within {seconds:g} s")
