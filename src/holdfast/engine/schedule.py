"""A schedule: which function starts at which ticks, and what becomes of a tick that nobody saw."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final, Literal, assert_never, get_args

from holdfast.core import limits
from holdfast.core.cron import Cron, zone_of
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import checked_text
from holdfast.core.stepkey import join_key
from holdfast.engine.function import Durable
from holdfast.store.value import RunRow

Missed = Literal["skip", "last", "all"]
Overlap = Literal["allow", "skip"]
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def as_instant(micros: int) -> datetime:
    """Return a time of the store's clock as an instant."""
    return _EPOCH + timedelta(microseconds=micros)


def as_micros(instant: datetime) -> int:
    """Return an instant as the store's clock tells it; the inverse of `as_instant`."""
    return (instant - _EPOCH) // _MICROSECOND


def before(tick: datetime) -> datetime:
    """Return the last instant before a tick."""
    return tick - _MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What `App.schedule` declared, checked."""

    name: str
    function: Durable[Any, ...]
    cron: Cron
    tz: str
    args: tuple[Any, ...] = ()
    missed: Missed = "skip"
    overlap: Overlap = "allow"

    def __post_init__(self) -> None:
        self.function.encode_input(self.arguments(_EPOCH))
        longest = max(len(join_key(self.key)), len(join_key(self.tick_key(_EPOCH))))
        if longest > limits.KEY_BYTES:
            raise InvalidInput(
                f"schedule {self.name[:60]!r}: the keys of its runs would be {longest:,} bytes; "
                f"the limit is {limits.KEY_BYTES:,}: shorten its name"
            )

    def arguments(self, tick: datetime) -> dict[str, Any]:
        """Return the named arguments of a tick's run: the tick itself if the function asks for it, then `args`."""
        given = (tick, *self.args) if self.function.takes_first(datetime) else self.args
        return self.function.bind(given)

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the run that says since when a store knows this expression under this name."""
        return ("schedule", self.name, self.cron.expression, self.tz)

    def tick_key(self, tick: datetime) -> tuple[str, ...]:
        """Return the key of a tick's run: whoever starts it, and however often, there is one."""
        return ("schedule", self.name, written(tick))

    def labels(self, tick: datetime) -> dict[str, str]:
        """Return what a tick's run is found by."""
        return {"schedule": self.name, "tick": written(tick)}

    def about(self) -> dict[str, str]:
        """Return what a worker says of it to people who look."""
        return {
            "name": self.name, "function": self.function.name, "cron": self.cron.expression, "tz": self.tz,
            "missed": self.missed, "overlap": self.overlap,
        }  # fmt: skip


def written(tick: datetime) -> str:
    """Return a tick as it stands in keys and labels: UTC, to the second."""
    return tick.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def declare(
    function: Durable[Any, ...], cron: str, *, name: str | None, tz: str, missed: str, overlap: str,
    args: tuple[Any, ...],
) -> Schedule:  # fmt: skip
    """Return a schedule, checked.

    Raises:
        InvalidInput: the expression, the zone, a policy or the arguments cannot be taken; the message says which.
    """
    if not isinstance(function, Durable):
        raise InvalidInput(f"App.schedule wants a durable function, not {function!r}; decorate it with @hf.durable")
    for option, word, known in (("missed", missed, get_args(Missed)), ("overlap", overlap, get_args(Overlap))):
        if word not in known:
            raise InvalidInput(f"{option}= is one of {', '.join(map(repr, known))}, not {word!r}")
    if not isinstance(args, tuple | list):
        raise InvalidInput(f"args= is a tuple of the function's arguments, not {args!r}")
    return Schedule(
        name=checked_text("the schedule's name", function.name if name is None else name, limits.NAME_BYTES),
        function=function,
        cron=Cron(cron, zone_of(tz)),
        tz=tz,
        args=tuple(args),
        missed=missed,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
    )


def due(cron: Cron, missed: Missed, *, since: datetime, now: datetime) -> list[datetime]:
    """Return the ticks after `since` that are to be started now, in order.

    A tick that is at most `limits.LATE_SECONDS` old is late, and always among them. An older one was missed.
    """
    ticks = takewhile(lambda tick: tick > since, cron.until(now))
    late = now - timedelta(seconds=limits.LATE_SECONDS)
    match missed:
        case "skip":
            wanted = list(takewhile(lambda tick: tick >= late, ticks))
        case "last":
            latest = list(islice(ticks, 1))
            wanted = latest + list(takewhile(lambda tick: tick >= late, ticks))
        case "all":
            wanted = list(islice(ticks, limits.MISSED_TICKS))
        case _:
            assert_never(missed)
    return wanted[::-1]


def is_held_back(tick: datetime, previous: RunRow) -> bool:
    """Say whether a tick came while the run of the tick before was open, or would come while it is."""
    return not previous.status.terminal or previous.updated_at > as_micros(tick)
