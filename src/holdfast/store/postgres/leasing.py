"""Who may write a run: statements for claiming, releasing and setting aside, and the rows that they are given."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.ids import Fence, WorkerId
from holdfast.core.status import Status
from holdfast.core.version import LEFT, admits
from holdfast.store.postgres.arrays import Integers, Texts
from holdfast.store.postgres.conversing import CALLS, MAY_BE_ASKED
from holdfast.store.postgres.opening import MICROS
from holdfast.store.rows import SELECT, fixed_of, guard, moving_of, seal
from holdfast.store.value import Lease, RunRow

TAIL: Final = """
    SELECT seq, kind, version, at, enc, body, checksum FROM hf_entries WHERE run = $1 ORDER BY seq DESC LIMIT $2
"""
BUCKETS: Final = 16
ENOUGH: Final = 64
"""How many that are due a claim looks at before it takes those that have waited longest."""
_REST: Final = "r.owner IS NULL AND r.behind = 0 AND r.status IN ('queued', 'waiting') AND (r.stalls > 0) = $3::boolean"
_WORDS: Final = """
    SELECT s.name, (SELECT min(r.refused) FROM hf_runs r WHERE r.owner IS NULL AND {waits} AND r.name = s.name)
      FROM unnest($1::text[]) AS s(name)
    UNION ALL
    SELECT w.name, (SELECT min(r.refused) FROM hf_runs r
                     WHERE r.owner IS NULL AND {waits} AND r.name = w.name AND r.refused > w.refused)
      FROM {words} w WHERE w.refused IS NOT NULL
"""
_TIMED: Final = _WORDS.format(waits="r.due_at IS NOT NULL AND r.stalls <= 0 AND r.behind = 0", words="timed")
_SUSPECTED: Final = _WORDS.format(waits="r.due_at IS NOT NULL AND r.stalls > 0 AND r.behind = 0", words="suspected")
_WOKEN: Final = _WORDS.format(waits="r.inbox_seq > r.seen_seq AND r.behind = 0", words="woken")
# What the runs of these names want of their code, each word once and found without a walk: of those that are due some
# time, of those that a post wakes, and the names of which something was asked, which counts whatever code they want
# unless it was left to who has that.
WORDS: Final = f"""
    WITH RECURSIVE timed (name, refused) AS ({_TIMED}), suspected (name, refused) AS ({_SUSPECTED}),
        woken (name, refused) AS ({_WOKEN})
    SELECT 'due', name, refused FROM timed WHERE refused IS NOT NULL
    UNION ALL SELECT 'suspect', name, refused FROM suspected WHERE refused IS NOT NULL
    UNION ALL SELECT 'posted', name, refused FROM woken WHERE refused IS NOT NULL
    UNION ALL SELECT 'asked', s.name, '' FROM unnest($1::text[]) AS s(name) WHERE EXISTS (
        SELECT 1 FROM hf_runs r WHERE r.owner IS NULL AND r.control_seq > r.seen_seq AND r.name = s.name
           AND r.refused NOT LIKE '%{LEFT}')
    UNION ALL SELECT 'turns', '', '' WHERE {CALLS}
"""
NOW: Final = f"coalesce($4::bigint, {MICROS})"
DUE: Final = f"""
    SELECT due.* FROM unnest($1::text[], $2::text[]) AS w(name, refused), LATERAL (
        SELECT found.* FROM generate_series(0, {BUCKETS - 1}) AS step, LATERAL (
            {SELECT} WHERE r.name = w.name AND r.refused = w.refused
               AND r.number % {BUCKETS} = ($6::bigint + step) % {BUCKETS} AND r.due_at IS NOT NULL
               AND r.due_at <= {NOW} AND r.stalls <= 0 AND {_REST} ORDER BY r.due_at LIMIT $5::bigint
        ) AS found LIMIT $5::bigint
    ) AS due ORDER BY due.due_at LIMIT $5::bigint
"""
# The least suspicious first.
SUSPECT: Final = f"""
    SELECT due.* FROM unnest($1::text[], $2::text[]) AS w(name, refused), LATERAL (
        {SELECT} WHERE r.name = w.name AND r.refused = w.refused AND r.due_at IS NOT NULL
           AND r.due_at <= {NOW} AND r.stalls > 0 AND {_REST} ORDER BY r.stalls, r.due_at LIMIT $5::bigint
    ) AS due ORDER BY due.stalls, due.due_at LIMIT $5::bigint
