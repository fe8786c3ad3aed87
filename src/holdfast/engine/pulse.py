"""A worker's thread of its own: it beats the worker's pulse, and notices when the event loop stands still."""

import asyncio
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

from holdfast.core import limits
from holdfast.store.protocol import Heart

_TICK_SECONDS: Final = 0.25
_BLOCKED_SECONDS: Final = 1.0
_LEAVE_SECONDS: Final = 1.0
_OURS: Final = os.path.dirname(os.path.dirname(__file__)) + os.sep
_LOOPS: Final = os.path.dirname(asyncio.__file__) + os.sep


class Pulse:
    """Beats while its worker lives, whatever the worker's code does to the event loop."""

    def __init__(self, heart: Heart | None, log: Any, on_death: Callable[[], None]) -> None:
        self._heart, self._log, self._on_death = heart, log, on_death
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._leaving = threading.Event()
        self._asked_at: float | None = None
        """When the loop was last asked to turn, until it has."""
        self._reported = False
        self._silent = False
        self._thread = threading.Thread(target=self._live, name="holdfast pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat and to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End both; a beat that the store does not answer is not waited for."""
        self._leaving.set()
        self._thread.join(_LEAVE_SECONDS)

    def _live(self) -> None:
        beat_at, seen_late = 0.0, False
        try:
            while not self._leaving.wait(min(_TICK_SECONDS, limits.LEASE_SECONDS / 12)) and not self._loop.is_closed():
                now = time.monotonic()
                if self._heart is not None and now >= beat_at:
                    beat_at = now + limits.LEASE_SECONDS / 4
                    self._beat(self._heart)
                seen_late = self._watch(time.monotonic(), seen_late)
        except RuntimeError:
            return  # the loop is closed
        finally:
            if self._heart is not None:
                self._heart.close()

    def _beat(self, heart: Heart) -> None:
        try:
            alive = heart.beat()
        except Exception as error:
            # Whatever it was, it must not end the pulse: that would be this worker's death. Said once, and tried again.
            if not self._silent:
                self._log.error("the store does not take the worker's pulse", error=repr(error))
            self._silent = True
            return
        self._silent = False
        # Not after it was told to leave: the worker may be somebody else by the time that a slow store answers.
        if not alive and not self._leaving.is_set():
            self._leaving.set()
            self._loop.call_soon_threadsafe(self._on_death)

    def _watch(self, now: float, seen_late: bool) -> bool:
        """Ask the loop to turn, and report it when it does not; return whether it was late at this look."""
        if self._asked_at is None:
            self._asked_at = now
            self._loop.call_soon_threadsafe(self._turned)
            return False
        late = now - self._asked_at > _BLOCKED_SECONDS
        # Late at two looks: a process that was stopped as a whole finds both late when it wakes, and is no one's fault.
        if late and seen_late and not self._reported:
            self._reported = True
            stack = _stack_of(self._loop_thread)
            self._log.warning("the event loop is blocked: no run of this process goes on", stack=stack)
        return late

    def _turned(self) -> None:
        asked_at, self._asked_at = self._asked_at, None
        stood = time.monotonic() - asked_at if asked_at is not None else 0.0
        if self._reported:
            self._log.warning("the event loop turns again", blocked_seconds=round(stood, 1))
        elif stood > _BLOCKED_SECONDS + 2 * _TICK_SECONDS:
            why = "the whole process did: it was stopped, or native code kept the interpreter to itself"
            self._log.warning("the event loop stood still", blocked_seconds=round(stood, 1), why=why)
        self._reported = False


def _stack_of(thread: int) -> str:
    """Return where a thread is: the lines of the user's code, or all if none is."""
    frame = sys._current_frames().get(thread)
    summary = traceback.extract_stack(frame) if frame is not None else traceback.StackSummary()
    theirs = [line for line in summary if not line.filename.startswith((_OURS, _LOOPS))]
    return "".join(traceback.format_list(theirs or summary)).rstrip()
