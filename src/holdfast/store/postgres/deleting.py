"""Deleting ended runs on PostgreSQL, and sweeping the blobs that nothing names any more."""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.ids import RunId, id_bytes
from holdfast.store import point
from holdfast.store.keeping import why_kept
from holdfast.store.postgres.arrays import Ids, Integers
from holdfast.store.postgres.connection import Async, transaction
from holdfast.store.postgres.reading import Reader
from holdfast.store.rows import SELECT, read_row
from holdfast.store.value import Deleted, Kept, RunRow

_STRETCH: Final = 500
"""How many blobs one look of a sweep takes in, and so how many it removes at once."""
_OVER: Final = "('completed', 'failed', 'cancelled')"
_ROWS: Final = SELECT + "WHERE r.run = ANY($1) ORDER BY r.number"
_LOCK: Final = _ROWS + " FOR UPDATE OF r"
# A statement of its own: what is looked at beside a row that was waited for is as old as the wait.
_AROUND: Final = f"""
    SELECT r.number, EXISTS (SELECT 1 FROM hf_runs p WHERE p.run = r.parent AND p.status NOT IN {_OVER}),
           EXISTS (SELECT 1 FROM hf_runs c WHERE c.parent = r.run AND c.status NOT IN {_OVER})
      FROM hf_runs r WHERE r.number = ANY($1)
"""
_BASES: Final = "DELETE FROM hf_lineage WHERE run = ANY($1) RETURNING owner"
_OF_RUNS: Final = (
    "DELETE FROM hf_posts WHERE run = ANY($1)",
    "DELETE FROM hf_chunks WHERE run = ANY($1)",
    "DELETE FROM hf_budgets WHERE run = ANY($1)",
    "DELETE FROM hf_tickets WHERE run = ANY($1)",
    "DELETE FROM hf_runs WHERE number = ANY($1)",
)
# A fork's journal begins with entries of its base. Of a run that is gone they stay while a fork has them.
_UNSHARED: Final = """
    USING (SELECT o.number, coalesce((SELECT max(l.up_to) FROM hf_lineage l WHERE l.owner = o.number), 0) AS shared
             FROM unnest($1::bigint[]) AS o(number)
            WHERE NOT EXISTS (SELECT 1 FROM hf_runs r WHERE r.number = o.number)) o
     WHERE e.run = o.number AND e.seq > o.shared
"""
_JOURNALS: Final = (f"DELETE FROM hf_blob_refs e {_UNSHARED}", f"DELETE FROM hf_entries e {_UNSHARED}")
_SEEN: Final = "SELECT max(id) FROM (SELECT id FROM hf_blobs WHERE id > $1 ORDER BY id LIMIT $2) b"
_STALE: Final = """
    SELECT id FROM (SELECT id, touched_at FROM hf_blobs WHERE id > $1 ORDER BY id LIMIT $2) b
     WHERE touched_at < $3 AND NOT EXISTS (SELECT 1 FROM hf_blob_refs r WHERE r.blob = b.id)
"""
# Whoever stores a blob again touches it, and holds it until its entry names it: so one that is held is passed over.
_SWEEP: Final = """
    DELETE FROM hf_blobs WHERE id IN (
        SELECT b.id FROM hf_blobs b WHERE b.id = ANY($1) AND b.touched_at < $2
           AND NOT EXISTS (SELECT 1 FROM hf_blob_refs r WHERE r.blob = b.id) FOR UPDATE SKIP LOCKED
    ) RETURNING id
"""


class Deletion:
    """The deletion of some runs, which may be asked for again when its answer was lost."""

    def __init__(self, reader: Reader, runs: Sequence[RunId], *, trial: bool) -> None:
        self._reader, self._trial = reader, trial
        self._ids = Ids([id_bytes(run) for run in runs])
        self._tried: dict[RunId, None] = {}

    async def __call__(self, connection: Async) -> Deleted:
        """Do it in one transaction: lock the runs by number, look around them, remove."""
        async with transaction(connection):
            found = await self._ask(connection, _ROWS if self._trial else _LOCK, self._ids)
            rows = [read_row(values) for values in found]
            around = await self._ask(connection, _AROUND, Integers([row.number for row in rows]))
            kept = _kept(rows, around)
            gone = {row.run: row.number for row in rows if row.run not in kept}
            if gone and not self._trial:
                point.reached("before")
                await self._remove(connection, list(gone.values()))
                self._tried |= dict.fromkeys(gone)
        if gone and not self._trial:
            point.reached("after")
        # One that an earlier try removed, unheard, is not here any more.
        here = {row.run for row in rows}
        deleted = [run for run in self._tried if run not in here] + list(gone)
        return Deleted(deleted, kept)

    async def _remove(self, connection: Async, numbers: list[int]) -> None:
        bases = await self._ask(connection, _BASES, Integers(numbers))
        owners = sorted({*numbers, *(owner for (owner,) in bases)})
        async with connection.pipeline():
            for statement in _OF_RUNS:
                await connection.execute(self._reader.names(statement), [Integers(numbers)])
            for statement in _JOURNALS:
                await connection.execute(self._reader.names(statement), [Integers(owners)])

    async def _ask(self, connection: Async, statement: str, values: Any) -> list[tuple[Any, ...]]:
        cursor = await connection.execute(self._reader.names(statement), [values], binary=True)
        return await cursor.fetchall()


def _kept(rows: Sequence[RunRow], around: Sequence[tuple[Any, ...]]) -> dict[RunId, Kept]:
    is_open = {number: (parent, children) for number, parent, children in around}
    kept: dict[RunId, Kept] = {}
    for row in rows:
        parent, children = is_open.get(row.number, (False, False))
        if (why := why_kept(row, parent=parent, children=children)) is not None:
            kept[row.run] = why
    return kept


async def sweep(reader: Reader, before: int) -> int:
    """Remove, a stretch at a time, the blobs that nothing names and nobody has touched since."""
    swept = 0
    seen: int | None = 0
    while seen is not None:
        stale = [blob for (blob,) in await reader.rows(_STALE, [seen, _STRETCH, before])]
        [(seen,)] = await reader.rows(_SEEN, [seen, _STRETCH])
        if stale:
            swept += len(await reader.rows(_SWEEP, [Integers(stale), before]))
    return swept
