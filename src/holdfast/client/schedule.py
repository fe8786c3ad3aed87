"""The schedules that workers look after, as they said themselves."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.client.protocol import ScheduleInfo
from holdfast.core.cron import Cron, zone_of
from holdfast.core.errors import InvalidInput
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, WorkerRow


class Declared(msgspec.Struct, frozen=True):
    """A schedule as a worker declared it."""

    name: str
    function: str
    cron: str
    tz: str
    missed: str
    overlap: str


def declared_by(row: WorkerRow) -> Sequence[Declared]:
    """Return what a worker looks after; what cannot be read was not said."""
    try:
        return msgspec.json.decode(row.about.get("schedules", "[]"), type=list[Declared])
    except msgspec.DecodeError:
        return []


async def list_schedules(store: Store, now: datetime) -> Sequence[ScheduleInfo]:
    """Return every schedule that a worker looks after, by name, with its next tick and the last that has a run."""
    workers: dict[Declared, list[str]] = {}
    for row in await store.workers():
        for declared in declared_by(row):
            workers.setdefault(declared, []).append(row.worker)
    order = sorted(workers, key=lambda declared: (declared.name, declared.cron, declared.tz))
    return [await _info(store, declared, workers[declared], now) for declared in order]


async def _info(store: Store, declared: Declared, workers: Sequence[str], now: datetime) -> ScheduleInfo:
    which = RunFilter(name=declared.function, labels={"schedule": declared.name}, limit=1)
    last: Any = next(iter(await store.list(which)), None)
    return ScheduleInfo(
        **msgspec.structs.asdict(declared),
        next_at=_next(declared, now),
        last_at=_tick(last.labels) if last is not None else None,
        run=last.run if last is not None else None,
        workers=workers,
    )


def _next(declared: Declared, now: datetime) -> datetime | None:
    try:
        return next(Cron(declared.cron, zone_of(declared.tz)).after(now), None)
    except InvalidInput:
        return None  # a zone that this machine does not know


def _tick(labels: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(labels["tick"])
    except (KeyError, ValueError):
        return None
