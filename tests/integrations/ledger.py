"""What tools did to the world, in a file that outlives whoever wrote it, and a death in the middle of one."""

import os
import signal
from pathlib import Path


class Ledger:
    """Notes what happened, and dies where it is told to."""

    def __init__(self, file: Path, die_in: str = "") -> None:
        self._file, self._die_in = file, die_in

    def note(self, name: str, key: str = "") -> None:
        """Note that a tool acted; then, if it is the one, kill this process."""
        with self._file.open("a") as file:
            file.write(f"{name} {key}\n".replace(" \n", "\n"))
        if name == self._die_in:
            os.kill(os.getpid(), signal.SIGKILL)

    def read(self) -> list[str]:
        """Return what happened, in order."""
        return self._file.read_text().splitlines() if self._file.exists() else []
