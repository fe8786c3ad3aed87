"""Who may write a run: claiming, releasing, voiding, and setting aside what cannot be driven."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import apsw
import msgspec
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.ids import Fence, RunId, WorkerId, id_bytes
from holdfast.core.status import Status
from holdfast.core.version import LEFT, admits
from holdfast.store.rows import (
    DUE_AT,
    SELECT,
    fixed_of,
    guard,
    moving_of,
    read_row,
    seal,
)
from holdfast.store.sqlite.conversing import ANY_CALLS, MAY_BE_ASKED, call_turns, close_turn, returned
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.lookup import BY_NUMBER, find_run
from holdfast.store.stalling import TAIL, no_progress
from holdfast.store.value import Lease, RunRow

_WORDS: Final = """
    WITH RECURSIVE words (name, refused) AS (
        SELECT s.value, (SELECT min(r.refused) FROM hf_runs r
                          WHERE r.owner IS NULL AND {waits} AND r.name = s.value)
          FROM json_each(?1) s
        UNION ALL
        SELECT w.name, (SELECT min(r.refused) FROM hf_runs r WHERE r.owner IS NULL AND {waits}
                           AND r.name = w.name AND r.refused > w.refused)
          FROM words w WHERE w.refused IS NOT NULL
    )
    SELECT name, CAST(refused AS BLOB) FROM words WHERE refused IS NOT NULL
"""
"""What the runs of these names that wait for something want of their code, each word once; found without a walk.

As bytes: a word that damage made unreadable must still lead to its run, which is set aside.
"""
_SOUND_WORDS: Final = _WORDS.format(waits="r.due_at IS NOT NULL AND r.stalls <= 0 AND r.behind = 0")
_SUSPECT_WORDS: Final = _WORDS.format(waits="r.due_at IS NOT NULL AND r.stalls > 0 AND r.behind = 0")
_POSTED_WORDS: Final = _WORDS.format(waits="r.inbox_seq > r.seen_seq AND r.behind = 0")
_DUE: Final = (
    SELECT
    + """
    WHERE r.owner IS NULL AND r.due_at IS NOT NULL AND r.name = ?1 AND r.refused = CAST(?2 AS TEXT) AND r.due_at <= ?3
      AND r.behind = 0 AND r.status IN ('queued', 'waiting') AND {} LIMIT ?4
"""
)
_SOUND: Final = _DUE.format("r.stalls <= 0 ORDER BY r.due_at")
_SUSPECT: Final = _DUE.format("r.stalls > 0 ORDER BY r.stalls, r.due_at")
"""Those whose last owner left them without progress, the least suspicious first."""
_POSTED: Final = (
    SELECT
    + """
    WHERE r.owner IS NULL AND r.inbox_seq > r.seen_seq AND r.behind = 0 AND r.name = ?1
      AND r.refused = CAST(?2 AS TEXT) AND r.status IN ('queued', 'waiting') AND (r.stalls > 0) = ?3 LIMIT ?4
"""
)
# What anybody may ask of a run wakes it wherever it rests, and whatever code it wants unless it was left to who has it.
_ASKED: Final = (
    SELECT
    + f"""
    WHERE r.owner IS NULL AND r.control_seq > r.seen_seq AND r.name IN (SELECT value FROM json_each(?1))
      AND r.inbox_seq > r.seen_seq AND (r.stalls > 0) = ?2 AND r.status NOT IN ('completed', 'failed', 'cancelled')
      AND r.refused NOT LIKE '%{LEFT}' AND {MAY_BE_ASKED}
    LIMIT ?3
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
     WHERE owner IS NULL AND due_at IS NOT NULL AND stalls <= 0 AND behind = 0 AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_due
            WHERE i.owner IS NULL AND i.name = r.name AND i.refused = r.refused AND i.due_at = r.due_at
              AND i.stalls <= 0 AND i.behind = 0 AND i.number = r.number)
        OR owner IS NULL AND due_at IS NOT NULL AND stalls > 0 AND behind = 0 AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_suspect
            WHERE i.owner IS NULL AND i.stalls > 0 AND i.behind = 0 AND i.name = r.name AND i.refused = r.refused
              AND i.stalls = r.stalls AND i.due_at = r.due_at
              AND i.number = r.number)
        OR owner IS NULL AND inbox_seq > seen_seq AND behind = 0 AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_posted
            WHERE i.owner IS NULL AND i.inbox_seq > i.seen_seq AND i.behind = 0 AND i.name = r.name
              AND i.refused = r.refused
              AND i.number = r.number)
        OR owner IS NULL AND control_seq > seen_seq AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_asked
            WHERE i.owner IS NULL AND i.control_seq > i.seen_seq AND i.name = r.name AND i.number = r.number)
        OR owner IS NOT NULL AND NOT EXISTS (
           SELECT 1 FROM hf_runs i INDEXED BY hf_runs_owner WHERE i.owner = r.owner AND i.number = r.number)