"""
POSTED: Final = f"""
    SELECT found.* FROM unnest($1::text[], $2::text[]) AS w(name, refused), LATERAL (
        {SELECT} WHERE r.name = w.name AND r.refused = w.refused AND r.inbox_seq > r.seen_seq AND {_REST}
         LIMIT $4::bigint
    ) AS found LIMIT $4::bigint
"""
ASKED: Final = f"""
    {SELECT} WHERE r.owner IS NULL AND r.control_seq > r.seen_seq AND r.inbox_seq > r.seen_seq
       AND r.name = ANY($1::text[]) AND r.status NOT IN ('completed', 'failed', 'cancelled')
       AND r.refused NOT LIKE '%{LEFT}' AND (r.stalls > 0) = $2::boolean AND {MAY_BE_ASKED} LIMIT $3::bigint
"""
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
# A damaged row keeps its wrong CRC (none is given): what is damaged must stay visible. Its number says nothing of how
# far its conversation has come.
SET_ASIDE: Final = """
    WITH aside AS (
        UPDATE hf_runs SET status = 'quarantined', reason = $2, due_at = NULL, owner = NULL,
               guard = coalesce($3, guard), stalls = $5, seen_seq = greatest(seen_seq, least(inbox_seq, $6)),
               inbox_sum = inbox_sum + greatest(seen_seq, least(inbox_seq, $6)) - seen_seq,
               behind = CASE WHEN conversation IS NULL THEN behind ELSE 1 END
         WHERE number = $1 AND guard = $4 AND owner IS NULL
        RETURNING number, CASE WHEN $3::bigint IS NULL THEN 0 ELSE coalesce(turn, 0) END AS turn, last_seq
    )
    UPDATE hf_conversations c
       SET active_run = NULL, over = greatest(c.over, a.turn),
           reached = greatest(c.reached, CASE WHEN a.last_seq > 1 THEN a.turn ELSE 0 END)
      FROM aside a WHERE c.active_run = a.number
"""
OWNED: Final = f"{SELECT} WHERE r.owner = (SELECT w.number FROM hf_workers w WHERE w.worker = $1)"
RELEASE: Final = """
    UPDATE hf_runs r SET owner = NULL, stalls = c.stalls, guard = c.guard
      FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) AS c(number, fence, stalls, guard)
     WHERE r.number = c.number AND r.fence = c.fence
       AND r.owner + 0 = (SELECT w.number FROM hf_workers w WHERE w.worker = $1)
    RETURNING r.number
"""


def question(serves: Mapping[str, str]) -> list[Any]:
    """Return the values of `WORDS`."""
    return [Texts(list(serves))]


class Admitted:
    """Which words on a run's code what is served may have, by how their runs are to be found."""

    def __init__(self, words: Sequence[tuple[Any, ...]], serves: Mapping[str, str]) -> None:
        self._words = [
            (how, name, word) for how, name, word in words if how in ("asked", "turns") or admits(word, serves[name])
        ]

    def has(self, how: str) -> bool:
        """Say whether there are any."""
        return any(how == each for each, _, _ in self._words)

    def values(self, how: str) -> list[Any]:
        """Return the first values of `DUE` or `POSTED`."""
        words = [(name, word) for each, name, word in self._words if each == how]
        return [Texts([name for name, _ in words]), Texts([word for _, word in words])]

    @property
    def names(self) -> list[Any]:
        """The first values of `ASKED`."""
        return [Texts([name for how, name, _ in self._words if how == "asked"])]


def may_claim(row: RunRow, serves: Mapping[str, str], now: int) -> bool:
    """Say whether a run that was asked for by id may be claimed; a damaged one may, to be set aside."""
    if row.damage:
        return True
    if row.owner is None and row.is_controlled and not row.refused.endswith(LEFT):
        return row.name in serves
    if row.owner is not None or row.behind or row.status not in (Status.QUEUED, Status.WAITING):
        return False
    served = serves.get(row.name)
    due = row.due_at is not None and row.due_at <= now
    return served is not None and admits(row.refused, served) and (due or row.inbox_seq > row.seen_seq)


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
