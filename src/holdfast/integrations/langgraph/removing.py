"""Removing and copying of threads: nothing goes that a checkpoint which stays is made of."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.core.errors import Conflict
from holdfast.integrations.langgraph.reading import Found, Reader
from holdfast.integrations.langgraph.row import (
    CHECKPOINTS,
    VALUES,
    WRITES,
    Place,
    place_of_key,
    read_checkpoint,
    read_value,
    run_shelf,
    thread_key,
    thread_of_key,
    thread_shelf,
)
from holdfast.integrations.langgraph.writing import Writer
from holdfast.store.shelf import Arrangement

_TRIES: Final = 20


class Survey(NamedTuple):
    """All that a thread's shelf holds, without the bodies."""

    size: int
    found: Sequence[Found]
    bases: Mapping[bytes, bytes | None]
    """What each stored value builds on."""


class Remover:
    """Removes from the threads of one tenant, and copies them."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader, self._writer = reader, writer
        self._shelves, self._tenant = reader.shelves, reader.tenant

    async def delete_thread(self, thread: str) -> None:
        """Remove a thread, and what runs' shelves say of it."""
        runs = await self._runs(thread)
        await self._shelves.discard(self._tenant, thread_shelf(thread))
        self._writer.forget(thread)
        for run in runs:
            await self._shelves.arrange(self._tenant, run_shelf(run), Arrangement(drop=[thread_key(thread)]))

    async def delete_run(self, run: str) -> None:
        """Remove all that a run of LangGraph's wrote, in every thread and namespace."""
        shelf = run_shelf(run)
        threads = [thread_of_key(item.key) async for item in self._reader.all(shelf, b"")]
        for thread in threads:
            await self._remove(thread, lambda survey: [found for found in survey.found if found.row.run == run])
            self._writer.forget(thread)
        await self._shelves.discard(self._tenant, shelf)

    async def copy_thread(self, thread: str, target: str) -> None:
        """Copy a thread with its whole past.

        Raises:
            Conflict: there is a thread of that name, and it is another.
        """
        for run in await self._runs(thread):
            await self._writer.index(run, target)
        if not await self._shelves.copy(self._tenant, thread_shelf(thread), thread_shelf(target)):
            raise Conflict(f"there is a thread {target!r} already", hint="Name another one, or delete that first.")

    async def keep_latest(self, thread: str) -> None:
        """Remove all but the latest checkpoint of each namespace, and what that is made of."""
        await self._remove(thread, _older)

    async def _runs(self, thread: str) -> set[str]:
        items = self._reader.all(thread_shelf(thread), CHECKPOINTS)
        return {run async for item in items if (run := read_checkpoint(item).run) is not None}

    async def _remove(self, thread: str, doomed: Callable[[Survey], Sequence[Found]]) -> None:
        for _ in range(_TRIES):
            survey = await self._survey(thread)
            gone = doomed(survey)
            if not gone:
                return
            drop = [key for found in gone for key in _keys(found)] + _unused(survey, gone)
            change = Arrangement(count=survey.size, drop=drop)
            if await self._shelves.arrange(self._tenant, thread_shelf(thread), change):
                return
        raise Conflict(f"thread {thread!r} is written all the time", hint="Nothing was removed. Try when it rests.")

    async def _survey(self, thread: str) -> Survey:
        shelf = thread_shelf(thread)
        found: list[Found] = []
        async for item in self._reader.all(shelf, CHECKPOINTS):
            place, checkpoint = place_of_key(thread, item.key)
            found.append(Found(place, checkpoint, read_checkpoint(item)))
        bases = {item.key: read_value(item).base async for item in self._reader.all(shelf, VALUES)}
        writes = [item.key async for item in self._reader.all(shelf, WRITES)]
        return Survey(len(found) + len(bases) + len(writes), found, bases)


def _keys(found: Found) -> tuple[bytes, bytes]:
    return found.place.key(found.checkpoint), found.place.writes(found.checkpoint)


def _unused(survey: Survey, gone: Sequence[Found]) -> list[bytes]:
    """Return the values that no checkpoint is made of, once these are gone."""
    removed = {(found.place, found.checkpoint) for found in gone}
    used: set[bytes] = set()
    for found in survey.found:
        if (found.place, found.checkpoint) in removed:
            continue
        for stored in found.row.stored.values():
            # All that it builds on, also what only an earlier value took from there: a value that is there is whole,
            # which whoever has one at hand and builds on it relies on.
            key: bytes | None = stored
            while key is not None and key not in used:
                used.add(key)
                key = survey.bases.get(key)
    return [key for key in survey.bases if key not in used]


def _older(survey: Survey) -> list[Found]:
    """Return all but the latest of each namespace, and the parents that a latest one is still counted up from."""
    by_place: dict[Place, dict[str, Found]] = {}
    for found in survey.found:
        by_place.setdefault(found.place, {})[found.checkpoint] = found
    kept: set[tuple[Place, str]] = set()
    for place, checkpoints in by_place.items():
        each: Found | None = checkpoints[max(checkpoints)]
        open_channels = set(each.row.deltas) if each is not None else set()
        while each is not None:
            kept.add((place, each.checkpoint))
            open_channels -= {*each.row.stored, *each.row.inline}
            each = checkpoints.get(each.row.parent or "") if open_channels else None
    return [found for found in survey.found if (found.place, found.checkpoint) not in kept]
