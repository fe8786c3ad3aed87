"""Starts the runs of an app's schedules; every worker does, and the keys of runs keep them from doing it twice."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any, Final, Protocol

from holdfast.core import limits
from holdfast.core.errors import Damaged
from holdfast.core.ids import SCHEDULE_NAME, TENANT, RunId, born_at
from holdfast.core.stepkey import join_key
from holdfast.engine.function import Durable, durable
from holdfast.engine.schedule import Schedule, as_instant, as_micros, before, due, is_held_back, written
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow

_LOOK_SECONDS: Final = 0.25
"""The longest time between two looks at the store's clock, which may be set or stand still."""
_BACK_OFF_SECONDS: Final = 1.0
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class Begin(Protocol):
    """Starts a run, or finds the one that the key belongs to."""

    async def __call__(
        self, what: Durable[Any, ...], named: dict[str, Any], /, *, key: tuple[str, ...],
        labels: Mapping[str, str],
    ) -> RunId: ...  # fmt: skip


@durable(name=SCHEDULE_NAME)
async def first_seen(ctx: Any, name: str, cron: str, tz: str) -> None:
    """Be there: this run's creation says since when a store knows a schedule, and so which ticks it can have missed."""


@dataclass(slots=True)
class _Watch:
    """How far a schedule was looked after in this process."""

    schedule: Schedule
    since: datetime | None = None
    """Every tick up to here is dealt with; None before the first look."""
    next: datetime | None = None
    last: RunId | None = None
    """The run of the latest tick that is known to have one."""


class Scheduler:
    """Looks after the schedules of one app until it is stopped."""

    def __init__(self, store: Store, schedules: Sequence[Schedule], begin: Begin, log: Any) -> None:
        self._store, self._begin, self._log = store, begin, log
        self._watches = [_Watch(schedule) for schedule in schedules]
        self._task: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._work(), name="holdfast scheduler")

    async def stop(self) -> None:
        """Start nothing more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _work(self) -> None:
        while True:
            sound = await self.look()
            await asyncio.sleep(self._pause_seconds() if sound else _BACK_OFF_SECONDS)

    async def look(self) -> bool:
        """Start what is due now; False when the store kept a schedule from its ticks."""
        async with self._looking:
            return all([await self._attend(watch) for watch in self._watches])

    @property
    def next_at(self) -> int | None:
        """When the next tick comes, in µs of the store's clock; None when none ever does."""
        return min((as_micros(watch.next) for watch in self._watches if watch.next not in (None, _NEVER)), default=None)

    def _pause_seconds(self) -> float:
        """Return how long to wait for the next tick, by the store's clock."""
        first = min((watch.next or _NEVER for watch in self._watches), default=_NEVER)
        left = (first - as_instant(self._store.now())).total_seconds()
        return min(_LOOK_SECONDS, max(left, 0.0))

    async def _attend(self, watch: _Watch) -> bool:
        """Look after one schedule; what keeps it from its ticks must not keep the others from theirs."""
        now = as_instant(self._store.now())
        if watch.next is not None and now < watch.next:
            return True
        try:
            await self._catch_up(watch, now)
        except Exception as error:
            self._log.error("a schedule waits for the store", schedule=watch.schedule.name, error=repr(error))
            return False
        return True

    async def _catch_up(self, watch: _Watch, now: datetime) -> None:
        schedule = watch.schedule
        if watch.since is None:
            ticks = await self._unstarted(watch, now)
        else:
            ticks = due(schedule.cron, schedule.missed, since=watch.since, now=now)
        for tick in ticks:
            await self._start(watch, tick)
        watch.since, watch.next = now, next(schedule.cron.after(now), _NEVER)

    # The first look: what happened while nobody was here

    async def _unstarted(self, watch: _Watch, now: datetime) -> list[datetime]:
        """Return the ticks to start of those since the last one that has a run."""
        schedule = watch.schedule
        since = await self._first_seen(schedule)
        ticks = due(schedule.cron, schedule.missed, since=since, now=now)
        for place in range(len(ticks), 0, -1):
            row = await self._run_of(schedule, ticks[place - 1])
            if row is not None:
                watch.last = row.run
                return ticks[place:]
        if schedule.overlap == "skip":
            watch.last = await self._last_run(schedule, since, before(ticks[0]) if ticks else now)
        return ticks

    async def _first_seen(self, schedule: Schedule) -> datetime:
        named = {"name": schedule.name, "cron": schedule.cron.expression, "tz": schedule.tz}
        run = await self._begin(first_seen, named, key=schedule.key, labels={"schedule": schedule.name})
        row = await self._store.get(run)
        # Of a run that was deleted the key is left, and with it the id, which tells the time too.
        return as_instant(row.created_at if row is not None and not row.damage else born_at(run))

    async def _last_run(self, schedule: Schedule, since: datetime, until: datetime) -> RunId | None:
        earlier = takewhile(lambda tick: tick > since, schedule.cron.until(until))
        ticks = list(islice(earlier, limits.MISSED_TICKS))
        for tick in ticks:
            row = await self._run_of(schedule, tick)
            if row is not None:
                return row.run
        if len(ticks) < limits.MISSED_TICKS:
            return None
        # It may be open for longer than that. Labels have no index, so this is the last resort.
        which = RunFilter(name=schedule.function.name, labels={"schedule": schedule.name}, limit=1)
        return next((row.run for row in await self._store.list(which)), None)

    # A tick

    async def _run_of(self, schedule: Schedule, tick: datetime) -> RunRow | None:
        try:
            return await self._store.find(TENANT, join_key(schedule.tick_key(tick)))
        except Damaged:
            return None  # its key is known, so it is not started again; more cannot be told

    async def _start(self, watch: _Watch, tick: datetime) -> None:
        schedule = watch.schedule
        previous = await self._previous(watch, tick) if schedule.overlap == "skip" else None
        if previous is not None and is_held_back(tick, previous):
            about = {"schedule": schedule.name, "tick": written(tick), "open": previous.run}
            self._log.info("a tick is left out: the run of the one before was open", **about)
            return
        watch.last = await self._begin(
            schedule.function, schedule.arguments(tick), key=schedule.tick_key(tick), labels=schedule.labels(tick)
        )

    async def _previous(self, watch: _Watch, tick: datetime) -> RunRow | None:
        """Return the run of the tick before, which another worker may have started, or else the last that is known."""
        earlier = next(watch.schedule.cron.until(before(tick)), None)
        row = await self._run_of(watch.schedule, earlier) if earlier is not None else None
        if row is not None or watch.last is None:
            return row
        return await self._store.get(watch.last)
