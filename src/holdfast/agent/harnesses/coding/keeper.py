"""Stands between a worker and a program at work in a directory: the program and its children end with both."""

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
_MEASURE_SECONDS: Final = 0.5
LAUNCHED: Final = b'\n{"type":"holdfast.launched"}\n'
"""What stands before the output of each program in one spool; the one before it may have been killed within a line."""
_IGNORED_BY_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
_NOT_EXECUTED: Final = 127


class Order(NamedTuple):
    """What a keeper is told on its command line."""

    control: int
    """Its end of a socket: once the other is closed the program shall stop; what becomes of it is told there."""
    directory: int
    """Where the program works: open, and locked by whoever opened it."""
    spool: str
    """The file that the program's standard output goes to, behind what is there, so that it outlives its reader."""
    output_bytes: int
    """How large that file may become before the program is stopped."""
    grace_seconds: float
    """How long the program may take to stop by itself."""
    command: Sequence[str]

    @classmethod
    def read(cls, words: Sequence[str]) -> "Order":
        """Return the order that a command line says."""
        control, directory, spool, output_bytes, grace, *command = words
        return cls(int(control), int(directory), spool, int(output_bytes), float(grace), command)

    def words(self) -> list[str]:
        """Return it as a command line."""
        return [*map(str, self[:-1]), *self.command]


class Keeper:
    """One program, from before its first instruction until after the last of all that it started.

    Executed as a file, by a bare interpreter, it is there within milliseconds; it imports nothing of Holdfast. A
    program's own children leave its process group and outlive it when it is killed. So its keeper adopts whoever loses
    a parent, and holds the lock of the directory until the last of them is gone.
    """

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
            self._spool = os.open(self._order.spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._spool, LAUNCHED)
            program = self._start()
        except OSError as error:
            self._tell(f"failed {error.errno}")
            return
        self._tell(f"began {program}")
        status = self._wait(program)
        # Only now: all that could still write in the directory is gone.
        # In so many words: a fork of the worker's may have the open file as well, and would keep the lock.
        fcntl.flock(self._order.directory, fcntl.LOCK_UN)
        self._tell("overflowed" if self._overflows() else _told(status))

    def _on_stop(self, *_: object) -> None:
        self._stopping = True

    def _start(self) -> int:
        """Return the program's id.

        Raises:
            OSError: it could not be executed.
        """
        keeper = os.getpid()
        ours, theirs = os.pipe()
        program = os.fork()
        if program == 0:
            try:
                self._become(keeper)
            except OSError as error:
                os.write(theirs, str(error.errno).encode())
            finally:
                os._exit(_NOT_EXECUTED)
        os.close(theirs)
        failed = os.read(ours, 16)
        os.close(ours)
        if failed:
            os.waitpid(program, 0)
            raise OSError(int(failed), "not executed")
        return program

    def _become(self, keeper: int) -> None:
        os.setsid()
        prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != keeper:
            return  # it died before it could be a reason to
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, *_IGNORED_BY_PYTHON):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(self._spool, 1)
        os.fchdir(self._order.directory)
        # The directory stays open in whoever inherits anything: should the keeper be killed, its lock is still theirs.
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
                self._look(_MEASURE_SECONDS if until is None else until - time.monotonic())
                self._stopping = self._stopping or self._overflows()

    def _overflows(self) -> bool:
        return os.fstat(self._spool).st_size > self._order.output_bytes

    def _look(self, seconds: float) -> None:
        """Wait for a signal or for word of the worker."""
        heard = [self._ears] if self._stopping else [self._ears, self._order.control]
        ready, _, _ = select.select(heard, [], [], max(seconds, 0.0))
        if self._ears in ready:
            os.read(self._ears, 4096)
        if self._order.control in ready and _is_over(self._order.control):
            self._stopping = True

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
