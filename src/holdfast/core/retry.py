"""When to try a failed step again: arithmetic over attempts, with chance as an argument."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a step is tried.

    `on` names the exceptions worth another attempt; `None` means every `Exception`.
    """

    attempts: int = 3
    first: float | timedelta = 1.0
    factor: float = 2.0
    most: float | timedelta = 60.0
    on: tuple[type[Exception], ...] | None = None

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("Retry(attempts=) must be at least 1")
        if self.factor < 1 or seconds(self.first) < 0 or seconds(self.most) < 0:
            raise ValueError("Retry(factor=) must be at least 1, and first= and most= not negative")

    def wants(self, error: BaseException, attempt: int) -> bool:
        """Say whether attempt number `attempt`, which ended in `error`, should be followed by another."""
        return attempt < self.attempts and isinstance(error, self.on if self.on is not None else Exception)

    def delay_seconds(self, attempt: int, jitter: float) -> float:
        """Return how long to wait after attempt number `attempt`; `jitter` is in [0, 1).

        Half of the wait is fixed and half by chance, so that many runs that failed together do not come back together.
        """
        first, most = seconds(self.first), seconds(self.most)
        try:
            full = min(most, first * float(self.factor) ** (attempt - 1))
        except OverflowError:
            full = most if first else 0.0
        return full * (0.5 + jitter / 2)


def seconds(duration: float | timedelta) -> float:
    """Return a duration in seconds, whichever way it was written."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def capped_retry_after(asked_seconds: float, cap_seconds: float = 300.0) -> float:
    """Return how long to obey a provider's Retry-After: never negative, never longer than the cap."""
    return min(max(asked_seconds, 0.0), cap_seconds)
