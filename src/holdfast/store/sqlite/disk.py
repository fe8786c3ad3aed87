"""The file system under a store: opening a file where nothing can be written, and saying what is wrong."""

import mmap
import os
from pathlib import Path
from typing import Final

import apsw

from holdfast.core.errors import StoreUnavailable

_LITTLE_BYTES: Final = 64 << 10
"""Less room than this is none: it is about what SQLite needs to make a log and its index."""


def open_file(path: str, *, create: bool = False) -> apsw.Connection:
    """Open a database file, to write if that is possible at all.

    On a read-only file system SQLite cannot make the index of a log; where there is no log, it can read without.

    Raises:
        StoreUnavailable: the disk is full, and going on would end the process.
    """
    found = _look(path)
    frozen = found is not None and found.f_flag & os.ST_RDONLY and os.path.exists(path)
    if frozen and not any(_has_bytes(path + suffix) for suffix in ("-wal", "-journal")):
        address = f"{Path(path).absolute().as_uri()}?immutable=1"
        return apsw.Connection(address, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    # SQLite takes a block for every page of the index. Where blocks are smaller, the page has holes, and writing to
    # it through the mapping of a full disk is a SIGBUS.
    if found is not None and found.f_frsize < mmap.PAGESIZE and _is_full(found):
        raise StoreUnavailable(full(path))
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOMUTEX | (apsw.SQLITE_OPEN_CREATE if create else 0)
    return apsw.Connection(path, flags=flags)


def complaint(path: str) -> str | None:
    """Say what is wrong with the disk that holds `path`, if it is full or read-only: SQLite's own words do not."""
    found = _look(path)
    if found is None:
        return None
    if found.f_flag & os.ST_RDONLY and _has_bytes(f"{path}-wal"):
        return (
            f"{path} is on a read-only file system: its log {path}-wal cannot be read there without {path}-shm. "
            "Make the file system writable, or copy both files to one that is"
        )
    if found.f_flag & os.ST_RDONLY:
        return read_only(path)
    return full(path) if _is_full(found) else None


def read_only(path: str) -> str:
    """Say that nothing can be written."""
    return f"{path} cannot be written: it is read-only"


def full(path: str) -> str:
    """Say that there is no room."""
    return f"the disk that holds {path} is full"


def _is_full(found: os.statvfs_result) -> bool:
    return found.f_bavail * found.f_frsize < _LITTLE_BYTES or (found.f_files > 0 and found.f_favail == 0)


def _look(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return None


def _has_bytes(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False
