"""Deleting ended runs, and sweeping the blobs that nothing names any more."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from holdfast.core.ids import RunId, id_bytes
from holdfast.store.keeping import why_kept
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.lookup import Asked, find_run
from holdfast.store.value import Deleted, Kept, RunRow

STRETCH: Final = 500
"""How many blobs one look of a sweep takes in, and so how many it removes at once."""
_OPEN_CHILD: Final = """
    SELECT 1 FROM hf_runs WHERE parent = ? AND status NOT IN ('completed', 'failed', 'cancelled') LIMIT 1
"""
_OF_RUN: Final = (
    "DELETE FROM hf_posts WHERE run = ?",
    "DELETE FROM hf_chunks WHERE run = ?",
    "DELETE FROM hf_budgets WHERE run = ?",
    "DELETE FROM hf_tickets WHERE run = ?",
    "DELETE FROM hf_runs WHERE number = ?",
)
# A fork's journal begins with entries of its base. Of a run that is gone they stay while a fork has them.
_UNSHARED: Final = """
    run = ?1 AND seq > coalesce((SELECT max(up_to) FROM hf_lineage WHERE owner = ?1), 0)
       AND NOT EXISTS (SELECT 1 FROM hf_runs WHERE number = ?1)
"""
_JOURNAL: Final = (f"DELETE FROM hf_blob_refs WHERE {_UNSHARED}", f"DELETE FROM hf_entries WHERE {_UNSHARED}")
SEEN: Final = "SELECT max(id) FROM (SELECT id FROM hf_blobs WHERE id > ? ORDER BY id LIMIT ?)"
STALE: Final = """
    SELECT id FROM (SELECT id, touched_at FROM hf_blobs WHERE id > ?1 ORDER BY id LIMIT ?2) b
     WHERE touched_at < ?3 AND NOT EXISTS (SELECT 1 FROM hf_blob_refs r WHERE r.blob = b.id)
"""
_SWEEP: Final = """
    DELETE FROM hf_blobs WHERE id IN (SELECT value FROM json_each(?1)) AND touched_at < ?2
       AND NOT EXISTS (SELECT 1 FROM hf_blob_refs r WHERE r.blob = hf_blobs.id)
"""


def look(asked: Asked, runs: Sequence[RunId]) -> tuple[list[RunRow], dict[RunId, Kept]]:
    """Return which of these runs may go, and why the others may not."""
    rows = [row for run in dict.fromkeys(runs) if (row := find_run(asked, run)) is not None]
    kept: dict[RunId, Kept] = {}
    for row in rows:
        above = find_run(asked, row.parent) if row.parent is not None else None
        parent = above is not None and (bool(above.damage) or not above.status.terminal)
        why = why_kept(row, parent=parent, children=bool(fetch(asked, _OPEN_CHILD, (id_bytes(row.run),))))
        if why is not None:
            kept[row.run] = why
    return [row for row in rows if row.run not in kept], kept


def delete(db: Db, runs: Sequence[RunId]) -> Deleted:
    """Remove those that may go, with all that is theirs but their keys."""
    rows, kept = look(db.cursor, runs)
    for row in rows:
        bases = db.rows("DELETE FROM hf_lineage WHERE run = ? RETURNING owner", (row.number,))
        for statement in _OF_RUN:
            db.rows(statement, (row.number,))
        for number in {row.number, *(owner for [owner] in bases)}:
            for statement in _JOURNAL:
                db.rows(statement, (number,))
    return Deleted([row.run for row in rows], kept)


def sweep(db: Db, blobs: Sequence[Any], before: int) -> int:
    """Remove blobs that are still unnamed and untouched."""
    return db.changed(_SWEEP, (msgspec.json.encode(list(blobs)).decode(), before))
