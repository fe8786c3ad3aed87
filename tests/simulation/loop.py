"""An event loop without a machine under it: its time jumps, and a seed decides which process goes on next."""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any, Final

from holdfast.engine.drive import Drive

_LATE: Final = 0.02
"""How likely it is that time passes although somebody could go on."""
_LATEST_SECONDS: Final = 0.1
_CANCELLATIONS: Final = 10
_process: ContextVar["Process | None"] = ContextVar("process", default=None)


class Process:
    """What dies as one: its callbacks go on in the order in which they were asked for, as on a loop of its own."""

    def __init__(self, name: str, now: float) -> None:
        self.name, self._started_at = name, now
        self.ready: deque[events.Handle] = deque()
        self.dead_since: float | None = None
        self.frozen_until = 0.0
        self.turns = 0
        """How many callbacks it has had."""
        self.context = copy_context()
        self.context.run(_process.set, self)
        self.tasks: list[_Task] = []

    @property
    def steady_since(self) -> float:
        """Since when it goes on without having been stopped."""
        return max(self._started_at, self.frozen_until)

    @property
    def lives(self) -> bool:
        """False once it was killed."""
        return self.dead_since is None


class _Numbered:
    """Hashed by number and not by address, so that a set of them is walked in the same order every time."""

    number: int

    def __hash__(self) -> int:
        return self.number


class _Task(_Numbered, asyncio.Task[Any]):
    pass


class _Future(_Numbered, asyncio.Future[Any]):
    pass


