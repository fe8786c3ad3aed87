"""Who may write a run: claiming, releasing, voiding, and setting aside what cannot be driven."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.ids import Fence, RunId, WorkerId, id_bytes
from holdfast.core.status import Status
from holdfast.store.rows import (
    SELECT,
    fixed_of,
    guard,
    moving_of,
    read_row,
    seal,
)
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.lookup import BY_NUMBER, find_run
from holdfast.store.stalling import TAIL, no_progress
from holdfast.store.value import Lease, RunRow

_DUE: Final = (
    SELECT
    + """
    JOIN json_each(?1) s ON s.key = r.name
    WHERE r.owner IS NULL AND r.due_at IS NOT NULL AND r.due_at <= ?2 AND r.status IN ('queued', 'waiting')
      AND instr(r.refused, '|' || s.value || '|') = 0 AND (r.stalls > 0) = ?4 ORDER BY r.due_at LIMIT ?3
"""
)
_SUSPECTS: Final = 100
"""Among how many the least suspicious is looked for."""
_POSTED: Final = (
    SELECT
    + """
    JOIN json_each(?1) s ON s.key = r.name
    WHERE r.owner IS NULL AND r.inbox_seq > r.seen_seq AND (r.stalls > 0) = ?3
      AND (r.status IN ('queued', 'waiting') AND instr(r.refused, '|' || s.value || '|') = 0
           OR r.control_seq > r.seen_seq AND r.status NOT IN ('completed', 'failed', 'cancelled')) LIMIT ?2
"""
)
_TAIL: Final = """
    SELECT seq, kind, version, at, enc, body, checksum FROM hf_entries WHERE run = ? ORDER BY seq DESC LIMIT ?
"""
_CLAIM: Final = """
    UPDATE hf_runs SET owner = ?, fence = ?, attempt = ?, stalls = ?, guard = ? WHERE number = ? AND owner IS NULL
"""
# What had been asked of it by then has been seen: only what is asked from now on wakes it.
_SET_ASIDE: Final = """
    UPDATE hf_runs SET status = ?1, reason = ?2, due_at = NULL, owner = NULL, stalls = ?3, guard = coalesce(?4, guard),
           seen_seq = max(seen_seq, min(inbox_seq, ?6)),
           inbox_sum = inbox_sum + max(seen_seq, min(inbox_seq, ?6)) - seen_seq
     WHERE number = ?5
"""
ORPHANS: Final = """
    SELECT 1 FROM hf_runs WHERE owner IS NOT NULL AND owner NOT IN (SELECT number FROM hf_workers) LIMIT 1
"""
STRETCH_END: Final = """
    SELECT max(number) FROM (SELECT number FROM hf_runs NOT INDEXED WHERE number > ? ORDER BY number LIMIT ?)
"""
# The rows of a stretch, in their own order, that the index which a claim or a release goes by does not have.
LOST: Final = """
    SELECT number FROM (SELECT * FROM hf_runs NOT INDEXED WHERE number > ?1 ORDER BY number LIMIT ?2) r
     WHERE owner IS NULL AND due_at IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_due
            WHERE i.owner IS NULL AND i.due_at = r.due_at AND i.number = r.number)
        OR owner IS NULL AND inbox_seq > seen_seq AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_posted
            WHERE i.owner IS NULL AND i.inbox_seq > i.seen_seq AND i.number = r.number)
        OR owner IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_owner WHERE i.owner = r.owner AND i.number = r.number)
