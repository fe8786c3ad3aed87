"""One life of a process that serves every act: it starts or takes up its cast, sees it to its end, and tells."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import holdfast as hf
from holdfast import events as e
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.status import Status
from holdfast.engine.surroundings import Surroundings
from holdfast.runtime import Runtime
from holdfast.store.protocol import Store, Watch
from holdfast.store.value import RunFilter, RunRow
from tests.chaos import twins
from tests.chaos.acts import CODES, PAID, SENT, arguments
from tests.chaos.homes import home, locks
from tests.chaos.looking import Point, look_at_points
from tests.chaos.program import Story, digest, enter, watch
from tests.chaos.world import FLIGHT_MICROS, World, read_ledger

_LOOK_SECONDS: Final = 1.0
_ALL: Final = 1000
HASTY: Final = 0.01
"""In seconds: too little to wait for anything but the next attempt at a step; all else parks the run at once."""
PATIENT: Final = 1.0
"""What a runtime has by itself."""
TOLD: Final = {"entry", "ack", "told", "started"}
"""Lines of a ledger that only say what somebody was told: they bind whoever comes after, and change nothing."""
Bells = dict[RunId | None, tuple[Watch, "asyncio.Future[Any]"]]


class Forgotten(AssertionError):
    """A run rests and waits for what it was given before."""


@dataclass(frozen=True, slots=True)
class Played:
    """A store at its end: every run with its place in its family, and what should not be there."""

    stories: tuple[Story, ...]
    """Of what was started from outside by its key, of children by their parent's place and the step that spawned."""
    bookings: tuple[str, ...]
    findings: tuple[str, ...]
    left: tuple[str, ...]


async def play(
    place: str, ledger: str, cast: tuple[str, ...], twin: str = "", patience_seconds: float = HASTY
) -> Played:
    """Start or take up this cast in the store at `place`, be whoever it waits for, and tell of it at its end."""
    world = enter(ledger)
    twins.apply(twin, place)
    store = await home(place).open(world.now, **twins.options(twin))
    runtime = _Patient(store, hf.App(*CODES.values(), version="1"), concurrency=64)
    runtime.patience_seconds = patience_seconds
    async with asyncio.TaskGroup() as watching:
        await runtime._start_working(None)
        watchers = []
        for name in cast:
            act = name.partition("-")[0]
            run = await runtime.start(CODES[act], *arguments(act, name), key=name)
            world.note("started", order=name, run=run.id)
            watchers.append(watching.create_task(watch(runtime, name, run.id)))
        await _Outside(runtime, store, world).see_through()
        for watcher in watchers:
            watcher.cancel()
        stories, orphans = await _stories(runtime, store)
        findings = [f"{finding.run} {finding.seq}: {finding.what}" async for finding in runtime.client.verify()]
        await runtime.close()
    world.close()
    bookings, left = home(place).look()
    forgotten = [f"the lock {lock}" for lock in locks(store.lock_folder)]
    return Played(stories, tuple(bookings), tuple(findings), (*left, *forgotten, *orphans))


async def trace(
    place: str, ledger: str, cast: tuple[str, ...], twin: str = "", patience_seconds: float = HASTY
) -> tuple[Played, tuple[Point, ...]]:
    """Play, and tell of each point what is committed there, and how much was done outside of the store."""
    points = look_at_points(place, lambda: sum(line["what"] not in TOLD for line in read_ledger(ledger)))
    return await play(place, ledger, cast, twin, patience_seconds), tuple(points)


class _Patient(Runtime):
    """A runtime that keeps a run whose wait is over soon for as long as it is told; no longer, and it parks at once."""

    patience_seconds = HASTY

    def _surroundings(self, deps: Any) -> Surroundings:
        around = super()._surroundings(deps)
        around.patience_seconds = self.patience_seconds
        return around


