"""A wait for something that sends no signal when it becomes true."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
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


async def until(true: Callable[[], Awaitable[bool]], *, seconds: float = 20.0, what: str = "it") -> None:
    """Do the same on an event loop."""
    for _ in range(int(seconds * _LOOKS_PER_SECOND)):
        if await true():
            return
        await asyncio.sleep(1 / _LOOKS_PER_SECOND)
    raise TimeoutError(f"{what} did not come true within {seconds:g} s")
