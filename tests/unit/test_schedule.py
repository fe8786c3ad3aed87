"""Which ticks are started when somebody looks, and what a missed one is."""

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.core import limits
from holdfast.core.cron import Cron
from holdfast.core.errors import InvalidInput
from holdfast.core.status import Status
from holdfast.engine.schedule import Missed, as_instant, as_micros, due, is_held_back
from holdfast.store.value import RunRow

BERLIN = ZoneInfo("Europe/Berlin")
LATE = timedelta(seconds=limits.LATE_SECONDS)
crons = st.builds(Cron, st.sampled_from(["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *"]), st.just(BERLIN))
policies = st.sampled_from(get_args(Missed))
instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
spans = st.one_of(st.timedeltas(timedelta(), timedelta(hours=1)), st.timedeltas(timedelta(), timedelta(hours=20)))


def at(text: str) -> datetime:
    """Return a time of one day, in UTC."""
    return datetime.fromisoformat(f"2026-11-16T{text}Z")


@given(crons, policies, instants, spans)
def test_a_tick_that_is_only_late_is_due_whatever_the_policy(
    cron: Cron, missed: Missed, since: datetime, away: timedelta
) -> None:
    """A deploy or a short outage at the wrong minute costs no tick."""
    now = since + away
    late = [tick for tick in takewhile(lambda tick: tick <= now, cron.after(since)) if tick >= now - LATE]
    assert set(late) <= set(due(cron, missed, since=since, now=now))


@given(crons, policies, instants, spans)
def test_nothing_is_due_that_is_not_a_tick_of_the_time_away(
    cron: Cron, missed: Missed, since: datetime, away: timedelta
) -> None:
    """What was dealt with is not dealt with again, and nothing comes early; the rest comes in order, bounded."""
    ticks = due(cron, missed, since=since, now=since + away)
    came = list(takewhile(lambda tick: tick <= since + away, cron.after(since)))
    assert ticks == sorted(set(ticks) & set(came))
    assert len(ticks) <= limits.MISSED_TICKS


@given(crons, instants, spans)
def test_what_is_missed_is_skipped_or_run_once_or_all_of_it(cron: Cron, since: datetime, away: timedelta) -> None:
    """The three words mean three things."""
    now = since + away
    came = list(takewhile(lambda tick: tick <= now, cron.after(since)))
    assert due(cron, "skip", since=since, now=now) == [tick for tick in came if tick >= now - LATE]
    assert due(cron, "last", since=since, now=now) == [tick for tick in came if tick >= now - LATE or tick == came[-1]]
    assert due(cron, "all", since=since, now=now) == came[-limits.MISSED_TICKS :]


@given(crons, st.sampled_from(["skip", "all"]), instants, st.lists(st.timedeltas(timedelta(), LATE), max_size=6))
def test_looking_often_gives_what_looking_once_gives(
    cron: Cron, missed: Missed, since: datetime, pauses: list[timedelta]
) -> None:
    """A scheduler that looks in time loses no tick and repeats none, however its looks fall."""
    looked, ticks = since, list[datetime]()
    for pause in pauses:
        ticks += due(cron, missed, since=looked, now=looked + pause)
        looked += pause
    assert ticks == due(cron, "all", since=since, now=looked)


def a_run(status: Status, updated: datetime) -> RunRow:
    """Return the row of a run."""
    return RunRow(
        run=hf.Run(None, "r").id,  # type: ignore[arg-type]
        number=1, tenant="default", name="f", digest="", created_at=0, updated_at=as_micros(updated), status=status,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("status", "updated", "held"),
    [
        (Status.COMPLETED, "09:59:59", False),
        (Status.COMPLETED, "10:00:00", False),
        (Status.COMPLETED, "10:00:01", True),
        (Status.FAILED, "09:30:00", False),
        (Status.CANCELLED, "10:00:01", True),
        (Status.QUEUED, "09:00:00", True),
        (Status.WAITING, "09:00:00", True),
        (Status.QUARANTINED, "09:00:00", True),
    ],
)
def test_a_tick_is_held_back_by_a_run_that_was_open_when_it_came(status: Status, updated: str, held: bool) -> None:
    """By what is recorded, so that a worker that looks late comes to the same verdict as one that did not."""
    assert is_held_back(at("10:00:00"), a_run(status, at(updated))) is held


