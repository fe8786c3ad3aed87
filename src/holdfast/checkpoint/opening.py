"""Opening a checkpoint by its id, and finding those that were left behind: for plain and for async code."""

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, overload

from holdfast.checkpoint.desk import borrowed
from holdfast.checkpoint.plain import Checkpoint, LoopThread
from holdfast.checkpoint.shutdown import TERMINATED, leave, listen
from holdfast.core import limits
from holdfast.core.codec import Codec
from holdfast.core.errors import InvalidInput, Misuse
from holdfast.core.ids import checked_text
from holdfast.core.retry import checked_seconds
from holdfast.core.stepkey import join_key
from holdfast.engine.checkpoint import ANYTHING, AsyncCheckpoint
from holdfast.engine.interrupted import Interrupted, find_interrupted
from holdfast.engine.nowhere import Nowhere
from holdfast.engine.taking import take
from holdfast.runtime import DEFAULT_STORE, refuse_in_loop
from holdfast.store.protocol import Store

M = TypeVar("M")
Id = str | tuple[str | int, ...]
USUAL: Final = "HOLDFAST_STORE"
"""Where nothing else is said: the store that `HOLDFAST_STORE` names, else `sqlite:///holdfast.db`."""
_LEFT_OPEN: Final[list["Opening[Any]"]] = []
"""Checkpoints of plain code that are open."""


class Opening(Generic[M]):
    """A checkpoint about to be opened: use it in a plain `with` or in `async with`, once."""

    def __init__(
        self, checkpoint: str, store: str | Store | None, *, every_seconds: float, labels: Mapping[str, str],
        codec: Codec, version: str,
    ) -> None:  # fmt: skip
        self._checkpoint, self._store, self._every, self._labels = checkpoint, store, every_seconds, labels
        self._codec, self._version = codec, version
        self._stack = AsyncExitStack()
        self._open: AsyncCheckpoint[M] | None = None
        self._loop: LoopThread | None = None
        self._deaf: Callable[[], None] = _nothing
        self._terminated = False

    async def _enter(self) -> AsyncCheckpoint[M]:
        if self._open is not None:
            raise Misuse("this was opened before: call hf.checkpoint.open again")
        if self._store is None:
            self._open = Nowhere(self._checkpoint)
            return self._open
        try:
            keeper = await self._stack.enter_async_context(borrowed(self._store))
            lease = await take(keeper, self._checkpoint, self._labels)
            opened = AsyncCheckpoint[M](keeper, lease, self._checkpoint, every_seconds=self._every, codec=self._codec)
            await opened.begin(self._version)
        except BaseException:
            await self._stack.aclose()
            raise
        self._open = opened
        return opened

    async def _leave(self, error: BaseException | None) -> None:
        try:
            if self._open is not None:
                await self._open.close(error)
        finally:
            await self._stack.aclose()

    async def __aenter__(self) -> AsyncCheckpoint[M]:
        opened = await self._enter()
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._deaf = listen(lambda: loop.call_soon_threadsafe(self._terminate, task))
        return opened

    def _terminate(self, task: asyncio.Task[Any]) -> None:
        self._terminated = True
        task.cancel()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._deaf()
        await self._leave(error)
        if self._terminated and isinstance(error, asyncio.CancelledError):
            raise SystemExit(TERMINATED)

    def __enter__(self) -> Checkpoint[M]:
        refuse_in_loop("a plain `with hf.checkpoint.open(...)`", "`async with hf.checkpoint.open(...)`")
        loop = LoopThread.borrow()
        try:
            opened = loop.call_or_cancel(self._enter())
        except BaseException:
            loop.give_back()
            raise
        self._loop = loop
        _LEFT_OPEN.append(self)
        self._deaf = listen(leave)
        return Checkpoint(opened, loop)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        loop, self._loop = self._loop, None
        if loop is None:
            return  # the interpreter is ending, and has left it already
        self._deaf()
        _LEFT_OPEN.remove(self)
        try:
            loop.call(self._leave(error))
        finally:
            loop.give_back()


@atexit.register
def _leave_all() -> None:
    """Keep what is still open when the interpreter ends: nobody will leave its `with` block any more."""
    for opening in list(_LEFT_OPEN):
        opening.__exit__(SystemExit, SystemExit("the interpreter ended"), None)


class Survey:
    """The checkpoints that were left behind: iterate over it in plain code, or `await` or `async for` in async code."""

    def __init__(self, store: str | Store | None, labels: Mapping[str, str]) -> None:
        self._store, self._labels = store, labels

    async def _found(self) -> list[Interrupted]:
        if self._store is None:
            return []
        async with borrowed(self._store) as keeper:
            return await find_interrupted(keeper, self._labels)

    def __await__(self) -> Generator[Any, None, list[Interrupted]]:
        return self._found().__await__()

    async def __aiter__(self) -> AsyncIterator[Interrupted]:
        for found in await self._found():
            yield found

    def __iter__(self) -> Iterator[Interrupted]:
        refuse_in_loop("a plain look at what was interrupted", "`await hf.checkpoint.interrupted()`")
        loop = LoopThread.borrow()
        try:
            return iter(loop.call_or_cancel(self._found()))
        finally:
            loop.give_back()


@overload
def open(
    checkpoint: Id, /, *, store: str | Store | None = USUAL, every: float | timedelta = 0.0,
    labels: Mapping[str, str] | None = None, version: str = "",
) -> Opening[Any]: ...  # fmt: skip
@overload
def open(
    checkpoint: Id, /, *, store: str | Store | None = USUAL, every: float | timedelta = 0.0,
    labels: Mapping[str, str] | None = None, version: str = "", of: type[M],
) -> Opening[M]: ...  # fmt: skip
def open(
    checkpoint: Id, /, *, store: str | Store | None = USUAL, every: float | timedelta = 0.0,
    labels: Mapping[str, str] | None = None, version: str = "", of: Any = Any,
) -> Opening[Any]:  # fmt: skip
    """Open a checkpoint by its id, in `with` or `async with`: the one that is there, or a new one.

    Without `store` it is where everything else is: `HOLDFAST_STORE`, else `sqlite:///holdfast.db`. With `store=None`
    nothing is kept, and every verb does nothing. `every` puts saves off that come sooner after the last one; `of` is
    the type of a message, plain data if left out; `labels` and `version` are told of it wherever it is listed.

    When the block is left, success completes the checkpoint, a shutdown keeps it, and any other exception fails it.
    """
    return Opening(
        checked_text("the checkpoint's id", join_key(checkpoint), limits.KEY_BYTES),
        _address(store),
        every_seconds=checked_seconds("every=", every),
        labels=dict(labels or {}),
        codec=ANYTHING if of is Any else Codec(of),
        version=version,
    )


def interrupted(*, store: str | Store | None = USUAL, labels: Mapping[str, str] | None = None) -> Survey:
    """Find the checkpoints that were left behind by a shutdown, a crash or a kill, the oldest first.

    What is alive elsewhere is not among them. Where only a pulse can tell, this waits until it has: a lease at most.
    """
    return Survey(_address(store), dict(labels or {}))


def _address(store: str | Store | None) -> str | Store | None:
    if store is not None and not isinstance(store, str) and not hasattr(store, "commit"):
        raise InvalidInput(f"store= is a store's address, such as sqlite:///holdfast.db, or None, not {store!r}")
    return os.environ.get(USUAL) or DEFAULT_STORE if store == USUAL else store


def _nothing() -> None:
    return None
