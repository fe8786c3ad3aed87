"""A store whose time stands still, and moves on to what is due next once everybody waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.core.version import admits
from holdfast.engine.scheduler import Scheduler
from holdfast.store.protocol import Pending, Store, Watch
from holdfast.store.value import Commit, Lease, Outcome, Page, RunFilter, RunRow
from holdfast.testing.clock import MovingClock

_ALL: Final = 1_000_000
_TURNS: Final = 5


class TimedStore:
    """Every verb is the inner store's; who watches is rung when the clock moves.

    With `jumps` the clock moves by itself, to the next time that a run is due, when a run is waited for and there is
    nothing to do: no run is driven, and none could be claimed. It stops at every tick of a schedule that comes before;
    ticks alone do not move it, since there is always another.
    """

    def __init__(
        self, store: Store, clock: MovingClock, serves: Callable[[], Mapping[str, str]], *, jumps: bool
    ) -> None:
        self._store, self._clock, self._serves, self._jumps = store, clock, serves, jumps
        self._loop = asyncio.get_running_loop()
        self._open: set[_TimedWatch] = set()
        self._waiting: set[_TimedWatch] = set()
        self._stirred = asyncio.Event()
        self._hand: asyncio.Task[None] | None = None
        self._deaf: Callable[[], None] | None = None
        self.before_time: Callable[[], Awaitable[bool]] | None = None
        """What may still happen when there is nothing to do, before the clock moves; it says whether it did."""
        self.scheduler: Scheduler | None = None
        """Whose ticks the clock does not pass over on its way to what a run waits for."""
        self.idle = asyncio.Event()
        """Set while a run is waited for that nothing will move: nothing is driven, and nothing will ever be due."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def begin(self) -> None:
        """Listen to the clock, and let it jump."""
        self._deaf = self._clock.listen(lambda: self._loop.call_soon_threadsafe(self._moved))
        self._hand = self._loop.create_task(self._turn(), name="holdfast clock")

    async def close(self) -> None:
        """Let the clock stand, and close the store."""
        try:
            if self._deaf is not None:
                self._deaf()
            if self._hand is not None:
                self._hand.cancel()
                with suppress(asyncio.CancelledError):
                    await self._hand
        finally:
            await self._store.close()

    # What tells that somebody waits, or has something to do

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Watch:
        watch = _TimedWatch(self, self._store.watch(run, entries=entries), worker=run is None)
        self._open.add(watch)
        return watch

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        outcome = self._store.commit(lease, change)
        if change.change is not None:
            self._stirred.set()
        return outcome

    def waits(self, watch: "_TimedWatch") -> None:
        """Note that somebody waits."""
        self._waiting.add(watch)
        self._stirred.set()

    def left(self, watch: "_TimedWatch") -> None:
        """Note that somebody goes on."""
        self._waiting.discard(watch)
        self.idle.clear()

    def forget(self, watch: "_TimedWatch") -> None:
        """Note that somebody has stopped listening."""
        self._open.discard(watch)

    def _moved(self) -> None:
        for watch in self._open:
            watch.ring()

    # The clock's hand

    async def _turn(self) -> None:
        while True:
            await self._stirred.wait()
            # Whoever was rung by the same thing gets a chance to go on.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            self._stirred.clear()
            if not self._everybody_waits():
                continue
            tick_at = await self._next_tick()
            due_at = await self._next_due()
            # A tick that has come and was not started is tried again: the store did not take it.
            if due_at is None or tick_at <= self._clock() or self._stirred.is_set() or not self._everybody_waits():
                continue
            if self.before_time is not None and await self.before_time():
                continue
            if due_at == _NEVER:
                self.idle.set()
            elif self._jumps:
                self._clock.advance_to(min(due_at, tick_at))

    def _everybody_waits(self) -> bool:
        kinds = {watch.worker for watch in self._waiting}
        return len(kinds) == 2

    async def _next_tick(self) -> int:
        """Start the runs of the ticks that have come, and return when the next one comes; `_NEVER` if none does."""
        if self.scheduler is None:
            return _NEVER
        await self.scheduler.look()
        next_at = self.scheduler.next_at
        return _NEVER if next_at is None else next_at

    async def _next_due(self) -> int | None:
        """Return when the next run is due, `_NEVER` if none will be; None while there is something to do."""
        serves, now, due_at = self._serves(), self._clock(), _NEVER
        if await self._store.list(RunFilter(status=Status.RUNNING, limit=1)):
            return None
        for status in (Status.QUEUED, Status.WAITING):
            for row in await self._store.list(RunFilter(status=status, limit=_ALL)):
                if not _claimable(row, serves):
                    continue
                if row.inbox_seq > row.seen_seq or (row.due_at is not None and row.due_at <= now):
                    return None
                due_at = min(due_at, row.due_at if row.due_at is not None else _NEVER)
        return due_at


_NEVER: Final = 2**63


def _claimable(row: RunRow, serves: Mapping[str, str]) -> bool:
    code = serves.get(row.name)
    return code is not None and not row.damage and admits(row.refused, code)


class _TimedWatch:
    """A bell of the inner store that the clock rings too."""

    def __init__(self, timed: TimedStore, bell: Watch, *, worker: bool) -> None:
        self._timed, self._bell, self.worker = timed, bell, worker
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake whoever waits."""
        self._rung.set()

    async def wait(self, timeout_seconds: float | None = None) -> Page | None:
        rung = asyncio.ensure_future(self._rung.wait())
        inner = asyncio.ensure_future(self._bell.wait(timeout_seconds))
        self._timed.waits(self)
        try:
            await asyncio.wait({inner, rung}, return_when=asyncio.FIRST_COMPLETED)
            self._rung.clear()
            return inner.result() if inner.done() else None
        finally:
            self._timed.left(self)
            inner.cancel()
            rung.cancel()

    def close(self) -> None:
        self._timed.forget(self)
        self._bell.close()
