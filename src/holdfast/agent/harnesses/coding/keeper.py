"""Stands between a worker and a program that works on a directory: the program and all that it started end with both.

It is executed as a file, by a bare interpreter, so that it is there within milliseconds, and imports nothing of
Holdfast. A program's own children leave its process group and outlive it when it is killed. So its keeper adopts
whoever loses a parent, and holds the lock of the directory until the last of them is gone.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

_SET_DEATH_SIGNAL: Final = 1
_SET_ADOPTING: Final = 36
_LOOK_SECONDS: Final = 0.02
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_EXECUTED: Final = 127


class Order(NamedTuple):
    """What a keeper is told on its command line."""

    control: int
    """Its end of a socket: once the other is closed the program shall stop; what becomes of it is told there."""
    workspace: str
    grace_seconds: float
    """How long the program may take to stop by itself."""
    wait_seconds: float
    """How long the directory may be in use by another before this is given up."""
    command: Sequence[str]

    @classmethod
    def read(cls, words: Sequence[str]) -> "Order":
        """Return the order that a command line says."""
        control, workspace, grace, wait, *command = words
        return cls(int(control), workspace, float(grace), float(wait), command)

    def words(self) -> list[str]:
        """Return it as a command line."""
        return [str(self.control), self.workspace, str(self.grace_seconds), str(self.wait_seconds), *self.command]


class Keeper:
    """One program, from before its first instruction until after the last of all that it started."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._stopping = False
        self._ears, wake = os.pipe()
        for end in (self._ears, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        os.set_inheritable(order.control, False)

    def keep(self) -> None:
        """Run the program to its end, or until the worker is gone, and leave nothing of it behind."""
        try:
            directory = os.open(self._order.workspace, os.O_RDONLY | os.O_DIRECTORY)
            if not self._lock(directory):
                self._tell("stopped" if self._stopping else "busy")
                return
        except OSError as error:
            self._tell(f"unusable {error.errno}")
            return
        program = self._start(directory)
        if program is None:
            return
        self._tell(f"began {program}")
        self._tell(_told(self._wait(program)))
        # The lock goes with this process, so only now: all that could still write in the directory is gone.

    def _on_stop(self, *_: object) -> None:
        self._stopping = True

    def _lock(self, directory: int) -> bool:
        until = time.monotonic() + self._order.wait_seconds
        while True:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._look(_LOOK_SECONDS) or time.monotonic() > until:
                    return False
            else:
                return True

    def _start(self, directory: int) -> int | None:
        """Return the program's id; None when it could not be executed, which was told then."""
        keeper = os.getpid()
        ours, theirs = os.pipe()
        program = os.fork()
        if program == 0:
            try:
                self._become(directory, keeper)
            except OSError as error:
                os.write(theirs, str(error.errno).encode())
            finally:
                os._exit(_NOT_EXECUTED)
        os.close(theirs)
        failed = os.read(ours, 16)
        os.close(ours)
        if failed:
            os.waitpid(program, 0)
            self._tell(f"failed {failed.decode()}")
            return None
        return program

    def _become(self, directory: int, keeper: int) -> None:
        os.setsid()
        prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != keeper:
            return  # it died before it could be a reason to
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        # Inherited by whoever inherits anything: should the keeper be killed, the directory is still theirs.
        os.set_inheritable(directory, True)
        os.fchdir(directory)
        os.execvp(self._order.command[0], list(self._order.command))

    def _wait(self, program: int) -> int:
        """Return the program's status once it, and everybody that it left, has ended."""
        status: int | None = None
        until: float | None = None
        while True:
            ended, left = _reap(program)
            status = ended if ended is not None else status
            if not left:
                return status if status is not None else 0
            if status is not None or (until is not None and time.monotonic() > until):
                _kill_all(program)
                self._look(_LOOK_SECONDS)
            elif self._stopping and until is None:
                until = time.monotonic() + self._order.grace_seconds
                _signal_group(program, signal.SIGTERM)
            else:
                self._look(None if until is None else until - time.monotonic())

    def _look(self, seconds: float | None) -> bool:
        """Wait for a signal or for word of the worker; return whether the program shall stop."""
        heard = [self._ears] if self._stopping else [self._ears, self._order.control]
        ready, _, _ = select.select(heard, [], [], seconds if seconds is None else max(seconds, 0.0))
        if self._ears in ready:
            os.read(self._ears, 4096)
        if self._order.control in ready and _is_over(self._order.control):
            self._stopping = True
        return self._stopping

    def _tell(self, word: str) -> None:
        try:
            os.write(self._order.control, f"{word}\n".encode())
        except OSError:
            self._stopping = True  # nobody is there to hear it


def prctl(what: int, value: int) -> None:
    """Ask Linux for what it does to processes; other systems are not asked."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


def _is_over(control: int) -> bool:
    try:
        return not os.read(control, 64)
    except OSError:
        return True


def _reap(program: int) -> tuple[int | None, bool]:
    """Bury the dead; return the program's status if it is among them, and whether any child is left."""
    status: int | None = None
    while True:
        try:
            dead, how = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return status, False
        if dead == 0:
            return status, True
        if dead == program:
            status = how


def _signal_group(program: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program, number)


def _kill_all(program: int) -> None:
    """Kill every child: whoever loses a parent becomes one, so that in the end they all are.

    None of them is buried yet, so none of these ids can be somebody else's. A system that does not let a process adopt
    others does not list them either: there it is the program's group that is killed.
    """
    children = _children(os.getpid())
    if children is None:
        _signal_group(program, signal.SIGKILL)
        return
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)


def _children(parent: int) -> list[int] | None:
    try:
        names = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    return [int(name) for name in names if _parent(name) == parent]


def _parent(name: str) -> int | None:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            # The second field is the program's name, which may hold anything, parentheses too.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed {os.WTERMSIG(status)}"
    return f"exited {os.WEXITSTATUS(status)}"


if __name__ == "__main__":
    prctl(_SET_ADOPTING, 1)
    prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    Keeper(Order.read(sys.argv[1:])).keep()
