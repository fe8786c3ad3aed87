"""The words for where a run stands and for what a step may do to the world."""

from enum import StrEnum


class Status(StrEnum):
    """Where a run stands; `running` is computed from a row and a live lease, never stored."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    EXHAUSTED = "exhausted"
    QUARANTINED = "quarantined"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """True for the three statuses that nothing can follow."""
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Effect(StrEnum):
    """What a step may do to the world, declared by its author."""

    REPEAT = "repeat"
    """Safe to run again."""
    KEYED = "keyed"
    """Safe to run again when the same idempotency key is sent."""
    ONCE = "once"
    """Must not be run again while its outcome is unknown."""


class NotDone:
    """The type of `NOT_DONE`: evidence that an effect in doubt did not happen."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NOT_DONE"

    def __bool__(self) -> bool:
        return False


NOT_DONE = NotDone()
