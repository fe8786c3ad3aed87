"""The checkpoints that their loops left behind: what there is to go on with when a program starts."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct

from holdfast.core.checkpoint import Record, checkpoint_of
from holdfast.core.errors import Damaged, StoreRefused, UnknownEntry
from holdfast.core.ids import CHECKPOINT_NAME
from holdfast.core.status import Status
from holdfast.engine.keeper import Keeper
from holdfast.journal.journal import load
from holdfast.store.value import RunFilter, RunRow

_PAGE: Final = 100


class Interrupted(Struct, frozen=True, kw_only=True):
    """A checkpoint that nobody has open and that has not ended."""

    id: str
    """To open it by."""
    run: str
    attempts: int
    """How often it was opened."""
    labels: Mapping[str, str]
    """What was said of it when it was first opened."""
    host: str | None
    """Where it was open last."""
    pid: int | None
    version: str
    """Which version of the loop had it open."""
    iteration: int | None
    phase: str | None
    messages: int
    """How many were saved."""
    saved_at: datetime | None
    doubts: Mapping[str, str]
    """Effects that may or may not have happened, with why nobody knows."""
    reason: str
    """Why it was left; empty when its process died."""


async def find_interrupted(keeper: Keeper, labels: Mapping[str, str]) -> list[Interrupted]:
    """Return every checkpoint that was left behind, the oldest first; never one that is alive elsewhere."""
    rows = [row for row in await _open(keeper, labels) if row.status is not Status.QUARANTINED]
    owned = await asyncio.gather(*(keeper.has_owner(row) for row in rows if row.owner is not None))
    alive = {row.run for row, lives in zip([row for row in rows if row.owner is not None], owned, strict=True) if lives}
    found = []
    for row in reversed(rows):
        checkpoint = checkpoint_of(row.key)
        if row.run in alive or checkpoint is None:
            continue
        record = Record()
        try:
            await load(keeper.store, row.run, record.take)
        except (Damaged, UnknownEntry, StoreRefused) as error:
            # Whoever opens it is told; one that cannot be read must not hide the others.
            keeper.log.error("a checkpoint cannot be read", checkpoint=checkpoint, run=row.run, error=str(error))
            continue
        if record.state.finished is None:
            found.append(_told(row, checkpoint, record))
    return found


async def _open(keeper: Keeper, labels: Mapping[str, str]) -> list[RunRow]:
    rows: list[RunRow] = []
    while True:
        before = rows[-1].run if rows else None
        which = RunFilter(name=CHECKPOINT_NAME, open=True, labels=labels, before=before, limit=_PAGE)
        page = await keeper.store.list(which)
        rows += page
        if len(page) < _PAGE:
            return rows


def _told(row: RunRow, checkpoint: str, record: Record) -> Interrupted:
    last, opened = record.last, record.opened
    return Interrupted(
        id=checkpoint,
        run=row.run,
        attempts=row.attempt,
        labels=dict(row.labels),
        host=opened.host if opened is not None else None,
        pid=opened.pid if opened is not None else None,
        version=opened.code if opened is not None else "",
        iteration=last.iteration if last is not None else None,
        phase=last.phase if last is not None else None,
        messages=last.count if last is not None else 0,
        saved_at=datetime.fromtimestamp(last.at / 1e6, UTC) if last is not None else None,
        doubts=record.doubts,
        reason=row.reason if row.owner is None and row.status is Status.WAITING else "",
    )
