"""Checkpoints for plain code: the same verbs, each waited for on an event loop in a thread of its own."""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, TypeVarTuple

from holdfast.core.errors import Misuse
from holdfast.core.status import NotDone
from holdfast.engine.checkpoint import AsyncCheckpoint, Known

M = TypeVar("M")
R = TypeVar("R")
T = TypeVar("T")
Args = TypeVarTuple("Args")


class LoopThread:
    """An event loop on a daemon thread, which lives while somebody in this process needs it."""

    _lock: Final = threading.Lock()
    _shared: "LoopThread | None" = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid, self._users = os.getpid(), 0
        # A daemon: a program that ends without closing its checkpoints must end, and is flushed on its way out.
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast checkpoints", daemon=True)
        self._thread.start()

    @classmethod
    def borrow(cls) -> "LoopThread":
        """Return the one of this process; a fork has none of its parent's threads."""
        with cls._lock:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            cls._shared._users += 1
            return cls._shared

    def give_back(self) -> None:
        """End it with the last who needs it."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            type(self)._shared = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work; whoever is interrupted meanwhile leaves it to finish, as what is written stays written."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call_or_cancel(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work, and cancel it if the wait is interrupted."""
        pending = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return pending.result()
        except BaseException:
            pending.cancel()
            raise


class Checkpoint(Generic[M]):
    """A user's own loop, made durable: what it has saved is there after any crash, and one process has it at a time."""

    def __init__(self, inner: AsyncCheckpoint[M], loop: LoopThread) -> None:
        self._inner, self._call = inner, loop.call

    @property
    def id(self) -> str:
        """By which it is opened."""
        return self._inner.id

    @property
    def run(self) -> str | None:
        """The run that holds it, for `holdfast show`; None where nothing is kept."""
        return self._inner.run

    @property
    def attempt(self) -> int:
        """How often it was opened, this time included."""
        return self._inner.attempt

    @property
    def iteration(self) -> int | None:
        """Of the last save that is on disk."""
        return self._inner.iteration

    @property
    def phase(self) -> str | None:
        """Of the last save that is on disk."""
        return self._inner.phase

    @property
    def doubts(self) -> Mapping[str, str]:
        """Effects that may or may not have happened, with why nobody knows: what was under way at a kill is here."""
        return self._inner.doubts

    def load(self) -> list[M] | None:
        """Return the messages as they were saved last; None when nothing was ever saved. They are the caller's own."""
        return self._call(self._inner.load())

    def save(self, messages: Sequence[M], iteration: int | None = None, phase: str | None = None) -> bool:
        """Save the loop's state: True when it is on disk, False when the throttle put it off."""
        return self._call(self._inner.save(messages, iteration, phase))

    def flush(self) -> None:
        """Write what was put off; when this returns, all that was saved is on disk."""
        self._call(self._inner.flush())

    def effect(self, key: str, function: Callable[[*Args], R], /, *args: *Args) -> R:
        """Call `function(*args)` here, once for this key, whatever is killed, and return what came of it.

        Raises:
            InDoubt: it was begun before, and nobody knows whether it happened; `resolve` ends that.
            Conflict: the key was used with other arguments.
        """
        if inspect.iscoroutinefunction(function):
            raise Misuse("an async function is for `async with hf.checkpoint.open(...)`; this one is plain")
        begun = self._call(self._inner.begin_effect(key, args))
        if isinstance(begun, Known):
            known: R = begun.value
            return known
        try:
            value = function(*args)
        except Exception as error:
            self._call(self._inner.end_in_doubt(begun, error))
            raise
        done: R = self._call(self._inner.end_effect(begun, value))
        return done

    def resolve(self, key: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None) -> None:
        """End an effect's doubt: it happened and this came of it, or it did not (`hf.NOT_DONE`) and may be tried again.

        Raises:
            Conflict: it is not in doubt.
        """
        self._call(self._inner.resolve(key, value, by=by, note=note))

    def complete(self, result: Any = None) -> None:
        """End it: the loop is done. Whoever opens its id again starts afresh."""
        self._call(self._inner.complete(result))

    def fail(self, error: BaseException | str) -> None:
        """End it as failed. Whoever opens its id again starts afresh; `holdfast retry` brings this one back."""
        self._call(self._inner.fail(error))
