"""Daemon threads for plain functions: a step that hangs must not keep its process from ending."""

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.engine.payload import message_of

R = TypeVar("R")
_Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Context, Callable[[], Any]]
_LEAVE = None


class Threads:
    """As many threads as there are calls under way, kept for the next call."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._idle = self._threads = 0
        self._lock = threading.Lock()

    async def call(self, work: Callable[[], R]) -> R:
        """Return what `work` returns, without blocking the event loop.

        A cancelled caller leaves the thread to finish by itself; what it returns then is dropped.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        with self._lock:
            if self._idle:
                self._idle -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._serve, name="holdfast step", daemon=True).start()
        self._queue.put((loop, future, copy_context(), work))
        return await future

    def close(self) -> None:
        """Let every thread end, when it has done what it does; nothing may be called after it."""
        with self._lock:
            for _ in range(self._threads):
                self._queue.put(_LEAVE)

    def _serve(self) -> None:
        while (asked := self._queue.get()) is not _LEAVE:
            loop, future, context, work = asked
            try:
                result, error = context.run(work), None
            except BaseException as raised:
                result, error = None, raised
            # Idle before the answer is out: a caller in lockstep then finds this thread instead of starting another.
            with self._lock:
                self._idle += 1
            try:
                loop.call_soon_threadsafe(_answer, future, result, error)
            except RuntimeError:
                return  # the loop is closed; nobody waits any more
            del asked, loop, future, context, work, result, error


def _answer(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is not None and (not isinstance(error, Exception) or isinstance(error, StopIteration)):
        # No signal and no cancellation reaches this thread, so these are the step's own; but a future that carried
        # them would end the loop, close the awaiting code, or look like its cancellation.
        error = RuntimeError(f"the step raised {type(error).__name__}: {message_of(error)}")
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
