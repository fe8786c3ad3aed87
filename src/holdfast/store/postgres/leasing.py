"""Who may write a run: statements for claiming, releasing and setting aside, and the rows that they are given."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.ids import Fence, RunId, WorkerId, id_bytes
from holdfast.core.status import Status
from holdfast.store.postgres.arrays import Ids, Integers, Texts
from holdfast.store.postgres.opening import MICROS
from holdfast.store.rows import SELECT, fixed_of, guard, moving_of, seal
from holdfast.store.value import Lease, RunRow

TAIL: Final = """
    SELECT seq, kind, version, at, enc, body, checksum FROM hf_entries WHERE run = $1 ORDER BY seq DESC LIMIT $2
"""
BUCKETS: Final = 16
ENOUGH: Final = 64
"""How many that are due a claim looks at before it takes those that have waited longest."""
_MAY: Final = """
    r.owner IS NULL AND r.status IN ('queued', 'waiting') AND (r.stalls > 0) = $3::boolean
    AND EXISTS (SELECT 1 FROM unnest($1::text[], $2::text[]) AS s(name, code)
                 WHERE s.name = r.name AND strpos(r.refused, '|' || s.code || '|') = 0)
"""
_CONTROLLED: Final = """
    r.owner IS NULL AND r.control_seq > r.seen_seq AND r.status NOT IN ('completed', 'failed', 'cancelled')
    AND (r.stalls > 0) = $3::boolean AND r.name = ANY($1::text[])
"""
NOW: Final = f"coalesce($4::bigint, {MICROS})"
DUE: Final = f"""
    SELECT due.* FROM generate_series(0, {BUCKETS - 1}) AS step, LATERAL (
        {SELECT} WHERE r.number % {BUCKETS} = ($6::bigint + step) % {BUCKETS} AND r.due_at IS NOT NULL
           AND r.due_at <= {NOW} AND {_MAY} ORDER BY r.due_at LIMIT $5::bigint
    ) AS due LIMIT $5::bigint
"""
POSTED: Final = f"""
    {SELECT} WHERE r.inbox_seq > r.seen_seq AND ({_MAY} OR {_CONTROLLED}) AND {NOW} IS NOT NULL LIMIT $5::bigint
"""
BY_ID: Final = f"{SELECT} WHERE r.run = ANY($1)"
# Only rows as they were looked at: one that a neighbour took or moved since matches nothing, one that he is about to
# is passed over. The worker's own row is held, so that nobody declares it dead between the look and the claim.
CLAIM: Final = """
    WITH w AS (SELECT number FROM hf_workers WHERE worker = $1 FOR KEY SHARE), held AS (
        SELECT r.number, c.fence, c.attempt, c.stalls, c.guard
          FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
            AS c(number, fence, attempt, stalls, guard, was)
          JOIN hf_runs r ON r.number = c.number
         WHERE r.owner IS NULL AND r.guard = c.was AND EXISTS (SELECT 1 FROM w)
         ORDER BY r.number FOR NO KEY UPDATE OF r SKIP LOCKED
    )
    UPDATE hf_runs r SET owner = w.number, fence = h.fence, attempt = h.attempt, stalls = h.stalls, guard = h.guard
      FROM held h, w WHERE r.number = h.number
    RETURNING r.number, r.inbox_seq, r.control_seq, r.seen_seq
"""
# A damaged row keeps its wrong CRC (none is given): what is damaged must stay visible.
SET_ASIDE: Final = """
    UPDATE hf_runs SET status = 'quarantined', reason = $2, due_at = NULL, owner = NULL, guard = coalesce($3, guard),
           stalls = $5, seen_seq = greatest(seen_seq, least(inbox_seq, $6)),
           inbox_sum = inbox_sum + greatest(seen_seq, least(inbox_seq, $6)) - seen_seq
     WHERE number = $1 AND guard = $4 AND owner IS NULL
"""
OWNED: Final = f"{SELECT} WHERE r.owner = (SELECT w.number FROM hf_workers w WHERE w.worker = $1)"
RELEASE: Final = """
    UPDATE hf_runs r SET owner = NULL, stalls = c.stalls, guard = c.guard
      FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS c(number, fence, stalls, guard)
     WHERE r.number = c.number AND r.fence = c.fence
       AND r.owner + 0 = (SELECT w.number FROM hf_workers w WHERE w.worker = $1)
    RETURNING r.number
"""


def question(serves: Mapping[str, str], suspicious: bool, given: int | None, limit: int) -> list[Any]:
    """Return the first values of `DUE` and `POSTED`."""
    return [Texts(list(serves)), Texts(list(serves.values())), suspicious, given, limit]


def by_id(runs: Sequence[RunId]) -> list[Any]:
    """Return the values of `BY_ID`."""
    return [Ids([id_bytes(run) for run in runs])]


def may_claim(row: RunRow, serves: Mapping[str, str], now: int) -> bool:
    """Say whether a run that was asked for by id may be claimed; a damaged one may, to be set aside."""
    if row.damage:
        return True
    if row.owner is None and row.is_controlled:
        return row.name in serves
    if row.owner is not None or row.status not in (Status.QUEUED, Status.WAITING):
        return False
    code = serves.get(row.name)
    due = row.due_at is not None and row.due_at <= now
    return code is not None and f"|{code}|" not in row.refused and (due or row.inbox_seq > row.seen_seq)


def crc(row: RunRow) -> int:
    """Return the CRC that a row is given."""
    return guard(seal(fixed_of(row)), moving_of(row))


def claim_values(worker: WorkerId, rows: Sequence[RunRow]) -> list[Any]:
    """Return the values of `CLAIM`."""
    leased = [claimed(row, worker) for row in rows]
    return [
        worker,
        Integers([row.number for row in rows]),
        Integers([row.fence for row in leased]),
        Integers([row.attempt for row in leased]),
        Integers([row.stalls for row in leased]),
        Integers([crc(row) for row in leased]),
        Integers([crc(row) for row in rows]),
    ]


def claimed(row: RunRow, worker: WorkerId) -> RunRow:
    """Return the row once it is claimed."""
    return replace(row, owner=worker, fence=Fence(row.fence + 1), attempt=row.attempt + 1, stalls=row.stalls + 1)


def lease(row: RunRow, worker: WorkerId, counters: Sequence[int]) -> Lease:
    """Return the lease of a row that was claimed, with its inbox as it stood then."""
    inbox_seq, control_seq, seen_seq = counters
    row = replace(claimed(row, worker), inbox_seq=inbox_seq, control_seq=control_seq, seen_seq=seen_seq)
    return Lease(row, worker, row.fence, "started" if row.fence == 1 else "claimed")


def aside_values(row: RunRow, stored: int, reason: str) -> list[Any]:
    """Return the values of `SET_ASIDE`."""
    stalls = min(row.stalls, limits.STALLS)
    aside = replace(row, status=Status.QUARANTINED, reason=reason, due_at=None, stalls=stalls)
    return [row.number, reason, None if row.damage else crc(aside), stored, stalls, row.inbox_seq]


def release_values(worker: WorkerId, rows: Sequence[tuple[RunRow, int]]) -> list[Any]:
    """Return the values of `RELEASE` for rows with the CRC that is stored."""
    freed = [(replace(row, stalls=max(0, row.stalls - 1)), stored) for row, stored in rows]
    return [
        worker,
        Integers([row.number for row, _ in freed]),
        Integers([row.fence for row, _ in freed]),
        Integers([row.stalls for row, _ in freed]),
        Integers([stored if row.damage else crc(row) for row, stored in freed]),
    ]