"""
_INDEXES: Final = (
    "hf_runs_due", "hf_runs_suspect", "hf_runs_posted", "hf_runs_asked", "hf_runs_owner", "hf_runs_parent",
)  # fmt: skip
"""They hold nothing that the rows do not. Those that find a run by id or key are witnesses, and never made again."""
_encode: Final = msgspec.json.encode
Rows = Callable[[str, Any], list[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""


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
    call_turns(db)
    if runs is None:
        found = _found(db.rows, serves, now, limit, suspicious=0)
        if suspects and len(found) < limit:
            found += _found(db.rows, serves, now, 1, suspicious=1)
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
        elif (ours := returned(db, row) if row.behind else row) is not None:
            leases.append(_lease(db, ours, worker, owner))
    return leases


def _stored(db: Db, values: tuple[Any, ...]) -> RunRow:
    """Return the row that an index led to; SQLite takes what the index has from there, which may be what is damaged."""
    row = read_row(values)
    return read_row(db.rows(BY_NUMBER, (row.number,))[0]) if row.damage else row


def _found(rows: Rows, serves: Mapping[str, str], now: int, limit: int, *, suspicious: int) -> list[tuple[Any, ...]]:
    """Return what may be claimed: what is due, the longest first, and then what a post wakes."""
    names = _encode(list(serves)).decode()
    words, due = (_SUSPECT_WORDS, _SUSPECT) if suspicious else (_SOUND_WORDS, _SOUND)
    found = [
        values
        for name, word in _admitted(rows(words, (names,)), serves)
        for values in rows(due, (name, word, now, limit))
    ]
    found.sort(key=_suspicion if suspicious else _due_at)
    if len(found) < limit:
        seen = {values[0] for values in found}
        woken = rows(_ASKED, (names, suspicious, limit))
        for name, word in _admitted(rows(_POSTED_WORDS, (names,)), serves):
            woken += rows(_POSTED, (name, word, suspicious, limit))
        found += {values[0]: values for values in woken if values[0] not in seen}.values()
    return found[:limit]


def _admitted(words: Sequence[tuple[Any, ...]], serves: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return those of the words on a run's code that what is served may have."""
    return [(name, word) for name, word in words if admits(word.decode(errors="replace"), serves[name])]


def _due_at(values: tuple[Any, ...]) -> int:
    due_at = values[DUE_AT]
    return due_at if isinstance(due_at, int) else 0


def _suspicion(values: tuple[Any, ...]) -> int:
    row = read_row(values)
    return 0 if row.damage else row.stalls


def anything_due(connection: apsw.Connection, serves: Mapping[str, str], now: int, suspects: bool) -> bool:
    """Say whether a claim would find something."""
    rows = partial(fetch, connection)
    return bool(rows(ANY_CALLS, ())) or any(
        _found(rows, serves, now, 1, suspicious=suspicious) for suspicious in range(1 + suspects)
    )


def _may_claim(row: RunRow, serves: Mapping[str, str], now: int) -> bool:
    if row.damage:
        return True  # to be set aside
    if row.owner is None and row.is_controlled and not row.refused.endswith(LEFT):
        return row.name in serves
    if row.owner is not None or row.behind or row.status not in (Status.QUEUED, Status.WAITING):
        return False
    served = serves.get(row.name)
    due = row.due_at is not None and row.due_at <= now
    return served is not None and admits(row.refused, served) and (due or row.inbox_seq > row.seen_seq)


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
    if row.conversation is not None or row.damage:
        close_turn(db, row, aside.status, row.last_seq)


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
