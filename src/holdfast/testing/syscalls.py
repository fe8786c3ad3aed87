"""Run a function in a forked child and decide, at each of its file calls, whether it happens, fails or is the last."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from types import FrameType
from typing import Final, assert_never

from holdfast.testing import ptrace
from holdfast.testing.call import FILTER, Call, Thread, Watch, describe, within
from holdfast.testing.ptrace import TracingUnavailable

__all__ = ["Action", "Call", "Fail", "Go", "Traced", "TracingUnavailable", "Watch", "trace", "within"]

LAST_WORDS: Final = 63
"""The signal that a stuck child gets just before it is killed, so that it can write down what it was doing."""

LAST_WORDS_SECONDS: Final = 0.3
_STOPPING: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_SYSCALL_STOP: Final = signal.SIGTRAP | 0x80


class Go(Enum):
    """What becomes of a call, besides failing."""

    ON = "on"
    KILL_BEFORE = "before"
    KILL_AFTER = "after"


@dataclass(frozen=True, slots=True)
class Fail:
    """The call does not happen and the program gets this errno."""

    errno: int


Action = Go | Fail


@dataclass(frozen=True, slots=True)
class Traced:
    """How a traced child ended: its exit status (negative: the signal) and the number of watched calls."""

    exit_status: int
    calls: int
    stuck: bool


def trace(
    body: Callable[[], int],
    decide: Callable[[Call], Action],
    *,
    watch: Watch,
    done: Callable[[Call, int], None] | None = None,
    timeout_seconds: float = 60.0,
) -> Traced:
    """Run `body` in a forked child, with its threads and subprocesses, and let `decide` rule over each watched call.

    With `done`, calls carry their data, happen one at a time whichever thread makes them, and are reported with their
    result. Subprocesses end with the child. A child still alive after `timeout_seconds` is killed and called stuck.
    The caller must be the main thread of a process without other children, because tracing means waiting for any child;
    a `Killer` has such a process.

    Raises:
        TracingUnavailable: the system cannot do it.
    """
    ptrace.machine()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return _Trace(decide, watch, done).run(body, timeout_seconds)
    raise RuntimeError("trace() was called in a process that has other children")


class _Trace:
    """The tracer's side of one child."""

    def __init__(
        self, decide: Callable[[Call], Action], watch: Watch, done: Callable[[Call, int], None] | None
    ) -> None:
        self._decide, self._watch, self._done = decide, watch, done
        self._child = 0
        self._alive: set[int] = set()
        self._calls = 0
        self._status: int | None = None
        self._stuck = False

    def run(self, body: Callable[[], int], timeout_seconds: float) -> Traced:
        self._child = _start(body)
        self._alive.add(self._child)
        try:
            with self._deadline(timeout_seconds):
                self._follow()
        finally:
            self._end()
        if self._status is None:
            raise RuntimeError("the traced child vanished without a status")
        return Traced(os.waitstatus_to_exitcode(self._status), self._calls, self._stuck)

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """When the time is up, ask the child to say where it is, and a little later kill it."""
        # A timer's signal, because a thread could not be waited for exactly and the next fork must find none. And a
        # handle, not the number: the number may belong to somebody else by then.
        handle = os.pidfd_open(self._child)

        def expire(number: int, frame: FrameType | None) -> None:
            last_words, self._stuck = not self._stuck, True
            with suppress(OSError):
                signal.pidfd_send_signal(handle, LAST_WORDS if last_words else signal.SIGKILL)

        before = signal.signal(signal.SIGALRM, expire)
        signal.setitimer(signal.ITIMER_REAL, seconds, LAST_WORDS_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            os.close(handle)

    def _follow(self) -> None:
        """Attend to the child and all it starts until none of them is left."""
        while True:
            try:
                thread, status = os.waitpid(-1, ptrace.WALL)
            except ChildProcessError:
                return
            self._attend(thread, status)

    def _attend(self, thread: int, status: int) -> None:
        if not os.WIFSTOPPED(status):
            self._alive.discard(thread)
            if thread == self._child:
                self._status = status
                self._kill(*self._alive)
            return
        self._alive.add(thread)
        if self._status is not None:
            self._kill(thread)
            return
        # A thread can be killed while it is being looked at; its death is reported by the next wait.
        with suppress(ProcessLookupError):
            self._go_on(Thread(thread), status >> 16, os.WSTOPSIG(status))

    def _go_on(self, thread: Thread, event: int, stop_signal: int) -> None:
        if event == ptrace.EVENT_SECCOMP:
            call = self._watched(thread)
            if call is None:
                ptrace.resume(thread)
            else:
                self._calls += 1
                self._rule(call)
        elif event == ptrace.EVENT_STOP and stop_signal in _STOPPING:
            ptrace.stay_stopped(thread)
        else:
            ptrace.resume(thread, 0 if event else stop_signal)

    def _watched(self, thread: Thread) -> Call | None:
        try:
            return describe(thread, self._calls + 1, self._watch, with_data=self._done is not None)
        except OSError as error:
            # A bad address, or a descriptor that another thread has just closed: the call will fail by itself.
            if error.errno not in (errno.EFAULT, errno.ENOENT):
                raise
            return None

    def _rule(self, call: Call) -> None:
        match self._decide(call):
            case Go.ON if self._done is None:
                ptrace.resume(call.thread)
            case Go.ON:
                if self._perform(call.thread):
                    self._report(call)
            case Go.KILL_BEFORE:
                self._kill(call.thread, self._child)
            case Go.KILL_AFTER:
                if self._perform(call.thread):
                    self._kill(call.thread, self._child)
            case Fail(errno=number):
                ptrace.skip_call(call.thread)
                if self._perform(call.thread):
                    ptrace.set_result(call.thread, -number)
                    ptrace.resume(call.thread)
            case never:
                assert_never(never)

    def _report(self, call: Call) -> None:
        result = ptrace.result_at(call.thread)
        if self._done is not None:
            self._done(call, result)
        ptrace.resume(call.thread)

    def _perform(self, thread: Thread) -> bool:
        """Let the call happen while every other stop waits, and say whether the thread lived to see it."""
        ptrace.resume_to_exit(thread)
        _, status = os.waitpid(thread, ptrace.WALL)
        if os.WIFSTOPPED(status) and os.WSTOPSIG(status) == _SYSCALL_STOP:
            return True
        self._attend(thread, status)
        return False

    def _kill(self, *threads: int) -> None:
        for thread in threads:
            try:
                os.kill(thread, signal.SIGKILL)
            except ProcessLookupError:
                self._alive.discard(thread)

    def _end(self) -> None:
        self._kill(*self._alive)
        while self._alive:
            try:
                thread, status = os.waitpid(-1, ptrace.WALL)
            except ChildProcessError:
                return
            if not os.WIFSTOPPED(status):
                self._alive.discard(thread)


def _start(body: Callable[[], int]) -> int:
    """Fork a child that is traced before it runs `body`."""
    traced, go = os.pipe()
    child = os.fork()
    if child == 0:
        exit_status = 70
        try:
            os.close(go)
            if os.read(traced, 1):
                os.close(traced)
                ptrace.stop_on(FILTER)
                exit_status = body()
        finally:
            os._exit(exit_status)
    os.close(traced)
    try:
        ptrace.seize(child)
        os.write(go, b"g")
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    finally:
        os.close(go)
    return child