class _Outside:
    """Everybody whom the runs wait for: the clock, and one person."""

    def __init__(self, runtime: Runtime, store: Store, world: World) -> None:
        self._runtime, self._store, self._world = runtime, store, world
        self._bells: Bells = {}
        self._helped: set[tuple[object, ...]] = set()

    async def see_through(self) -> None:
        """Return when every run has ended; when all that have not rest, be what they wait for."""
        try:
            while True:
                rows = [row for row in await self._store.list(RunFilter(limit=_ALL)) if not _is_over(row)]
                if self._listen([row.run for row in rows]):
                    continue  # listen before looking
                if not rows:
                    return
                if all(self._rests(row) for row in rows):
                    await self._help(rows)
                await self._heard()
        finally:
            for bell, waiting in self._bells.values():
                waiting.cancel()
                bell.close()

    def _listen(self, runs: Sequence[RunId]) -> bool:
        """Listen to these runs and to no other; say whether there are some that were not listened to."""
        for gone in [run for run in self._bells if run is not None and run not in runs]:
            bell, waiting = self._bells.pop(gone)
            waiting.cancel()
            bell.close()
        fresh = [run for run in (None, *runs) if run not in self._bells]
        for run in fresh:
            bell = self._store.watch(run, entries=False)
            self._bells[run] = bell, asyncio.ensure_future(bell.wait())
        return bool(fresh)

    async def _heard(self) -> None:
        waits = [waiting for _, waiting in self._bells.values()]
        await asyncio.wait(waits, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for run, (bell, waiting) in self._bells.items():
            if waiting.done():
                self._bells[run] = bell, asyncio.ensure_future(bell.wait())

    def _rests(self, row: RunRow) -> bool:
        posted = row.inbox_seq > row.seen_seq and row.status is not Status.PAUSED
        return row.owner is None and not posted and (row.due_at is None or row.due_at > self._world.now())

    async def _help(self, rows: Sequence[RunRow]) -> None:
        """Do what one of them waits for; every word may have been said before, by a process that died of it."""
        helped = [row for row in rows if await self._is_helped(row)]
        for row in helped:
            state = (row.run, row.status, row.last_seq, row.inbox_seq)
            if state in self._helped:
                raise Forgotten(f"{row.name} rests as {row.reason}, and was given what it waits for")
            self._helped.add(state)
        if not helped:
            dues = [row.due_at for row in rows if row.due_at is not None]
            if not dues:
                raise Forgotten(f"nothing will ever move {', '.join(f'{row.name} ({row.reason})' for row in rows)}")
            self._world.wait_until(max(dues))
            # Voiding nobody changes nothing and rings the worker's bell, which does not know that time went on.
            await self._store.void(WorkerId("nobody"), why="the time has come")

    async def _is_helped(self, row: RunRow) -> bool:
        match row.name:
            case "fulfil" if row.due_at is None:
                return await self._sign(row)
            case "visit":
                return await self._attend(row)
            case "stay" if row.parent is None:
                return await self._runtime.client.cancel(row.run, reason="enough", by="ann")
            case _:
                return False

    async def _sign(self, row: RunRow) -> bool:
        self._world.wait_until(self._world.now() + FLIGHT_MICROS + 1)
        value: Any = f"signed {row.key}" if self._world.happened("sign", str(row.key)) else hf.NOT_DONE
        with contextlib.suppress(hf.Conflict, hf.NotFound):
            await self._runtime.client.resolve(row.run, "0/sign#1", value, by="ann")
        return True

    async def _attend(self, row: RunRow) -> bool:
        run = await self._runtime.get(row.run)
        if row.status is Status.PAUSED:
            await run.signal(PAID, 7, key="p", by="ann")
            return await run.resume(by="ann")
        rests = [event async for event in run.events(follow=False) if isinstance(event, e.RunParked)]
        waits = {wait.step for wait in rests[-1].waits}
        if "0/receive#1" in waits:
            if not any(rest.reason == "paused" for rest in rests):
                return await run.pause(by="ann")
            return await run.signal(PAID, 7, key="p", by="ann")
        if "0/ask#1" in waits:
            (question,) = await run.questions()
            with contextlib.suppress(hf.Conflict):
                await self._runtime.answer(question, True, args={"to": "work"}, by="ann")
            return True
        if "0/gather#1.2/receive#1" in waits and row.due_at is None:
            return await run.signal(SENT, "by mail", key="s")
        return False


def _is_over(row: RunRow) -> bool:
    return bool(row.damage) or row.status.terminal or row.status is Status.QUARANTINED


async def _stories(runtime: Runtime, store: Store) -> tuple[tuple[Story, ...], list[str]]:
    """Return every run by its place in its family, and those that have none."""
    rows = {row.run: row for row in await store.list(RunFilter(limit=_ALL))}
    stories: list[Story] = []
    open_ = [(str(row.key), row.run) for row in rows.values() if row.parent is None]
    while open_:
        place, run = open_.pop()
        row = rows.pop(run, None)
        if row is None:
            continue
        info = await runtime.client.info(run)
        events = tuple([event async for event in runtime.client.events(run, follow=False)])
        digests = tuple(digest(event) for event in events)
        stories.append(Story(place, run, str(info.status), info.reason, info.result, events, digests))
        open_ += [
            (f"{place}/{event.step}", RunId(event.child)) for event in events if isinstance(event, e.ChildSpawned)
        ]
    return tuple(stories), [f"a run of {row.name} that nobody spawned" for row in rows.values()]
