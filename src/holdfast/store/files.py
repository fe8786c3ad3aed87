"""A key-value store in plain files: atomic, read-after-write, durable on return."""

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

from holdfast.core.errors import Damaged, StoreUnavailable
from holdfast.core.ids import checked_key

_MAGIC: Final = b"holdfast-file-1\n"
_SUFFIX: Final = ".value"
_TEMPORARY: Final = ".part"


class FileStore:
    """Keeps each value in a file named by its key's hash.

    Not-found is an answer (None), and nothing else is: an unreadable or damaged file raises, so that no caller takes
    it for "no state".
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        with _translated(self._folder):
            _make_folder(self._folder)
            for left in self._folder.glob(f"*{_TEMPORARY}"):
                _sweep(left)

    def get(self, key: str) -> bytes | None:
        """Return the value, or None if there is none.

        Raises:
            Damaged: the file is not what was put.
            StoreUnavailable: it cannot be read.
        """
        path = self._path(key)
        with _translated(path):
            try:
                raw = path.read_bytes()
            except FileNotFoundError:
                return None
        start = len(_MAGIC)
        name, value = raw[start + 36 : start + 36 + _length(raw)], raw[start + 36 + _length(raw) :]
        if raw[:start] != _MAGIC or raw[start : start + 32] != sha256(raw[start + 32 :]).digest():
            raise Damaged(run="", seq=None, what=f"the file of key {key!r} does not match its checksum")
        if name != key.encode():
            raise Damaged(run="", seq=None, what=f"the file of key {key!r} holds another key")
        return value

    def put(self, key: str, value: bytes) -> None:
        """Make `value` the key's value; it is on disk when this returns, and a crash leaves the old or the new one."""
        path, name = self._path(key), key.encode()
        rest = len(name).to_bytes(4, "big") + name + value
        with _translated(path), _begin(path) as (temporary, file):
            try:
                file.write(_MAGIC + sha256(rest).digest() + rest)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)
                _sync(self._folder)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise

    def delete(self, key: str) -> bool:
        """Remove the key; False if it was not there."""
        path = self._path(key)
        with _translated(path):
            try:
                path.unlink()
            except FileNotFoundError:
                return False
            _sync(self._folder)
        return True

    def _path(self, key: str) -> Path:
        # Hashed, so that no key can name a path, differ by case only, or be too long for a file's name.
        return self._folder / (sha256(checked_key(key).encode()).hexdigest() + _SUFFIX)


def _length(raw: bytes) -> int:
    start = len(_MAGIC) + 32
    return int.from_bytes(raw[start : start + 4], "big")


@contextmanager
def _begin(path: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Give a new file beside `path`, locked while it is being written, so that nobody sweeps it."""
    while True:
        temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{_TEMPORARY}")
        with temporary.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # A sweeper may have come between making the file and locking it: then its name is gone.
            if os.fstat(file.fileno()).st_nlink:
                yield temporary, file
                return


def _sweep(left: Path) -> None:
    """Remove what a crash left between write and rename; a living writer holds its file's lock."""
    with suppress(FileNotFoundError, BlockingIOError), left.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        left.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    """Make a folder that a power loss does not take back."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync(made.parent)


def _sync(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
