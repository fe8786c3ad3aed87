"""A key-value store in plain files: atomic, read-after-write, durable on return."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Final

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
            self._folder.mkdir(parents=True, exist_ok=True)
            for left in self._folder.glob(f"*{_TEMPORARY}"):
                # Left by a crash between write and rename, or another process's put under way.
                if not _is_alive(left):
                    left.unlink(missing_ok=True)

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
        temporary = path.with_name(f"{path.stem}.{os.getpid()}{_TEMPORARY}")
        with _translated(path):
            try:
                with open(temporary, "wb") as file:
                    file.write(_MAGIC + sha256(rest).digest() + rest)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, path)
                self._sync_folder()
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
            self._sync_folder()
        return True

    def _path(self, key: str) -> Path:
        # Hashed, so that no key can name a path, differ by case only, or be too long for a file's name.
        return self._folder / (sha256(checked_key(key).encode()).hexdigest() + _SUFFIX)

    def _sync_folder(self) -> None:
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _length(raw: bytes) -> int:
    start = len(_MAGIC) + 32
    return int.from_bytes(raw[start : start + 4], "big")


def _is_alive(temporary: Path) -> bool:
    writer = temporary.name.split(".")[1]
    return writer.isdigit() and int(writer) != os.getpid() and Path(f"/proc/{writer}").exists()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
