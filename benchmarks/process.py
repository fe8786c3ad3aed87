"""A process that takes part in a measurement: it says that it is ready, waits for a word, and ends with a sample."""

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final, Self

from benchmarks import environment
from benchmarks.subject import Failed
from benchmarks.workload import MARKER, READY

_PATIENCE_SECONDS: Final = 120.0


class Participant:
    """One such process; it is killed at the end of `with`, if it has not ended by itself."""

    def __init__(self, module: str, arguments: list[str], *, python: Path | None = None) -> None:
        self._module = module
        self._said: queue.Queue[str | None] = queue.Queue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(python or sys.executable), "-m", module, *arguments],
            cwd=environment.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="participant", daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._errors.close()

    def wait_ready(self) -> None:
        """Return when it is ready.

        Raises:
            Failed: it ended, or never was.
        """
        self._line(READY)

    def go(self) -> None:
        """Say the word."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> float:
        """Kill it as a crash does, and return when that was on the monotonic clock of the machine."""
        at = time.monotonic()
        self._process.send_signal(signal.SIGKILL)
        return at

    def sample(self) -> dict[str, Any]:
        """Return what it measured.

        Raises:
            Failed: it ended without, or never came to it.
        """
        found: dict[str, Any] = json.loads(self._line(MARKER).removeprefix(MARKER))
        return found

    def _line(self, start: str) -> str:
        give_up = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                line = self._said.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{self._module} did not come to its end in time") from None
            if line is None:
                self._errors.seek(0)
                last = (self._errors.read().strip() or "no message").splitlines()[-1]
                raise Failed(f"{self._module} ended early: {last}")
            if line.startswith(start):
                return line

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._said.put(line)
        self._said.put(None)
