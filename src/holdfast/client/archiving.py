"""An archive file that runs are added to: what was in it stays, and a run is in it whole or not at all."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from holdfast.client.archive import is_beginning, is_ending
from holdfast.core.errors import Conflict, InvalidInput, StoreUnavailable
from holdfast.store import point

_PARTIAL: Final = ".partial"
_TORN: Final = ".torn"
_BLOCK_BYTES: Final = 1 << 20


class ArchiveFile:
    """The end of an archive, where one process at a time writes.

    A new file has another name until the first runs in it are on disk; then it gets its own, unless that is taken by
    then. What a writer that died left behind the last whole run of an old one is moved aside, not thrown away.
    """

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            Conflict: somebody else is writing.
            InvalidInput: it cannot be written, or is not an archive.
        """
        self.path = os.path.abspath(path)
        # A name that stands for another file: the one that is meant keeps its place.
        self._path = os.path.realpath(self.path)
        self._partial = self._path + _PARTIAL
        try:
            self._named = os.path.exists(self._path)
            self._file = self._open_named() if self._named else self._open_partial()
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be written: {error.strerror}") from error
        self._whole = self._end = os.fstat(self._file).st_size
        """Where the last whole run ends, and where the next line goes."""

    def _open_named(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._lock(file)
            self._mend(file)
            if _is(file, self._partial):
                os.unlink(self._partial)  # a writer died between giving it its name and taking the other away
        except BaseException:
            os.close(file)
            raise
        return file

    def _open_partial(self) -> int:
        while True:
            file = os.open(self._partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock(file)
                if _is(file, self._partial):
                    if os.fstat(file).st_nlink == 1:
                        os.ftruncate(file, 0)  # what a writer that died began: its runs are all in their store still
                        return file
                    os.unlink(self._partial)  # another name of an archive that was moved since
            except BaseException:
                os.close(file)
                raise
            os.close(file)

    def _lock(self, file: int) -> None:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise InvalidInput(f"{self.path} is not a file that can be added to")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "Wait until it is done, or name another file."
            raise Conflict(f"{self.path} is being written by another process", hint=hint) from None

    def _mend(self, file: int) -> None:
        """Move what stands behind the last whole run aside."""
        size = os.fstat(file).st_size
        if size and not is_beginning(os.pread(file, _BLOCK_BYTES, 0).partition(b"\n")[0]):
            raise InvalidInput(f"{self.path} is there already, and is not an archive that can be added to")
        end = _end_of_last_run(file, size)
        if end == size:
            return
        with open(self._path + _TORN, "ab") as aside:
            places = range(end, size, _BLOCK_BYTES)
            aside.writelines(os.pread(file, min(_BLOCK_BYTES, size - place), place) for place in places)
            aside.flush()
            os.fsync(aside.fileno())
        os.ftruncate(file, end)

    def write(self, line: bytes) -> None:
        """Add a line of a run."""
        left = memoryview(line)
        with self._translated():
            while left:
                written = os.pwrite(self._file, left, self._end)
                self._end += written
                left = left[written:]

    def whole(self) -> None:
        """Say that the run whose lines were added is whole."""
        self._whole = self._end

    def back(self) -> None:
        """Take back the lines of a run that did not become whole."""
        if self._end != self._whole:
            with self._translated():
                os.ftruncate(self._file, self._whole)
            self._end = self._whole

    def sync(self) -> None:
        """Return when every whole run is on disk, under the archive's own name; what is not whole is taken back."""
        self.back()
        with self._translated():
            point.reached("archive written")
            os.fsync(self._file)
            if not self._named and self._whole:
                self._take_name()
            point.reached("archive synced")

    def _take_name(self) -> None:
        try:
            os.link(self._partial, self._path)
        except FileExistsError:
            hint = "Nothing of it was changed, and nothing deleted. Try again to add to it."
            raise Conflict(f"{self.path} was made by somebody else meanwhile", hint=hint) from None
        self._named = True
        point.reached("archive named")
        # Opened again by its name, from here on its only one; whoever comes between and adds to it is a conflict.
        before = self._file
        fcntl.flock(before, fcntl.LOCK_UN)
        self._file = self._open_named()
        os.close(before)
        self._whole = self._end = os.fstat(self._file).st_size
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        """Let go of it; what is not whole is taken back, and a file without a run is none."""
        try:
            with suppress(StoreUnavailable):
                self.back()
            if not self._named:
                with suppress(OSError):
                    os.unlink(self._partial)
        finally:
            os.close(self._file)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"{self.path} cannot be written: {error.strerror}") from error


def _is(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _end_of_last_run(file: int, size: int) -> int:
    """Return where the last line ends that ends a run; read from the end of the file, a block at a time."""
    held, start = b"", size
    while start > 0:
        length = min(_BLOCK_BYTES, start)
        start -= length
        held = os.pread(file, length, start) + held
        first = held.find(b"\n") + 1 if start else 0
        if start and not first:
            continue
        found, place = 0, start + first
        for line in held[first:].split(b"\n")[:-1]:
            place += len(line) + 1
            if is_ending(line):
                found = place
        if found:
            return found
        held = held[:first]
    return 0