@given(instants)
def test_the_clock_of_the_store_and_instants_are_the_same_time(instant: datetime) -> None:
    """Nothing is lost between µs and instants."""
    assert as_instant(as_micros(instant)) == instant


@hf.durable
async def report(ctx: hf.Context) -> None:
    """Take nothing."""


@hf.durable
async def digest(ctx: hf.Context, at: datetime, team: str, size: int = 3) -> None:
    """Take the tick and more."""


BAD: list[tuple[Any, dict[str, Any], str]] = [
    (report, {"cron": "0 25 * * *"}, "the hour is '25'"),
    (report, {"cron": None}, "the cron expression must be text"),
    (report, {"tz": "Europe/Atlantis"}, "such as 'Europe/Berlin', not 'Europe/Atlantis'"),
    (report, {"tz": "../../etc/passwd"}, "tz= is the name of a time zone"),
    (report, {"tz": "Europe"}, "tz= is the name of a time zone"),
    (report, {"tz": ""}, "tz= is empty"),
    (report, {"tz": BERLIN}, "tz= must be text"),
    (report, {"missed": "some"}, "missed= is one of 'skip', 'last', 'all', not 'some'"),
    (report, {"overlap": "never"}, "overlap= is one of 'allow', 'skip', not 'never'"),
    (report, {"args": (1,)}, "report takes 0 arguments, but 1 was given"),
    (report, {"args": "acme"}, "args= is a tuple"),
    (report, {"name": ""}, "the schedule's name is empty"),
    (report, {"name": "\N{SNOWMAN}" * 80}, "shorten its name"),
    (digest, {}, "digest misses its argument team"),
    (digest, {"args": (7,)}, "argument 'team' of digest"),
    (digest, {"args": ("a", 1, 2)}, "digest takes 3 arguments, but 4 were given"),
    (len, {}, "App.schedule wants a durable function"),
]  # fmt: skip


@pytest.mark.parametrize(("function", "options", "why"), BAD)
def test_what_cannot_be_scheduled_is_refused_at_once(function: Any, options: dict[str, Any], why: str) -> None:
    """A mistake in a schedule is found when the program starts, and not at two in the night."""
    app = hf.App()
    given = {"cron": "0 2 * * *", **options}
    with pytest.raises(InvalidInput) as refused:
        app.schedule(function, given.pop("cron"), **given)
    assert why in str(refused.value)
    assert app.schedules == {}


def test_two_schedules_of_one_name_are_refused() -> None:
    """The name is part of the key, so two of one name would take each other's ticks."""
    app = hf.App()
    app.schedule(report, "0 2 * * *")
    with pytest.raises(InvalidInput, match="two schedules are called 'report'"):
        app.schedule(report, "0 3 * * *")
    app.schedule(report, "0 3 * * *", name="again")
    assert list(app.schedules) == ["report", "again"]
    assert list(app.serves()) == ["report"]


def test_a_function_that_asks_for_its_tick_gets_it_first() -> None:
    """The arguments of a tick's run are the same whoever starts it."""
    app = hf.App()
    app.schedule(digest, "0 2 * * *", args=("blue",), name="short")
    app.schedule(digest, "0 2 * * *", args=("blue", 5))
    assert app.schedules["short"].arguments(at("02:00:00")) == {"at": at("02:00:00"), "team": "blue"}
    assert app.schedules["digest"].arguments(at("02:00:00")) == {"at": at("02:00:00"), "team": "blue", "size": 5}
    assert app.schedules["digest"].tick_key(at("02:00:00")) == ("schedule", "digest", "2026-11-16T02:00:00Z")
