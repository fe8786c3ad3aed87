"""Processes that stand still and go on: by signal, and by the freezer, which they can neither see nor refuse."""

import contextlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, Self

from tests.rigs.waiting import wait_until

_MOUNTS: Final = Path("/proc/self/mounts")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process and all its descendants stand still for a while, one after the other, parents first."""
    family = _stop_family(pid)
    try:
        yield
    finally:
        for member in reversed(family):
            _send(member, signal.SIGCONT)


def family(pid: int) -> list[int]:
    """Return a process and all its descendants, parents first."""
    members = [pid]
    for member in members:
        for children in Path(f"/proc/{member}/task").glob("*/children"):
            # A thread or process that ended in between has no children.
            with contextlib.suppress(OSError):
                members += [int(child) for child in children.read_text("ascii").split()]
    return members


def state(pid: int) -> str:
    """Return the letter that the kernel has for what a process does, Z for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def _stop_family(pid: int) -> list[int]:
    """Stop all of them and return them; a child that is born before its parent stops is found by another look."""
    known: list[int] = []
    while fresh := [member for member in family(pid) if member not in known]:
        for member in fresh:
            _send(member, signal.SIGSTOP)
            wait_until(partial(_still, member), what=f"process {member} stopped")
        known += fresh
    return known


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _still(pid: int) -> bool:
    return state(pid) in "TZX"


class Freezer:
    """A control group that stands still and goes on as one, whatever is born in it; needs root, usable in `with`."""

    def __init__(self) -> None:
        self._group, self._version = _new_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.thaw()
        for pid in self._members():
            # What ended in between needs no new place.
            with contextlib.suppress(ProcessLookupError):
                (self._group.parent / "cgroup.procs").write_text(pid, encoding="ascii")
        wait_until(lambda: not self._members(), what="the group empty")
        self._group.rmdir()

    def add(self, pid: int) -> None:
        """Take a process in; what it starts from now on is born inside."""
        (self._group / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def freeze(self) -> None:
        """Return when everything inside stands still."""
        self._set("FROZEN" if self._version == 1 else "1")
        wait_until(self._frozen, what="the group frozen")

    def thaw(self) -> None:
        """Let everything inside go on."""
        self._set("THAWED" if self._version == 1 else "0")

    def _set(self, state: str) -> None:
        (self._group / ("freezer.state" if self._version == 1 else "cgroup.freeze")).write_text(state, encoding="ascii")

    def _frozen(self) -> bool:
        if self._version == 1:
            return (self._group / "freezer.state").read_text("ascii").strip() == "FROZEN"
        return "frozen 1" in (self._group / "cgroup.events").read_text("ascii")

    def _members(self) -> list[str]:
        return (self._group / "cgroup.procs").read_text("ascii").split()


def _new_group() -> tuple[Path, int]:
    """Make a group where a freezer is mounted that lets us."""
    refusals: list[str] = []
    for root, version in _freezers():
        group = root / f"holdfast-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            group.mkdir()
        except OSError as error:
            refusals.append(str(error))
            continue
        return group, version
    raise RuntimeError(f"there is no freezer to use here: {'; '.join(refusals) or 'none is mounted'}")


def _freezers() -> Iterator[tuple[Path, int]]:
    for line in _MOUNTS.read_text("utf-8").splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "freezer" in options.split(","):
            yield Path(place), 1
        if kind == "cgroup2":
            yield Path(place), 2
