"""SIGTERM while a checkpoint is open: where it means nothing else to the program, it ends it in good order."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

TERMINATED: Final = 128 + signal.SIGTERM
"""The status that a program ends with which was asked to end so."""
_LISTENERS: Final[list[Callable[[], object]]] = []


def _heed(number: int, frame: FrameType | None) -> None:
    for listener in list(_LISTENERS):
        listener()


def listen(listener: Callable[[], object]) -> Callable[[], None]:
    """Call `listener` on SIGTERM, in the main thread; return what takes that back.

    A program that does something of its own on SIGTERM is left to do it, and so is one whose checkpoint is opened in
    another thread: there a signal cannot be listened to.
    """
    ours = signal.getsignal(signal.SIGTERM) is _heed
    if threading.current_thread() is not threading.main_thread():
        return _nothing
    if not ours and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return _nothing
    if not ours:
        signal.signal(signal.SIGTERM, _heed)
    _LISTENERS.append(listener)

    def forget() -> None:
        _LISTENERS.remove(listener)
        last = not _LISTENERS and signal.getsignal(signal.SIGTERM) is _heed
        if last and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    return forget


def leave() -> None:
    """End a plain program as `sys.exit` does, so that its `with` blocks are left one after the other."""
    raise SystemExit(TERMINATED)


def _nothing() -> None:
    return None
