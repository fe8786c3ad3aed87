"""A runtime for tests, on a store in memory whose clock jumps to what is due."""

from typing import Any, cast

from holdfast.core.errors import InvalidInput, StoreRefused
from holdfast.engine.app import App
from holdfast.engine.log import Log
from holdfast.engine.surroundings import Surroundings
from holdfast.runtime import Opening, Runtime
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import MovingClock
from holdfast.testing.timing import TimedStore

_FILE = "sqlite:///"


class ClockedRuntime(Runtime):
    """A runtime whose time is `clock`: retries, delays and timers are due when it says so."""

    def __init__(
        self, store: Store, app: App, clock: MovingClock, *, jumps: bool, concurrency: int = 64, log: Log | None = None
    ) -> None:
        self._clock, self._log = clock, log
        self._timed = TimedStore(store, clock, app.serves, jumps=jumps)
        super().__init__(cast(Store, self._timed), app, concurrency=concurrency)

    @property
    def clock(self) -> MovingClock:
        """The time of the store and of all that is due in it."""
        return self._clock

    def _surroundings(self, deps: Any) -> Surroundings:
        around = super()._surroundings(deps)
        # What is waited for in the process passes in real time; what parks, by the clock.
        around.patience_seconds = 0.0
        if self._log is not None:
            around.log = self._log
        return around

    async def _start_working(self, only: Any) -> None:
        self._timed.begin()
        await super()._start_working(only)
        if self._scheduler is not None:
            # Known to the store from the first moment, so that what it can have missed does not depend on who is quick.
            await self._scheduler.look()
            self._timed.scheduler = self._scheduler


class ClockedOpening(Opening):
    """A runtime for tests about to be opened: await it, or use it in `async with` or in a plain `with`."""

    def __init__(
        self, store: str | Store | None, app: App | None, clock: MovingClock | None, *, jumps: bool, concurrency: int
    ) -> None:
        super().__init__(store, app, work=True, concurrency=concurrency)
        self._clock, self._jumps = clock, jumps

    async def _open(self) -> ClockedRuntime:
        store, clock = await _clocked(self._store, self._clock)
        runtime = ClockedRuntime(store, self._app or App(), clock, jumps=self._jumps, concurrency=self._concurrency)
        self._runtime = runtime
        try:
            await runtime._start_working(None)
        except BaseException:
            await runtime.close()
            raise
        return runtime

    async def __aenter__(self) -> ClockedRuntime:
        return await self._open()

    def __enter__(self) -> ClockedRuntime:
        return cast(ClockedRuntime, super().__enter__())


async def _clocked(store: str | Store | None, clock: MovingClock | None) -> tuple[Store, MovingClock]:
    """Return a store with the clock that it goes by."""
    if store is None or isinstance(store, str):
        clock = clock or MovingClock()
        if store is None or store == "memory://":
            return MemoryStore(clock=clock), clock
        if store.startswith(_FILE) and len(store) > len(_FILE):
            return await SqliteStore.open(store.removeprefix(_FILE), clock=clock), clock
        raise StoreRefused(f"a store whose clock moves is memory:// or sqlite:///file.db, not {store!r}")
    own: object = store.now
    clock = clock or (own if isinstance(own, MovingClock) else None)
    if clock is None:
        raise InvalidInput("give clock= too: the MovingClock that the store was opened with")
    return store, clock


def open(
    app: App | None = None,
    *,
    store: str | Store | None = None,
    clock: MovingClock | None = None,
    jumps: bool = True,
    concurrency: int = 64,
) -> ClockedOpening:
    """Open a runtime for a test, on a store in memory; awaitable, and a context manager of both kinds.

    Its time is `runtime.clock`. While a run is waited for and nothing else is to be done, the clock jumps to what is
    due next: a retry in three days is tried at once. With `jumps=False` it moves only by `runtime.clock.advance`.
    """
    return ClockedOpening(store, app, clock, jumps=jumps, concurrency=concurrency)
