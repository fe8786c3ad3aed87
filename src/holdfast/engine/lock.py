"""A worker's file lock: whoever can take it knows that its holder is dead."""

import contextlib
import fcntl
import os
from typing import Final

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId

_MODE: Final = 0o600


def lock_path(folder: str, worker: WorkerId) -> str:
    """Return where a worker keeps its lock; relative to the store, so that a store may be moved with its folder."""
    return os.path.join(folder, f"{worker}.lock")


def lock_paths(folder: str) -> list[str]:
    """Return every lock that lies in the folder, whoever's it is."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".lock")]
    except FileNotFoundError:
        return []


def _create(folder: str, path: str) -> int:
    """Return the file at `path`, made and locked."""
    while True:
        os.makedirs(folder, exist_ok=True)
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
        except FileNotFoundError:
            continue  # a worker that left has just taken the empty folder along
        fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(path, file):
            return file
        os.close(file)  # swept before it was locked, as one that nobody held


def _is_at(path: str, file: int) -> bool:
    """Say whether the open file is still the one at `path`."""
    try:
        held, named = os.fstat(file), os.stat(path)
    except OSError:
        return False
    return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)


def _sync(folder: str) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class WorkerLock:
    """Held from before a worker's first claim until it has given up its leases.

    The lock is of the open file, not of the process: a subprocess that inherited it keeps it, since an effect of the
    worker's may still be under way there.
    """

    def __init__(self, folder: str, worker: WorkerId) -> None:
        self.path = lock_path(folder, worker)
        try:
            self._file = _create(folder, self.path)
            os.set_inheritable(self._file, True)
            # A power loss may not take the file and leave the row that names it: a missing file proves nothing.
            _sync(folder)
            _sync(os.path.dirname(folder))
        except OSError as error:
            raise StoreUnavailable(f"the worker's lock {self.path} cannot be made: {error.strerror}") from error

    def leave(self) -> None:
        """Let go and leave the file: whoever takes it knows that the worker, whose row is still there, is dead."""
        os.close(self._file)

    def release(self) -> None:
        """Let go; the file goes with it."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        os.close(self._file)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.path))


class Claim:
    """The lock of a dead worker, held while its leases are voided."""

    def __init__(self, path: str, file: int) -> None:
        self._path, self._file = path, file

    def release(self) -> None:
        """Let go and leave everything as it was."""
        os.close(self._file)

    def bury(self) -> None:
        """Remove the dead worker's file and let go."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._file)


def proof_of_death(path: str) -> Claim | None:
    """Take the lock of the worker whose file is at `path`; None if it lives or nothing can be proved.

    The file is never created, and its inode is compared: a missing or replaced file proves nothing.
    """
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, file):
            return Claim(path, file)
    os.close(file)
    return None