"""
_INDEXES: Final = ("hf_runs_due", "hf_runs_posted", "hf_runs_owner", "hf_runs_parent")
"""They hold nothing that the rows do not. Those that find a run by id or key are witnesses, and never made again."""
_encode: Final = msgspec.json.encode


def claim(
    db: Db,
    worker: WorkerId,
    serves: Mapping[str, str],
    now: int,
    limit: int,
    runs: Sequence[RunId] | None,
    suspects: bool,
) -> list[Lease]:
    """Lease what is due; a damaged row is set aside instead, and a run that makes no progress is quarantined."""
    owner = db.worker_number(worker)
    if owner is None:
        return []
    served = _encode(dict(serves))
    if runs is None:
        found = _found(db, served.decode(), now, limit, suspicious=0)
        if suspects and len(found) < limit:
            suspicious = _found(db, served.decode(), now, _SUSPECTS, suspicious=1)
            found += sorted(suspicious, key=_suspicion)[:1]
        rows = [_stored(db, values) for values in found]
    else:
        rows = [row for run in runs if (row := find_run(db.cursor, run)) is not None]
    # The row itself is asked: a damaged index may lead to a run that is not due, or that somebody drives.
    rows = [row for row in rows if _may_claim(row, serves, now)][:limit]
    leases = []
    for row in rows:
        if row.damage:
            set_aside(db, row, f"damaged: {row.damage}")
        elif row.is_hopeless:
            tail = [StoredEntry(*values) for values in db.rows(_TAIL, (row.number, TAIL))]
            set_aside(db, row, no_progress(row, tail[::-1]))
        else:
            leases.append(_lease(db, row, worker, owner))
    return leases


def _stored(db: Db, values: tuple[Any, ...]) -> RunRow:
    """Return the row that an index led to; SQLite takes what the index has from there, which may be what is damaged."""
    row = read_row(values)
    return read_row(db.rows(BY_NUMBER, (row.number,))[0]) if row.damage else row


def _found(db: Db, served: str, now: int, limit: int, *, suspicious: int) -> list[tuple[Any, ...]]:
    """Return what may be claimed: what is due, the longest first, and then what a post wakes."""
    found = db.rows(_DUE, (served, now, limit, suspicious))
    if len(found) < limit:
        seen = {values[0] for values in found}
        found += [values for values in db.rows(_POSTED, (served, limit, suspicious)) if values[0] not in seen]
    return found[:limit]


def anything_due(connection: apsw.Connection, serves: Mapping[str, str], now: int, suspects: bool) -> bool:
    """Say whether a claim would find something."""
    served = _encode(dict(serves)).decode()
    return any(
        fetch(connection, _DUE, (served, now, 1, suspicious)) or fetch(connection, _POSTED, (served, 1, suspicious))
        for suspicious in range(1 + suspects)
    )


def _suspicion(values: tuple[Any, ...]) -> int:
    row = read_row(values)
    return 0 if row.damage else row.stalls


def _may_claim(row: RunRow, serves: Mapping[str, str], now: int) -> bool:
    if row.damage:
        return True  # to be set aside
    if row.owner is None and row.is_controlled:
        return row.name in serves
    if row.owner is not None or row.status not in (Status.QUEUED, Status.WAITING):
        return False
    code = serves.get(row.name)
    due = row.due_at is not None and row.due_at <= now
    return code is not None and f"|{code}|" not in row.refused and (due or row.inbox_seq > row.seen_seq)


def _lease(db: Db, row: RunRow, worker: WorkerId, owner: int) -> Lease:
    row = replace(row, owner=worker, fence=Fence(row.fence + 1), attempt=row.attempt + 1, stalls=row.stalls + 1)
    crc = guard(seal(fixed_of(row)), moving_of(row))
    db.rows(_CLAIM, (owner, row.fence, row.attempt, row.stalls, crc, row.number))
    return Lease(row, worker, row.fence, "started" if row.fence == 1 else "claimed")


def set_aside(db: Db, row: RunRow, reason: str) -> None:
    """Take a run out of the way without touching its journal; the others go on."""
    stalls = min(row.stalls, limits.STALLS)
    aside = replace(row, status=Status.QUARANTINED, reason=reason, due_at=None, stalls=stalls)
    # A damaged row keeps its wrong CRC: what is damaged must stay visible.
    crc = None if row.damage else guard(seal(fixed_of(aside)), moving_of(aside))
    db.rows(_SET_ASIDE, (str(aside.status), reason, stalls, crc, row.number, row.inbox_seq))


def reindex(db: Db) -> None:
    """Make the indexes that only say what is to be done again, from the rows."""
    for index in _INDEXES:
        db.rows(f"REINDEX {index}")


def release(db: Db, worker: WorkerId, keep: Sequence[RunId]) -> int:
    """Give up leases without a charge."""
    owner = db.worker_number(worker)
    if owner is None:
        return 0
    kept = {id_bytes(run) for run in keep}
    released = 0
    for values in db.rows(SELECT + "WHERE r.owner = ?", (owner,)):
        row = read_row(values)
        if values[1] in kept:
            continue
        row = replace(row, stalls=max(0, row.stalls - 1))
        crc = values[-3] if row.damage else guard(seal(fixed_of(row)), moving_of(row))
        db.rows(
            "UPDATE hf_runs SET owner = NULL, stalls = ?, guard = ? WHERE number = ?", (row.stalls, crc, row.number)
        )
        released += 1
    return released


def void(db: Db, worker: WorkerId) -> int:
    """Free a dead worker's runs; their due time is still the one they were claimed for."""
    owner = db.worker_number(worker)
    freed = 0
    if owner is not None:
        freed = db.changed("UPDATE hf_runs SET owner = NULL WHERE owner = ?", (owner,))
        db.rows("DELETE FROM hf_workers WHERE number = ?", (owner,))
        db.workers.pop(worker, None)
    return freed + free_orphans(db)


def free_orphans(db: Db, unknown: Sequence[int] = ()) -> int:
    """Free the runs of owners without a row, who are dead: rows go only when their leases are gone.

    `unknown` are the numbers of rows that no longer name a worker.
    """
    for number in unknown:
        db.rows("DELETE FROM hf_workers WHERE number = ?", (number,))
    return db.changed(
        "UPDATE hf_runs SET owner = NULL WHERE owner IS NOT NULL AND owner NOT IN (SELECT number FROM hf_workers)"
    )
