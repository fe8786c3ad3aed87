"""A file call that a traced thread is about to make, read from its registers, its memory and its descriptors."""

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NewType

from holdfast.testing import ptrace

Thread = NewType("Thread", int)

Watch = Callable[[str], bool]
"""Says of an absolute path whether calls on it count."""

_AT_FDCWD: Final = -100
_CHANGES: Final = os.O_CREAT | os.O_TRUNC
_PROT_WRITE, _MAP_SHARED = 2, 1


@dataclass(frozen=True, slots=True)
class Call:
    """One watched system call: `index` counts from 1 in the order they were asked for, over all threads.

    `data`, and the `offset` of a plain write, are known only where they were asked for; `to` is the second path of a
    rename or a link; `flags` are those of an open, an unlink, a rename or an fallocate.
    """

    index: int
    name: str
    path: str
    offset: int | None
    data: bytes | None
    length: int
    thread: Thread
    to: str | None = None
    flags: int = 0

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at {self.offset}"
        size = f" of {self.length} bytes" if self.length else ""
        return f"call {self.index}: {self.name}{size}{place} on {self.path}{f' to {self.to}' if self.to else ''}"


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where a call's facts stand among its arguments."""

    fd: int | None = None
    paths: tuple[tuple[int | None, int], ...] = ()
    buffer: int | None = None
    vector: int | None = None
    length: int | None = None
    offset: int | None = None
    flags: int | None = None
    guards: ptrace.Guards = ()


_SHAPES: Final[dict[str, _Shape]] = {
    "write": _Shape(fd=0, buffer=1, length=2),
    "pwrite64": _Shape(fd=0, buffer=1, length=2, offset=3),
    "writev": _Shape(fd=0, vector=1, length=2),
    "pwritev": _Shape(fd=0, vector=1, length=2, offset=3),
    "pwritev2": _Shape(fd=0, vector=1, length=2, offset=3),
    "sendfile": _Shape(fd=0, length=3),
    "copy_file_range": _Shape(fd=2, length=4),
    "mmap": _Shape(fd=4, length=1, offset=5, guards=((2, _PROT_WRITE), (3, _MAP_SHARED))),
    "fsync": _Shape(fd=0),
    "fdatasync": _Shape(fd=0),
    "ftruncate": _Shape(fd=0, length=1),
    "truncate": _Shape(paths=((None, 0),), length=1),
    "fallocate": _Shape(fd=0, flags=1, offset=2, length=3),
    "open": _Shape(paths=((None, 0),), flags=1, guards=((1, _CHANGES),)),
    "openat": _Shape(paths=((0, 1),), flags=2, guards=((2, _CHANGES),)),
    "creat": _Shape(paths=((None, 0),)),
    "mkdir": _Shape(paths=((None, 0),)),
    "mkdirat": _Shape(paths=((0, 1),)),
    "rmdir": _Shape(paths=((None, 0),)),
    "unlink": _Shape(paths=((None, 0),)),
    "unlinkat": _Shape(paths=((0, 1),), flags=2),
    "rename": _Shape(paths=((None, 0), (None, 1))),
    "renameat": _Shape(paths=((0, 1), (2, 3))),
    "renameat2": _Shape(paths=((0, 1), (2, 3)), flags=4),
    "link": _Shape(paths=((None, 0), (None, 1))),
    "linkat": _Shape(paths=((0, 1), (2, 3))),
    "symlink": _Shape(paths=((None, 1),)),
    "symlinkat": _Shape(paths=((1, 2),)),
}


FILTER: Final[Mapping[str, ptrace.Guards]] = {name: shape.guards for name, shape in _SHAPES.items()}
"""The calls that a traced thread stops at."""


def within(*places: str | os.PathLike[str]) -> Watch:
    """Watch these files and directories, and everything below the directories."""
    roots = tuple(os.path.realpath(place) for place in places)
    below = tuple(root + "/" for root in roots)
    return lambda path: path in roots or path.startswith(below)


@cache
def _names() -> Mapping[int, str]:
    return {number: name for name, number in ptrace.machine().numbers.items()}


def describe(thread: Thread, index: int, watch: Watch, *, with_data: bool) -> Call | None:
    """Return the call that a thread is stopped at, as number `index`, or None if it is not watched."""
    number, args = ptrace.call_at(thread)
    name = _names()[number]
    shape = _SHAPES[name]
    paths = _paths(thread, shape, args)
    if not any(watch(path) for path in paths):
        return None
    length = 0 if shape.length is None else args[shape.length]
    offset = None if shape.offset is None else args[shape.offset]
    data = _data(thread, shape, args) if with_data else None
    if data is not None:
        length = len(data)
        offset = _position(thread, args[0]) if offset is None else offset
    return Call(
        index=index,
        name=name,
        path=paths[0],
        offset=offset,
        data=data,
        length=length,
        thread=thread,
        to=paths[1] if len(paths) > 1 else None,
        flags=0 if shape.flags is None else args[shape.flags],
    )


def _paths(thread: Thread, shape: _Shape, args: Sequence[int]) -> list[str]:
    if shape.fd is not None:
        fd = ctypes.c_int(args[shape.fd]).value
        return [] if fd < 0 else [_path_of(thread, fd)]
    return [_resolve(thread, None if at is None else args[at], args[path]) for at, path in shape.paths]


def _path_of(thread: Thread, fd: int) -> str:
    try:
        return str(Path(f"/proc/{thread}/fd/{fd}").readlink())
    except FileNotFoundError:
        return ""  # a number that is not open: the call will fail by itself


def _resolve(thread: Thread, directory: int | None, address: int) -> str:
    """Return the absolute path that a call names, its last part unresolved as the call itself would leave it."""
    path = ptrace.read_string(thread, address)
    if not path.startswith("/"):
        fd = _AT_FDCWD if directory is None else ctypes.c_int(directory).value
        start = str(Path(f"/proc/{thread}/cwd").readlink()) if fd == _AT_FDCWD else _path_of(thread, fd)
        path = f"{start}/{path}"
    place = Path(path)
    return str(place.parent.resolve() / place.name)


def _data(thread: Thread, shape: _Shape, args: Sequence[int]) -> bytes | None:
    if shape.buffer is not None and shape.length is not None:
        return ptrace.read_memory(thread, args[shape.buffer], args[shape.length])
    if shape.vector is not None and shape.length is not None:
        return ptrace.read_vector(thread, args[shape.vector], args[shape.length])
    return None


def _position(thread: Thread, fd: int) -> int:
    """Return where a plain write on `fd` will land."""
    described = Path(f"/proc/{thread}/fdinfo/{fd}").read_text(encoding="ascii")
    facts = dict(line.split(":", 1) for line in described.splitlines())
    if int(facts["flags"], 8) & os.O_APPEND:
        return Path(f"/proc/{thread}/fd/{fd}").stat().st_size
    return int(facts["pos"])
