"""A cron expression names the same instants whoever asks, on the days when the clocks change too."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.cron import Cron
from holdfast.core.errors import InvalidInput

BERLIN, NEW_YORK, LORD_HOWE = map(ZoneInfo, ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe"))
ZONES = [UTC, *map(ZoneInfo, ("Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana"))]
SOME = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0 */2 * * *", "0 0 * * *", "15,45 1-3 * * SUN", "0 0 L * *"]
crons = st.builds(Cron, st.sampled_from(SOME), st.sampled_from(ZONES))
instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
MOVES = [(BERLIN, "2026-03-29T01:00Z"), (BERLIN, "2026-10-25T01:00Z"), (LORD_HOWE, "2026-04-04T15:00Z")]
every_move = pytest.mark.parametrize(("zone", "moved"), [*MOVES, (ZONES[-1], "2026-03-08T05:00Z")])
every_one = pytest.mark.parametrize("expression", SOME)


def around(moved: str) -> list[datetime]:
    """Return instants before and after the clocks were moved."""
    return [datetime.fromisoformat(moved) + timedelta(minutes=10 * number) for number in range(-13, 14)]


def local(cron: Cron, zone: ZoneInfo, after: str, count: int) -> list[str]:
    """Return ticks as the clocks on the wall show them, with their distance from UTC."""
    ticks = islice(cron.after(datetime.fromisoformat(after)), count)
    return [tick.astimezone(zone).strftime("%d %H:%M %z") for tick in ticks]


CHANGES = [
    # Berlin leaps from 02:00 to 03:00 on 29 March 2026, and shows 02:00 to 03:00 twice on 25 October.
    ("30 2 * * *", BERLIN, "2026-03-27T12:00Z", ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]),
    ("30 2 * * *", BERLIN, "2026-10-23T12:00Z", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
    ("10,20,30 2 * * *", BERLIN, "2026-03-28T12:00Z", ["29 03:00 +0200", "30 02:10 +0200"]),
    ("30 2,3 * * *", BERLIN, "2026-03-28T12:00Z", ["29 03:00 +0200", "29 03:30 +0200", "30 02:30 +0200"]),
    ("0 2,3 * * *", BERLIN, "2026-03-28T12:00Z", ["29 03:00 +0200", "30 02:00 +0200"]),
    ("0 2,3 * * *", BERLIN, "2026-10-24T12:00Z", ["25 02:00 +0200", "25 03:00 +0100", "26 02:00 +0100"]),
    ("*/30 * * * *", BERLIN, "2026-03-29T00:00Z", ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]),
    (
        "*/30 * * * *", BERLIN, "2026-10-24T23:30Z",
        ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "25 03:00 +0100"],
    ),
    ("@hourly", BERLIN, "2026-10-24T23:30Z", ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]),
    ("0 */2 * * *", BERLIN, "2026-03-28T22:30Z", ["29 00:00 +0100", "29 04:00 +0200"]),
    ("5 * * * *", BERLIN, "2026-10-25T00:30Z", ["25 02:05 +0100", "25 03:05 +0100"]),
    # Asked in the second of the two hours, the first of them is over.
    ("30 2 * * *", BERLIN, "2026-10-25T01:10Z", ["26 02:30 +0100"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00Z", ["01 01:30 -0400", "02 01:30 -0500"]),
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00Z", ["08 03:00 -0400", "09 02:30 -0400"]),
    # Lord Howe moves its clocks by half an hour.
    ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", ["04 02:30 +1100", "05 02:15 +1100"]),
    ("0 */2 * * *", LORD_HOWE, "2026-04-04T12:00Z", ["05 00:00 +1100", "05 02:00 +1030", "05 04:00 +1030"]),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "zone", "after", "wanted"), CHANGES)
def test_ticks_around_a_change_of_the_clocks(expression: str, zone: ZoneInfo, after: str, wanted: list[str]) -> None:
    """A fixed time comes once on both days; anything else comes whenever the clocks show it."""
    assert local(Cron(expression, zone), zone, after, len(wanted)) == wanted


@pytest.mark.parametrize(
    ("expression", "after", "wanted"),
    [
        ("0 9-17/4 * * MON-FRI", "2026-11-14T00:00Z", ["16 09:00", "16 13:00", "16 17:00", "17 09:00"]),
        ("0 0 1 JAN,jul *", "2026-01-02T00:00Z", ["01 00:00", "01 00:00"]),
        ("0 0 13 * 5", "2026-11-10T00:00Z", ["13 00:00", "20 00:00", "27 00:00", "04 00:00"]),
        ("0 0 * * 7", "2026-11-14T00:00Z", ["15 00:00", "22 00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00Z", ["29 00:00"]),
        ("  0   2  *  *  * ", "2026-11-14T00:00Z", ["14 02:00", "15 02:00"]),
        ("@Daily", "2026-11-14T00:00Z", ["15 00:00"]),
        ("@weekly", "2026-11-14T00:00Z", ["15 00:00"]),
        ("@yearly", "2026-11-14T00:00Z", ["01 00:00"]),
    ],
)
def test_lists_ranges_steps_and_names_mean_what_cron_means(expression: str, after: str, wanted: list[str]) -> None:
    """Whoever knows crontab knows this."""
    ticks = islice(Cron(expression, UTC).after(datetime.fromisoformat(after)), len(wanted))
    assert [tick.strftime("%d %H:%M") for tick in ticks] == wanted


@given(crons, instants)
def test_ticks_come_in_order_and_none_twice(cron: Cron, instant: datetime) -> None:
    """One instant is one tick, so it can be one run."""
    ticks = [instant, *islice(cron.after(instant), 30)]
    assert all(earlier < later for earlier, later in pairwise(ticks))


@every_move
@every_one
def test_it_does_not_matter_from_where_one_counts(expression: str, zone: ZoneInfo, moved: str) -> None:
    """Two workers that were started at different times see the same ticks."""
    cron, [first, *others] = Cron(expression, zone), around(moved)
    end = others[-1] + timedelta(hours=2)
    ticks = list(takewhile(lambda tick: tick <= end, cron.after(first)))
    for start in others:
        seen = list(takewhile(lambda tick: tick <= end, cron.after(start)))
        assert seen == [tick for tick in ticks if tick > start]


@every_move
@every_one
def test_backwards_gives_the_same_ticks_as_forwards(expression: str, zone: ZoneInfo, moved: str) -> None:
    """What is found to be missed is what would have come."""
    cron, [first, *others] = Cron(expression, zone), around(moved)
    ticks = list(takewhile(lambda tick: tick <= others[-1], cron.after(first)))
    for end in others:
        seen = list(takewhile(lambda tick: tick > first, cron.until(end)))
        assert seen[::-1] == [tick for tick in ticks if tick <= end]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "is empty"),
        ("0 2 * *", "it has 4 fields, and must have five"),
        ("0 0 2 * * *", "it has 6 fields, and must have five"),
        ("60 * * * *", "the minute is '60'; it takes 0 to 59"),
        ("0 24 * * *", "the hour is '24'; it takes 0 to 23"),
        ("0 0 0 * *", "the day-of-month is '0'; it takes 1 to 31"),
        ("0 0 1 13 *", "the month is '13'; it takes 1 to 12, or JAN to DEC"),
        ("0 0 * * FUNDAY", "the day-of-week is 'FUNDAY'; it takes 0 to 7"),
        ("*/0 * * * *", "the minute is '*/0'"),
        ("30-10 * * * *", "the minute is '30-10'"),
        ("-5 * * * *", "the minute is '-5'"),
        ("0 0 30 2 *", "no day is ever like that"),
        ("0 0 */15 * 1#2", "no day is ever like that"),
        ("@reboot", "the names are @annually, @daily"),
        ("0 2 * * *\x00", "NUL"),
        ("0 " * 200, "the limit is 256"),
    ],
)
def test_a_bad_expression_is_refused_with_what_is_wrong(expression: str, why: str) -> None:
    """Whoever mistyped sees the field, and what it takes."""
    with pytest.raises(InvalidInput) as refused:
        Cron(expression, UTC)
    assert why in str(refused.value)


@given(st.one_of(st.text(), st.lists(st.text("0123456789*/,-#LW", max_size=6), min_size=5, max_size=5).map(" ".join)))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    """No text makes anything but ticks or a refusal."""
    try:
        cron = Cron(text, BERLIN)
    except InvalidInput:
        return
    assert next(cron.after(datetime(2026, 1, 1, tzinfo=UTC))) > datetime(2026, 1, 1, tzinfo=UTC)


def test_a_program_without_a_schedule_loads_nothing_for_it() -> None:
    """Importing Holdfast stays quick for everybody else."""
    code = "import sys, holdfast; print(sorted({'cronsim', 'zoneinfo'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