class SeededLoop(asyncio.BaseEventLoop):
    """Runs processes until the first is done; equal seeds give equal traces.

    Within a process callbacks keep the order that asyncio promises. Which process has the next turn, how late it is,
    and how long whatever asks `chance` takes, is the seed's choice.
    """

    def __init__(self, seed: str) -> None:
        super().__init__()
        self.chance = Random(seed)
        self._now = 0.0
        self._heap: list[tuple[float, int, events.TimerHandle]] = []
        self._numbers = count(1)
        self.processes: list[Process] = []
        self._outside = Process("outside", 0.0)
        self._trace = blake2b(digest_size=16)
        self.choices = 0
        self.heard: list[str] = []
        """All that was traced, if somebody wants to read it."""
        self.listening = False
        self.on_turn: Callable[[Process], None] = _nothing
        """Called before every turn of a process: who wants to kill or freeze it does so there."""

    # Time

    def time(self) -> float:
        return self._now

    def micros(self) -> int:
        """Return the time as a store's clock tells it."""
        return 1_767_225_600_000_000 + round(self._now * 1e6)

    # Processes

    def process(self, name: str) -> Process:
        """Make a process, which has nothing to do yet."""
        made = Process(name, self._now)
        self.processes.append(made)
        return made

    def start(self, process: Process, code: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Let a process begin with this code."""
        return process.context.run(self.create_task, code)

    def current(self) -> Process:
        """Return the process whose turn it is."""
        return _process.get() or self._outside

    def kill(self, process: Process) -> None:
        """End a process between two of its callbacks: nothing of it goes on, no `finally` block runs."""
        process.dead_since = self._now
        self.note(f"{process.name} dies")

    def freeze(self, process: Process, seconds: float) -> None:
        """Stop a process for a while; it does not know."""
        process.frozen_until = self._now + seconds
        self.note(f"{process.name} stands still for {seconds:.3f}")

    def note(self, what: str) -> None:
        """Add to the trace."""
        line = f"{self._now:.6f} {what}\n"
        self._trace.update(line.encode())
        if self.listening:
            self.heard.append(line)

    @property
    def digest(self) -> str:
        """What all choices so far come to."""
        return self._trace.hexdigest()

    # What asyncio asks of a loop

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None, **rest: Any) -> Any:
        task = _Task.__new__(_Task)
        task.number = next(self._numbers)
        _Task.__init__(task, coro, loop=self, name=name or f"task {task.number}", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # the dead leave tasks behind
        (_process.get() or self._outside).tasks.append(task)
        return task

    def create_future(self) -> Any:
        future = _Future.__new__(_Future)
        future.number = next(self._numbers)
        _Future.__init__(future, loop=self)
        return future

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> events.Handle:  # type: ignore[override]
        handle = events.Handle(callback, args, self, context)
        self._owner(handle).ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> events.TimerHandle:  # type: ignore[override]
        handle = events.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._heap, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: Any) -> None:
        return None

    def _owner(self, handle: events.Handle) -> Process:
        return handle._context.get(_process) or self._outside  # type: ignore[attr-defined]

    # Turning

    def _run_once(self) -> None:
        """Give one process one turn."""
        self._wake()
        if self.chance.random() < _LATE:
            self._now += self.chance.uniform(0, _LATEST_SECONDS)
            self._wake()
        able = [process for process in (self._outside, *self.processes) if self._is_able(process)]
        if not able:
            self._jump()
            return
        chosen = able[0] if len(able) == 1 else able[self.chance.randrange(len(able))]
        self.on_turn(chosen)
        if not self._is_able(chosen):
            return
        handle = chosen.ready.popleft()
        if handle._cancelled:
            return
        chosen.turns += 1
        self.choices += 1
        self.note(chosen.name)
        handle._run()

    def _is_able(self, process: Process) -> bool:
        return bool(process.ready) and process.dead_since is None and process.frozen_until <= self._now

    def _wake(self) -> None:
        """Make ready what is due."""
        while self._heap and self._heap[0][0] <= self._now:
            _, number, handle = heapq.heappop(self._heap)
            owner = self._owner(handle)
            if handle._cancelled or not owner.lives:
                owner.ready.append(handle)  # never run, but not let go of before all is judged
            elif owner.frozen_until > self._now:
                heapq.heappush(self._heap, (owner.frozen_until, number, handle))
            else:
                owner.ready.append(handle)

    def _jump(self) -> None:
        """Let time pass to the next moment at which something may happen."""
        thaws = [p.frozen_until for p in self.processes if p.lives and p.ready and p.frozen_until > self._now]
        due = [self._heap[0][0]] if self._heap else []
        if not due and not thaws:
            raise Idle("nothing will ever happen")
        self._now = max(self._now, min(due + thaws))

    def bury(self) -> None:
        """Let everything that is left unwind; all is judged, and nobody looks."""
        self.on_turn = _nothing
        self.set_exception_handler(lambda loop, context: None)
        everybody = [self._outside, *self.processes]
        events._set_running_loop(self)
        left: list[_Task] = []
        try:
            for process in everybody:
                process.dead_since = None
            for _ in range(_CANCELLATIONS):
                left = [task for process in everybody for task in process.tasks if not task.done()]
                for task in left:
                    task.cancel()
                    # What refuses to be cancelled is an answer that nobody gives any more.
                    waited: Any = task._fut_waiter  # type: ignore[attr-defined]
                    if waited is not None and not waited.done():
                        waited.set_exception(asyncio.CancelledError())
                while handles := [handle for process in everybody for handle in _drain(process)]:
                    for handle in handles:
                        if not handle._cancelled:
                            handle._run()
                if not left:
                    break
            stuck = [repr(task) for task in left if not _is_leaving(task)]
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()
        finally:
            events._set_running_loop(None)
        self._heap.clear()
        self.close()
        assert not stuck, stuck


def _is_leaving(task: _Task) -> bool:
    """Say whether a task is code that its process is to leave: that passes every cancellation over until it has."""
    code: Any = task.get_coro()
    while code is not None and getattr(code, "cr_frame", None) is not None:
        if code.cr_code is Drive.leave.__code__:
            return True
        code = code.cr_await
    return False


class Idle(AssertionError):
    """No process has anything to do or to wait for."""


def _drain(process: Process) -> list[events.Handle]:
    handles = list(process.ready)
    process.ready.clear()
    return handles


def _nothing(process: Process) -> None:
    return None
