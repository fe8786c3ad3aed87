"""Where a run stands, as its row tells it."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from holdfast.client.serving import Lacking
from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import CHECKPOINT_NAME, RunId
from holdfast.core.status import Status
from holdfast.store.value import RunRow

UNREADABLE: Final = ("damaged", "unknown_entry")
STUCK: Final = ("diverged", "pinned", "outdated", *UNREADABLE)
"""Rests that nothing in the run's own future ends."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def as_time(micros: int) -> datetime:
    """Return a stored time as a datetime in UTC; one that no calendar has becomes the epoch."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except (OverflowError, TypeError):
        return _EPOCH


def own(row: RunRow | None, run: RunId, tenant: str) -> RunRow:
    """Return the row of a run if it is the tenant's.

    Raises:
        NotFound: there is none that is.
        Damaged: whose it is cannot be told any more.
    """
    if row is not None and row.damage and row.tenant != tenant:
        raise Damaged(run=run, seq=None, what=row.damage)
    if row is None or row.tenant != tenant:
        raise NotFound(f"run {run}")
    return row


def status_of(row: RunRow) -> Status:
    """Return a run's status: `running` is a row with a lease."""
    if row.damage:
        return Status.QUARANTINED
    return Status.RUNNING if row.owner is not None and not row.status.terminal else row.status


def reason_of(row: RunRow) -> str:
    """Return why a run stands where it does; of one that is driven its row tells why it rested before."""
    if row.damage:
        return f"damaged: {row.damage}"
    return row.reason if status_of(row) is not Status.RUNNING else ""


def is_ours(name: str) -> bool:
    """Say whether a function is Holdfast's own, such as that by which a schedule remembers itself.

    A checkpoint is its user's.
    """
    return name.startswith("holdfast:") and name != CHECKPOINT_NAME


def waits_for_person(row: RunRow) -> bool:
    """Say whether a run rests until a person answers, and nobody has."""
    rests = row.status is Status.WAITING and row.owner is None and row.due_at is None
    asks = row.status is Status.WAITING and row.owner is None and row.reason.startswith("ask")
    return (asks or (rests and row.reason.startswith("doubt"))) and row.inbox_seq <= row.seen_seq


def summary_fields(row: RunRow, lacking: Lacking | None) -> dict[str, Any]:
    """Return what is told of a run wherever it is told of."""
    reason = lacking.reason if lacking is not None and not row.reason.startswith(STUCK) else reason_of(row)
    return {
        "id": row.run, "name": row.name, "status": status_of(row), "reason": reason, "key": row.key,
        "conversation": row.conversation, "turn": row.turn, "parent": row.parent, "root": row.root or row.run,
        "labels": dict(row.labels), "created_at": as_time(row.created_at), "updated_at": as_time(row.updated_at),
        "attempt": row.attempt, "last_seq": row.last_seq,
    }  # fmt: skip
