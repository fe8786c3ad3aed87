"""Refuses, by an audit hook, whatever else in this process would open a store's files."""

import os
import sys
from collections import Counter
from typing import Any, Final

from holdfast.core.errors import Misuse

# POSIX drops a process's locks on a file when any of its handles to it closes. A plain `open()` of the database, or a
# second copy of SQLite, would so let another process write over rows that were acknowledged.
_guarded: Final[Counter[str]] = Counter()
_installed = False
_EVENTS: Final = frozenset({"open", "sqlite3.connect"})
_SUFFIXES: Final = ("", "-wal", "-shm", "-journal")


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event not in _EVENTS or not _guarded or not args:
        return
    name = args[0]
    if not isinstance(name, str | bytes | os.PathLike):
        return
    path = os.fsdecode(name)
    if path.startswith("file:"):
        path = path[5:].partition("?")[0]
    if os.path.realpath(path) in _guarded:
        raise Misuse(
            f"{path} is an open Holdfast store: opening it by other means in this process would drop its locks. "
            "Use another process, or close the store first."
        )


def protect(path: str) -> None:
    """Refuse other openings of the store at `path` until `unprotect`."""
    global _installed
    if not _installed:
        sys.addaudithook(_hook)
        _installed = True
    real = os.path.realpath(path)
    _guarded.update(real + suffix for suffix in _SUFFIXES)


def is_protected(path: str) -> bool:
    """Say whether this process has the store at `path` open."""
    return os.path.realpath(path) in _guarded


def unprotect(path: str) -> None:
    """Allow them again, once as many stores are closed as were opened."""
    real = os.path.realpath(path)
    for suffix in _SUFFIXES:
        _guarded[real + suffix] -= 1
        if _guarded[real + suffix] <= 0:
            del _guarded[real + suffix]
