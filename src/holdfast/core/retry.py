"""When to try a failed step again: arithmetic over attempts, with chance as an argument."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast.core import limits
from holdfast.core.errors import InvalidInput, ToolError


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a step is tried.

    `on` names the exceptions worth another attempt; `None` means every `Exception` but a `ToolError`.
    """

    attempts: int = 3
    first: float | timedelta = 1.0
    factor: float = 2.0
    most: float | timedelta = 60.0
    on: tuple[type[Exception], ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InvalidInput(f"Retry(attempts=) is a whole number of at least 1, not {self.attempts!r}")
        factor: object = self.factor
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < math.inf:
            raise InvalidInput(f"Retry(factor=) is a number of at least 1, not {factor!r}")
        checked_seconds("Retry(first=)", self.first)
        checked_seconds("Retry(most=)", self.most)
        if self.on is not None:
            checked_exceptions("Retry(on=)", self.on)

    def wants(self, error: BaseException, attempt: int) -> bool:
        """Say whether attempt number `attempt`, which ended in `error`, should be followed by another."""
        if self.on is None and isinstance(error, ToolError):
            return False  # what a tool says in words is an answer, and would be the same again
        return attempt < self.attempts and isinstance(error, tuple(self.on) if self.on is not None else Exception)

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


def checked_seconds(what: str, duration: float | timedelta, *, least: float = 0.0) -> float:
    """Return a duration in seconds.

    Raises:
        InvalidInput: it is neither a number nor a timedelta, below `least`, endless, or longer than a lifetime.
    """
    if isinstance(duration, bool) or not isinstance(duration, int | float | timedelta):
        raise InvalidInput(f"{what} is a number of seconds or a timedelta, not {duration!r}")
    length = seconds(duration)
    if not least <= length <= limits.DURATION_SECONDS:
        raise InvalidInput(f"{what} is between {least:g} and {limits.DURATION_SECONDS:g} seconds, not {length:g}")
    return length


def refuse_moment(what: str, given: object) -> None:
    """Refuse a moment where the time until then is wanted, with what to write.

    Raises:
        InvalidInput: it is one.
    """
    if isinstance(given, datetime):
        instead = f"to wait until a moment: {what}(moment - ctx.now())"
        raise InvalidInput(f"{what} is a number of seconds or a timedelta, not {given!r}; {instead}")


def checked_exceptions(what: str, classes: object) -> tuple[type[BaseException], ...]:
    """Return exception classes as `except` takes them.

    Raises:
        InvalidInput: it is anything else than an exception class or a sequence of them.
    """
    known = tuple(classes) if isinstance(classes, tuple | list | set | frozenset) else (classes,)
    if not all(isinstance(known_class, type) and issubclass(known_class, BaseException) for known_class in known):
        raise InvalidInput(f"{what} is a sequence of exception classes, not {classes!r}")
    return known


def seconds(duration: float | timedelta) -> float:
    """Return a duration in seconds, whichever way it was written."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def capped_retry_after(asked_seconds: float, cap_seconds: float = limits.RETRY_AFTER_SECONDS) -> float:
    """Return how long to obey a provider's Retry-After: never negative, never longer than the cap."""
    return min(max(asked_seconds, 0.0), cap_seconds)


def asked_seconds(error: BaseException, now: datetime) -> float | None:
    """Return for how long an error asks not to be tried again: its `retry_after`, a duration or a time; capped.

    What is none of these is no wish.
    """
    asked = getattr(error, "retry_after", None)
    if isinstance(asked, datetime):
        asked = asked if asked.tzinfo is not None else asked.replace(tzinfo=UTC)
        return capped_retry_after((asked - now).total_seconds())
    if isinstance(asked, timedelta):
        return capped_retry_after(asked.total_seconds())
    if isinstance(asked, int | float) and not isinstance(asked, bool) and not math.isnan(asked):
        return capped_retry_after(float(asked))
    return None
