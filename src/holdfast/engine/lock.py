"""A worker's file lock: whoever can take it knows that its holder is dead."""

import contextlib
import fcntl
import os
from functools import cache
from typing import Final, NamedTuple

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId

_MODE: Final = 0o600
_BOOT: Final = "/proc/sys/kernel/random/boot_id"
_UNKNOWN: Final = "-"


class Named(NamedTuple):
    """A lock as a worker's row names it; what the row does not say is not compared."""

    file: str
    inode: str = _UNKNOWN
    boot: str = _UNKNOWN

    @classmethod
    def read(cls, text: str | None) -> "Named | None":
        """Return what a row says, or None if it names no file in the folder of the locks."""
        words = (text or "").split(" ")
        if not 1 <= len(words) <= 3 or not words[0] or os.path.basename(words[0]) != words[0]:
            return None
        return cls(*words)

    def __str__(self) -> str:
        return " ".join(self)

    @property
    def is_of_this_boot(self) -> bool:
        """False when it was locked on another machine, or before this one was last started."""
        return _UNKNOWN in (self.boot, boot_id()) or self.boot == boot_id()


@cache
def boot_id() -> str:
    """Return what tells this life of this machine from every other, where the system has it."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip() or _UNKNOWN
    except (OSError, ValueError):
        return _UNKNOWN


def lock_paths(folder: str) -> list[str]:
    """Return every lock that lies in the folder, whoever's it is."""
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".lock")]
    except OSError:
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

    def __init__(self, folder: str, worker: WorkerId, *, shared: bool = False) -> None:
        """Make and lock the file; a row that machines share names it so that another of that name proves nothing."""
        file = f"{worker}.lock"
        self.path = os.path.join(folder, file)
        try:
            self._file = _create(folder, self.path)
            os.set_inheritable(self._file, True)
            # A power loss may not take the file and leave the row that names it: a missing file proves nothing.
            _sync(folder)
            _sync(os.path.dirname(folder))
        except OSError as error:
            raise StoreUnavailable(f"the worker's lock {self.path} cannot be made: {error.strerror}") from error
        self.named = Named(file, str(os.fstat(self._file).st_ino), boot_id()) if shared else Named(file)

    def leave(self) -> None:
        """Let go and leave the file: whoever takes it knows that the worker, whose row is still there, is dead."""
        os.close(self._file)

    def release(self) -> None:
        """Let go; the file goes with it."""
        if _is_at(self.path, self._file):
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


def take_free(path: str, inode: str = _UNKNOWN) -> Claim | None:
    """Take the lock at `path` if nobody holds it; never make the file."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, file) and inode in (_UNKNOWN, str(os.fstat(file).st_ino)):
            return Claim(path, file)
    os.close(file)
    return None


def proof_of_death(folder: str | None, lock: str | None) -> Claim | None:
    """Take the lock that a worker's row names; None if its worker lives or nothing can be proved.

    A missing file proves nothing, nor does another file of that name, nor one that a machine of another boot locked: a
    lock that is free here may then be held there.
    """
    named = Named.read(lock)
    if folder is None or named is None or not named.is_of_this_boot:
        return None
    return take_free(os.path.join(folder, named.file), named.inode)


def is_held(folder: str | None, lock: str | None) -> bool | None:
    """Say whether somebody holds the lock that a worker's row names; None when nothing here can tell."""
    named = Named.read(lock)
    if folder is None or named is None or not named.is_of_this_boot:
        return None
    try:
        file = os.open(os.path.join(folder, named.file), os.O_RDWR)
    except OSError:
        return None
    try:
        if named.inode not in (_UNKNOWN, str(os.fstat(file).st_ino)):
            return None
        # Shared, so that whoever looks is not taken for the holder by somebody else who looks.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(file)
