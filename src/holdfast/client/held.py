"""Which of a run's descendants holds it up: one that only a person or other code can help, while no other goes on."""

from collections.abc import AsyncIterator, Callable
from typing import Final

from holdfast.core.ids import RunId
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow

_MANY: Final = 100


async def held_by(store: Store, row: RunRow, is_stuck: Callable[[RunRow], bool]) -> RunRow | None:
    """Return a descendant that is stuck, if the run waits for a child and nothing below it can go on by itself."""
    if not _rests_for_child(row):
        return None
    held: RunRow | None = None
    above = [row.run]
    while above:
        async for child in _children(store, above.pop()):
            if child.status.terminal:
                continue
            if is_stuck(child):
                held = child
            elif _rests_for_child(child):
                above.append(child.run)
            else:
                return None
    return held


async def left_by(store: Store, run: RunId, worker: str | None) -> list[RunRow]:
    """Return the children that a run which has ended leaves to this worker: asked to end, and no other worker's."""
    children = [child async for child in _children(store, run)]
    return [child for child in children if not child.status.terminal and child.owner in (None, worker)]


def _rests_for_child(row: RunRow) -> bool:
    rests = row.status is Status.WAITING and row.owner is None and row.inbox_seq <= row.seen_seq
    return rests and row.due_at is None and row.reason.startswith("child")


async def _children(store: Store, parent: RunId) -> AsyncIterator[RunRow]:
    before: RunId | None = None
    while rows := await store.list(RunFilter(parent=parent, before=before, limit=_MANY)):
        for row in rows:
            yield row
        before = rows[-1].run
        if len(rows) < _MANY:
            return
