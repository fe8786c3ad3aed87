"""Deleting what is old: which runs may go, in batches, each in its archive before it is gone from the store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from holdfast.client.archive import export_run
from holdfast.client.archiving import ArchiveFile
from holdfast.client.protocol import Collected, Retention
from holdfast.core import limits
from holdfast.core.errors import Conflict, Damaged, InvalidInput, NotFound, UnknownEntry
from holdfast.core.ids import SCHEDULE_NAME, RunId, checked_text
from holdfast.core.status import TERMINAL
from holdfast.store.protocol import Store
from holdfast.store.value import Kept, RunFilter, RunRow

_PAGE: Final = 200
_BATCH_RUNS: Final = 50
_BATCH_ENTRIES: Final = 5000
"""A batch ends at whichever comes first; a longer run is a batch of its own."""
_DAY_MICROS: Final = 24 * 3600 * 1_000_000
_WHY: Final[Mapping[Kept, tuple[str, str]]] = {
    Kept.OPEN: ("has not ended", "Cancel it first, or wait until it has ended."),
    Kept.PARENT: (
        "has ended, but the run that spawned it has not, and may ask for its result",
        "Delete it when run {parent} has ended.",
    ),
    Kept.CHILDREN: (
        "has ended, but a run that it spawned has not",
        "Cancel that one first, or wait until it has ended.",
    ),
    Kept.DAMAGED: (
        "is damaged, so nobody knows whether it has ended",
        "`holdfast verify` tells what is wrong with it.",
    ),
}


def refusal(row: RunRow, why: Kept) -> Conflict:
    """Return the error that tells why a run is not deleted, and what to do."""
    what, hint = _WHY[why]
    return Conflict(f"run {row.run} {what}", run=row.run, hint=hint.format(parent=row.parent))


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for what must not be left in the middle; whoever is cancelled meanwhile is so when it is over."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait([working])
        working.exception()  # who is cancelled hears of nothing else
        raise


class Choice:
    """Says of one run after another, the newest first, whether a policy lets it go."""

    def __init__(self, policy: Retention, now: int) -> None:
        self._policy = policy
        self._before = now - int(policy.older_than_seconds * 1e6)
        self._ended: Counter[str] = Counter()
        self._alive: set[str] = set()

    def takes(self, row: RunRow) -> bool:
        """Say whether it may go."""
        policy = self._policy
        ended = row.status.terminal and not row.damage
        old = ended and row.updated_at < self._before
        if row.conversation is not None and not old:
            self._alive.add(row.conversation)
        if not ended or row.status not in policy.statuses:
            return False
        if row.name == SCHEDULE_NAME and policy.name is None:
            return False  # its schedule would not know any more what it has missed
        self._ended[row.name] += 1
        # A conversation's turns go together: the latest of them needs what was said before.
        return old and self._ended[row.name] > policy.keep and row.conversation not in self._alive


class Cleaning:
    """One clean-up of a store."""

    def __init__(
        self, store: Store, tenant: str, policy: Retention, *, tell: Callable[[Collected], None] | None = None
    ) -> None:
        """Check what is asked.

        Raises:
            InvalidInput: the policy is not one.
        """
        if not policy.statuses or not policy.statuses <= TERMINAL:
            raise InvalidInput(f"only runs that have ended are deleted: {', '.join(sorted(TERMINAL))}")
        if isinstance(policy.keep, bool) or not isinstance(policy.keep, int) or policy.keep < 0:
            raise InvalidInput(f"keep= is a whole number of at least 0, not {policy.keep!r}")
        if policy.name is not None:
            checked_text("the name", policy.name, limits.NAME_BYTES)
        self._store, self._tenant, self._policy, self._tell = store, tenant, policy, tell
        self._deleted = self._blobs = 0
        self._kept: Counter[str] = Counter()

    async def run(self, *, archive: str | None = None, dry_run: bool = False) -> Collected:
        """Delete, a batch at a time, what may go; with `dry_run` only count it."""
        file = ArchiveFile(archive) if archive is not None and not dry_run else None
        try:
            async for batch in self._batches():
                await _to_its_end(self._clear(batch, file, dry_run=dry_run))
        finally:
            if file is not None:
                file.close()
        if not dry_run:
            self._blobs = await self._store.sweep(self._store.now() - _DAY_MICROS)
        return self._so_far(file, dry_run)

    def _so_far(self, file: ArchiveFile | None, dry_run: bool) -> Collected:
        kept = dict(sorted(self._kept.items()))
        archive = file.path if file is not None and self._deleted else None
        return Collected(deleted=self._deleted, kept=kept, blobs=self._blobs, archive=archive, dry_run=dry_run)

    async def _batches(self) -> AsyncIterator[Sequence[RunId]]:
        """Yield runs that may go, a few at a time, looking at the newest first; so a child comes before its parent."""
        choice = Choice(self._policy, self._store.now())
        batch: list[RunId] = []
        entries = 0
        before: RunId | None = None
        while rows := await self._store.list(RunFilter(name=self._policy.name, before=before, limit=_PAGE)):
            for row in rows:
                if row.tenant != self._tenant or not choice.takes(row):
                    continue
                batch.append(row.run)
                entries += row.last_seq
                if len(batch) == _BATCH_RUNS or entries >= _BATCH_ENTRIES:
                    yield batch
                    batch, entries = [], 0
            if before is not None and rows[-1].run >= before:
                break  # a row that has lost its id has no place in the order, and would come again and again
            before = rows[-1].run
        if batch:
            yield batch

    async def _clear(self, batch: Sequence[RunId], file: ArchiveFile | None, *, dry_run: bool) -> None:
        """Delete a batch in one transaction; whatever goes is on disk in the archive before."""
        if file is not None:
            would = await self._store.delete(batch, trial=True)
            self._count(would.kept)
            batch = [run for run in would.runs if await self._archived(run, file)]
            await asyncio.to_thread(file.sync)
        deleted = await self._store.delete(batch, trial=dry_run)
        self._deleted += len(deleted.runs)
        self._count(deleted.kept)
        if self._tell is not None:
            self._tell(self._so_far(file, dry_run))

    def _count(self, kept: Mapping[RunId, Kept]) -> None:
        self._kept.update(str(why) for why in kept.values())

    async def _archived(self, run: RunId, file: ArchiveFile) -> bool:
        """Add a run to the archive; False for one that cannot be vouched for, which stays, or that is gone already."""
        try:
            async for line in export_run(self._store, run):
                file.write(line)
        except (Damaged, UnknownEntry, NotFound) as error:
            file.back()
            if not isinstance(error, NotFound):
                self._kept[Kept.DAMAGED if isinstance(error, Damaged) else error.code] += 1
            return False
        file.whole()
        return True
