"""The order in which a run's facts are written when several of its branches write at once."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.entry import Entry
from holdfast.journal.journal import Journal
from holdfast.store.answer import Answer
from holdfast.store.protocol import Pending
from holdfast.store.value import InboxMoved, Outcome, RowChange

_JOINED: Final = ("blobs", "posts", "consumed", "children", "drop", "budget", "freed")


class _Item:
    """Facts of one writer that wait for their commit."""

    __slots__ = ("change", "entries", "future", "guarded", "heard", "rest")

    def __init__(
        self, entries: Sequence[Entry], change: RowChange | None, guarded: bool, heard: int | None, rest: Any
    ) -> None:
        self.entries, self.change, self.guarded, self.heard, self.rest = entries, change, guarded, heard, rest
        self.future = Answer()

    @property
    def refusable(self) -> bool:
        return self.guarded or self.heard is not None or self.change is not None


class Outbox:
    """Where the writers of one run meet.

    Behind a commit that may be refused for a post nothing is queued before its outcome is known, since its numbers
    would be wrong. While several branches write, what they wrote meanwhile becomes one commit.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._queue: list[_Item] = []
        self._task: asyncio.Task[None] | None = None
        self._held = False
        self._merging = False
        self._free = asyncio.Event()
        self.clear = True
        """True when a writer may append to the journal by itself."""
        self.control_seq = 0
        """The last control that a commit was refused for; none that is guarded is written before it was heeded."""

    def merge(self, several: bool) -> None:
        """Say whether several branches write."""
        self._merging = several
        self._look()

    def _look(self) -> None:
        self.clear = not (self._merging or self._held or self._task)
        if not self._held:
            self._free.set()

    def append(
        self,
        *entries: Entry,
        change: RowChange | None = None,
        guarded: bool = False,
        heard: int | None = None,
        **rest: Any,
    ) -> Pending[Outcome]:
        """Queue facts and return their outcome to be; a refusal for a post has been taken back already."""
        if self.clear:
            pending = self._journal.append(*entries, change=change, guarded=guarded, heard=heard, **rest)
            if (guarded or heard is not None or change is not None) and isinstance(pending, asyncio.Future):
                self._hold()
                pending.add_done_callback(self._let_go)
            elif pending.done():
                self.refused(pending.result())
            return pending
        item = _Item(entries, change, guarded, heard, rest)
        self._queue.append(item)
        if self._task is None:
            self._begin()
        return item.future

    def _hold(self) -> None:
        self._held, self.clear = True, False
        self._free.clear()

    def _let_go(self, pending: "asyncio.Future[Outcome]") -> None:
        if not pending.cancelled() and pending.exception() is None:
            self.refused(pending.result())
        self._held = False
        self._look()

    def refused(self, outcome: Any) -> None:
        """Take the last commit back if it was refused for a post."""
        if isinstance(outcome, InboxMoved):
            self.control_seq, self._journal.inbox_seq = outcome.control_seq, outcome.inbox_seq
            self._journal.take_back()

    async def alone(self) -> None:
        """Wait until nothing is on its way, and keep everybody else from writing until `done`."""
        while self._held or self._task is not None:
            if self._task is not None:
                await asyncio.wait([self._task])
            else:
                await self._free.wait()
        self._hold()

    def done(self) -> None:
        """Let the others write again."""
        self._held = False
        self._look()
        if self._queue and self._task is None:
            self._begin()

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._flush(), name="holdfast outbox")
        self._task.add_done_callback(self._flushed)
        self.clear = False

    async def _flush(self) -> None:
        try:
            while self._queue:
                await self._free.wait()
                await self._write(self._next_batch())
        finally:
            self._task = None
            self._look()

    def _flushed(self, task: "asyncio.Task[None]") -> None:
        """Fail what nobody writes any more: whoever waits for it cannot be cancelled, and would wait for ever."""
        if task.cancelled():
            left, self._queue = self._queue, []
            _fail(left, asyncio.CancelledError())

    def _next_batch(self) -> list[_Item]:
        """Take all that waits, up to the first that may be refused."""
        for place, item in enumerate(self._queue):
            if item.refusable:
                batch, self._queue = self._queue[: place + 1], self._queue[place + 1 :]
                return batch
        batch, self._queue = self._queue, []
        return batch

    async def _write(self, batch: list[_Item]) -> None:
        last = batch[-1]
        rest: dict[str, Any] = {}
        for item in batch:
            for name, value in item.rest.items():
                rest[name] = (*rest.get(name, ()), *value) if name in _JOINED else value
        # One that makes progress makes it for all.
        if any(item.rest.get("progress", True) for item in batch):
            rest.pop("progress", None)
        self._hold()
        try:
            entries = [entry for item in batch for entry in item.entries]
            outcome = await self._journal.append(
                *entries, change=last.change, guarded=last.guarded, heard=last.heard, **rest
            )
        except BaseException as error:
            _fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        finally:
            self._held = False
            self._free.set()
        if isinstance(outcome, InboxMoved):
            self.refused(outcome)
            self._queue = batch[:-1] + self._queue
            batch = batch[-1:]
        for item in batch:
            if not item.future.done():
                item.future.set_result(outcome)


def _fail(items: Sequence[_Item], error: BaseException) -> None:
    for item in items:
        if not item.future.done():
            item.future.set_exception(error)
