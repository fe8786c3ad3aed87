"""What a program wrote, in a file that outlives whoever reads it: a reconnect is the same code as a connect."""

import os
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final
from uuid import uuid4

from holdfast.core import limits

_READ_BYTES: Final = 1024 * 1024
_SUFFIX: Final = ".jsonl"
_PLACE: Final = "place"
_OLD_SECONDS: Final = 30 * 24 * 3600.0


class LineTooLong(Exception):
    """A program wrote a line that is longer than is taken."""


class Spool:
    """One file of lines, read from its beginning, once."""

    def __init__(self, path: str, line_bytes: int = limits.LINE_BYTES) -> None:
        self.path, self._line_bytes = path, line_bytes
        self._rest = bytearray()
        self._file: int | None = None

    def read(self) -> list[bytes]:
        """Return the lines that were finished since the last look, a bounded number of them; none if there are none.

        Raises:
            LineTooLong: there is one that has no end.
        """
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDONLY)
            except FileNotFoundError:
                return []
        while some := os.read(self._file, _READ_BYTES):
            *lines, rest = some.split(b"\n")
            if lines:
                lines[0] = bytes(self._rest) + lines[0]
                self._rest = bytearray(rest)
                return lines
            self._rest += rest
            if len(self._rest) > self._line_bytes:
                raise LineTooLong(f"it wrote a line of more than {self._line_bytes} bytes")
        return []

    def rest(self) -> bytes:
        """Return the beginning of the line that was not finished."""
        return bytes(self._rest)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Spools:
    """The folder of all spools of a machine's user, and its identity."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Take a folder, or the one that the system has for a user's programs to keep state in."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._folder = Path(folder) if folder is not None else Path(state) / "holdfast" / "coding"

    def place(self) -> str:
        """Return what tells this folder from every other; a program whose spool is elsewhere is not known here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / _PLACE
        while True:
            with suppress(FileNotFoundError):
                return file.read_text("ascii").strip()
            made = file.with_name(f"{_PLACE}.{uuid4().hex}")
            made.write_text(uuid4().hex, "ascii")
            # Linked, not renamed: whoever comes second keeps what the first one said.
            with suppress(FileExistsError):
                os.link(made, file)
            made.unlink()

    def of(self, key: str, line_bytes: int = limits.LINE_BYTES) -> Spool:
        """Return the spool of a key, from its beginning."""
        return Spool(str(self._folder / (sha256(key.encode()).hexdigest() + _SUFFIX)), line_bytes)

    def has(self, key: str) -> bool:
        """Say whether anything was ever started under a key."""
        return os.path.exists(self.of(key).path)

    def drop(self, key: str) -> None:
        """Forget what was written under a key."""
        with suppress(FileNotFoundError):
            os.unlink(self.of(key).path)

    def sweep(self) -> None:
        """Forget what was written so long ago that nobody will ask for it."""
        oldest = time.time() - _OLD_SECONDS
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()
