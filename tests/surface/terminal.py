"""A command at a terminal of its own, which somebody types into."""

import os
import pty
import selectors
import sys
import time
from pathlib import Path

from tests.surface.command import SECONDS


class Terminal:
    """A `holdfast` that believes to be talking with a person."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "xterm", "COLUMNS": "80", "NO_COLOR": "1"}
            os.execv(sys.executable, [sys.executable, "-m", "holdfast", *words])
        self._said, self._read = "", 0

    def wait_for(self, text: str) -> str:
        """Return what it said until `text` came, from where it was last waited for."""
        give_up = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            while (found := self._said.find(text, self._read)) < 0:
                left = max(0.0, give_up - time.monotonic())
                assert selector.select(left), f"it never said {text!r}: {self._said}"
                self._said += self._more(text)
        start, self._read = self._read, found + len(text)
        return self._said[start : self._read]

    def _more(self, text: str) -> str:
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError:
            raise AssertionError(f"it ended without saying {text!r}: {self._said}") from None

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Return how it ended."""
        _, status = os.waitpid(self._pid, 0)
        os.close(self._fd)
        return os.waitstatus_to_exitcode(status)
