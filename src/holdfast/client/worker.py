"""The workers of a store, as they said themselves, and the limits that they share."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.client.protocol import LimitInfo, WorkerInfo
from holdfast.client.serving import IsHeld
from holdfast.client.standing import as_time, is_ours
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter

_LOCK: Final = {True: "held", False: "free", None: "unknown"}
_NUMBERS: Final = ("pid", "concurrency")


async def list_workers(store: Store, is_held: IsHeld) -> Sequence[WorkerInfo]:
    """Return every worker that has a row, with the runs that it drives."""
    held = await store.list(RunFilter(status=Status.RUNNING, limit=1000))
    return [
        WorkerInfo(
            id=row.worker,
            started_at=as_time(row.started_at),
            beat_at=as_time(row.beat_at) if row.beat_at is not None else None,
            lock=_LOCK[is_held(row)],
            runs=[run.run for run in held if run.owner == row.worker],
            **_introduction(row.about),
        )
        for row in await store.workers()
    ]


def _introduction(about: Mapping[str, str]) -> dict[str, Any]:
    """Return what a worker said of itself; what cannot be read was not said."""
    try:
        serves = msgspec.json.decode(about.get("serves", "[]"), type=list[str])
    except msgspec.DecodeError:
        serves = []
    pid, concurrency = (int(text) if text.isdecimal() else None for text in map(about.get, _NUMBERS, ("", "")))
    known = {"host": about.get("host"), "version": about.get("version"), "only": "only" in about}
    return {"serves": [name for name in serves if not is_ours(name)], "pid": pid, "concurrency": concurrency, **known}


async def list_limits(store: Store) -> Sequence[LimitInfo]:
    """Return every limit that has a row."""
    return [
        LimitInfo(
            name=row.name, at_once=row.at_once, rate=row.starts, per=row.span / 1e6, held=row.held,
            queued=row.queued,
        )
        for row in await store.limits()
    ]  # fmt: skip
