"""A figure, the target it is held against, and the verdict; every target of the project stands in one table here."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that a figure should keep."""

    sign: str
    limit: float

    def met(self, value: float) -> bool:
        return value >= self.limit if self.sign == "≥" else value <= self.limit

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"


def at_least(limit: float) -> Target:
    """The figure should be no smaller."""
    return Target("≥", limit)


def at_most(limit: float) -> Target:
    """The figure should be no larger."""
    return Target("≤", limit)


GROUP_FLOOR_APPENDS: Final = 2.5
GROUP_FLOOR_RATE: Final = 20_000.0
"""With 64 runs at once or more: so many steps per append of the disk, or so many a second, whichever is less."""

RESUME_SECONDS: Final = 0.25
RESUME_SECONDS_A_STEP: Final = 40e-6

TARGETS: Final[dict[str, Target]] = {
    "steps.1.appends": at_least(0.35),
    "steps.1.best_peer": at_least(1.5),
    "steps.64.loop": at_least(0.5),
    "steps.64.floor": at_least(1),
    "steps.64.DBOS": at_least(30),
    "steps.64.LangGraph": at_least(30),
    "steps.256.loop": at_least(0.5),
    "steps.256.floor": at_least(1),
    "steps.256.DBOS": at_least(30),
    "steps.256.LangGraph": at_least(30),
    "once.durabl": at_most(0.75),
    "resume.1000": at_most(RESUME_SECONDS + 1_000 * RESUME_SECONDS_A_STEP),
    "resume.10000": at_most(RESUME_SECONDS + 10_000 * RESUME_SECONDS_A_STEP),
    "restart.sqlite.first": at_most(1),
    "restart.sqlite.all": at_most(20),
    "restart.sqlite.asleep.all": at_most(20),
    "restart.sqlite.posted.all": at_most(20),
    "restart.sqlite.unserved.all": at_most(20),
    "restart.sqlite.limited.all": at_most(20),
    "restart.sqlite.memory": at_most(1.5),
    "restart.postgres.first": at_most(1),
    "restart.postgres.all": at_most(20),
    "restart.postgres.asleep.all": at_most(20),
    "restart.postgres.posted.all": at_most(20),
    "restart.postgres.unserved.all": at_most(20),
    "restart.postgres.limited.all": at_most(20),
    "restart.postgres.memory": at_most(1.5),
    "map.memory": at_most(1.5),
    "map.flat": at_most(1.25),
    "map.DBOS": at_most(1),
    "map.DBOS, PostgreSQL": at_most(1),
    "map.Restate": at_most(1),
    "bytes.step": at_most(1.6),
    "bytes.linear": at_most(1.1),
    "talk.bytes": at_most(1.6),
    "talk.flat": at_most(1.5),
    "talk.saver.bytes": at_most(6.0),
    "growth.entries": at_most(1.25),
    "growth.runs": at_most(1.25),
    "growth.runs.once": at_most(1.25),
    "postgres.64.commits": at_least(5),
    "postgres.256.commits": at_least(5),
    "postgres.64.best_peer": at_least(5),
    "takeover.first": at_most(1),
    "lag.postgres.p99": at_most(50),
    "lag.sqlite.p99": at_most(50),
    "workers.file": at_least(1),
    "import.ms": at_most(150),
    "import.memory": at_most(35),
}
"""By a figure's key. A figure without a target here is printed for comparison only."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number with its name; `value` is None where it could not be taken, and `note` then says why."""

    key: str
    name: str
    value: float | None
    unit: str = ""
    note: str = ""

    @property
    def target(self) -> Target | None:
        return TARGETS.get(self.key)

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        if self.target is None:
            return ""
        return "pass" if self.target.met(self.value) else "FAIL"


def shown(value: float) -> str:
    """Return a number with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def of(key: str, name: str, values: Sequence[float], unit: str = "") -> Figure:
    """Return the median of several takes, with their spread as the note."""
    if not values:
        return Figure(key, name, None, unit, "a subject it is taken from failed")
    note = f"{shown(min(values))} to {shown(max(values))} over {len(values)}" if len(values) > 1 else ""
    return Figure(key, name, median(values), unit, note)
