"""A disk that may lose power: what is on it for certain, and the changes that may still be lost."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

from holdfast.testing.call import Call

SECTOR_BYTES: Final = 512

Tree = Mapping[str, bytes | None]
"""A directory's content by relative path; None is a directory."""

_FALLOC_KEEP_SIZE: Final = 1
_RENAME_NOREPLACE: Final = 1
_DELETED: Final = " (deleted)"


class Metadata(Enum):
    """How names reach the disk: names are what create, rename, link and unlink change.

    STRICT is what POSIX promises: a name is certain only after an fsync of its directory, and any of the others may be
    lost. ORDERED is what journaling file systems do: names reach the disk in order, and any sync takes them all along.
    """

    STRICT = "strict"
    ORDERED = "ordered"


class Unmodelled(RuntimeError):
    """The program changed its files in a way that the disk's model does not know, so no image of it would be true."""


@dataclass(eq=False, slots=True)
class File:
    """A file's content as it is certain to be found."""

    content: bytes = b""


@dataclass(eq=False, slots=True)
class Directory:
    """A directory's names: as the program sees them, and as they are certain to be found."""

    seen: "dict[str, Node]" = field(default_factory=dict)
    certain: "dict[str, Node]" = field(default_factory=dict)


Node = File | Directory


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at a place in a file."""

    file: File
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    """A file's new size; `grow` only ever makes it longer."""

    file: File
    size: int
    grow: bool = False


@dataclass(frozen=True, slots=True)
class Naming:
    """A name that goes, a name that comes, or both at once."""

    node: Node
    frees: tuple[Directory, str] | None = None
    binds: tuple[Directory, str] | None = None

    @property
    def directory(self) -> Directory | None:
        """The directory whose sync makes this certain."""
        place = self.binds or self.frees
        return None if place is None else place[0]


Change = Write | Resize | Naming


class Disk:
    """The files below one directory, as a program's calls change them and as a power loss would leave them."""

    def __init__(self, root: str, tree: Tree, metadata: Metadata) -> None:
        self._root, self._metadata = root, metadata
        self._top = Directory()
        self.pending: list[Change] = []
        for path, content in sorted(tree.items()):
            parent, name = self._place(f"{root}/{path}")
            parent.seen[name] = parent.certain[name] = Directory() if content is None else File(content)

    def perform(self, call: Call) -> None:
        """Take in a call that has succeeded.

        Raises:
            Unmodelled: the call changes files in an unknown way.
        """
        act = _ACTS.get(call.name)
        if act is None:
            raise Unmodelled(f"{call} is not modelled")
        act(self, call)

    def image(self, survivors: Iterable[Change]) -> Tree:
        """Return what is found after a power loss that only `survivors` of the pending changes outlived."""
        names: dict[Directory, dict[str, Node]] = {}
        grown: dict[File, bytearray] = {}
        for change in survivors:
            if isinstance(change, Naming):
                _rename(change, lambda directory: names.setdefault(directory, dict(directory.certain)))
            else:
                _alter(grown.setdefault(change.file, bytearray(change.file.content)), change)
        tree: dict[str, bytes | None] = {}
        todo: list[tuple[str, Directory]] = [("", self._top)]
        while todo:
            path, directory = todo.pop()
            for name, node in names.get(directory, directory.certain).items():
                if isinstance(node, Directory):
                    tree[path + name] = None
                    todo.append((f"{path}{name}/", node))
                else:
                    tree[path + name] = bytes(grown[node]) if node in grown else node.content
        return tree

    def write(self, call: Call) -> None:
        file = self._file(call.path)
        if file is not None and call.data:
            assert call.offset is not None
            self.pending.append(Write(file, call.offset, call.data))

    def truncate(self, call: Call) -> None:
        file = self._file(call.path)
        if file is not None:
            self.pending.append(Resize(file, call.length))

    def allocate(self, call: Call) -> None:
        file = self._file(call.path)
        if call.flags & ~_FALLOC_KEEP_SIZE:
            raise Unmodelled(f"{call} with mode {call.flags} is not modelled")
        if file is not None and not call.flags:
            self.pending.append(Resize(file, (call.offset or 0) + call.length, grow=True))

    def open(self, call: Call) -> None:
        flags = os.O_CREAT | os.O_TRUNC if call.name == "creat" else call.flags
        parent, name = self._place(call.path)
        node = parent.seen.get(name)
        if node is None and flags & os.O_CREAT:
            self._name(Naming(File(), binds=(parent, name)))
        elif isinstance(node, File) and flags & os.O_TRUNC:
            self.pending.append(Resize(node, 0))

    def make_directory(self, call: Call) -> None:
        self._name(Naming(Directory(), binds=self._place(call.path)))

    def remove(self, call: Call) -> None:
        parent, name = self._place(call.path)
        self._name(Naming(parent.seen[name], frees=(parent, name)))

    def rename(self, call: Call) -> None:
        assert call.to is not None
        if call.flags & ~_RENAME_NOREPLACE or not self._inside(call.path):
            raise Unmodelled(f"{call} is not modelled")
        parent, name = self._place(call.path)
        binds = self._place(call.to) if self._inside(call.to) else None
        self._name(Naming(parent.seen[name], frees=(parent, name), binds=binds))

    def link(self, call: Call) -> None:
        assert call.to is not None
        if not self._inside(call.path) or not self._inside(call.to):
            raise Unmodelled(f"{call} is not modelled")
        parent, name = self._place(call.path)
        self._name(Naming(parent.seen[name], binds=self._place(call.to)))

    def sync(self, call: Call) -> None:
        """Make certain what the sync of one file or directory makes certain."""
        node = self._top if call.path == self._root else self._node(call.path)
        left: list[Change] = []
        content: bytearray | None = None
        for change in self.pending:
            if isinstance(change, Naming):
                if self._metadata is Metadata.ORDERED or change.directory is node:
                    _rename(change, lambda directory: directory.certain)
                else:
                    left.append(change)
            elif change.file is node:
                content = bytearray(change.file.content) if content is None else content
                _alter(content, change)
            else:
                left.append(change)
        self.pending = left
        if isinstance(node, File) and content is not None:
            node.content = bytes(content)

    def _inside(self, path: str) -> bool:
        return path.startswith(self._root + "/")

    def _place(self, path: str) -> tuple[Directory, str]:
        """Return the directory that holds `path`, and the last part of it."""
        *outer, last = PurePosixPath(path).relative_to(self._root).parts
        directory = self._top
        for name in outer:
            inner = directory.seen.get(name)
            if not isinstance(inner, Directory):
                raise Unmodelled(f"{path} lies in no directory that was there or was made")
            directory = inner
        return directory, last

    def _node(self, path: str) -> Node | None:
        parent, name = self._place(path)
        node = parent.seen.get(name)
        if node is None and not path.endswith(_DELETED):
            raise Unmodelled(f"{path} is a file that was not there and was not made")
        return node

    def _file(self, path: str) -> File | None:
        """Return the file at `path`, or None for one that has lost its name and so cannot be found again."""
        node = self._node(path)
        return node if isinstance(node, File) else None

    def _name(self, naming: Naming) -> None:
        _rename(naming, lambda directory: directory.seen)
        self.pending.append(naming)


_ACTS: Final[Mapping[str, Callable[[Disk, Call], None]]] = {
    **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), Disk.write),
    **dict.fromkeys(("truncate", "ftruncate"), Disk.truncate),
    **dict.fromkeys(("fsync", "fdatasync"), Disk.sync),
    **dict.fromkeys(("open", "openat", "creat"), Disk.open),
    **dict.fromkeys(("mkdir", "mkdirat"), Disk.make_directory),
    **dict.fromkeys(("rmdir", "unlink", "unlinkat"), Disk.remove),
    **dict.fromkeys(("rename", "renameat", "renameat2"), Disk.rename),
    **dict.fromkeys(("link", "linkat"), Disk.link),
    "fallocate": Disk.allocate,
}


def _rename(naming: Naming, names: Callable[[Directory], dict[str, Node]]) -> None:
    if naming.frees is not None:
        directory, name = naming.frees
        # The name may meanwhile be somebody else's, if what comes between the two did not survive.
        if names(directory).get(name) is naming.node:
            del names(directory)[name]
    if naming.binds is not None:
        directory, name = naming.binds
        names(directory)[name] = naming.node


def _alter(content: bytearray, change: Write | Resize) -> None:
    end = change.size if isinstance(change, Resize) else change.offset + len(change.data)
    if end > len(content):
        content.extend(bytes(end - len(content)))
    if isinstance(change, Write):
        content[change.offset : end] = change.data
    elif not change.grow:
        del content[end:]


def sectors(write: Write) -> Sequence[Write]:
    """Return a write as the pieces that a disk writes one by one: cut at the file's sector boundaries."""
    first = write.offset % SECTOR_BYTES
    cuts = [0, *range(SECTOR_BYTES - first, len(write.data), SECTOR_BYTES), len(write.data)]
    return [Write(write.file, write.offset + start, write.data[start:end]) for start, end in pairwise(cuts)]
