"""A limit says what it allows, or is refused where it is declared."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import limits
from holdfast.core.errors import InvalidInput
from holdfast.core.limit import Limit, look_again_at


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"at_once": 0},
        {"at_once": -1},
        {"at_once": 1.5},
        {"at_once": True},
        {"at_once": limits.SLOTS + 1},
        {"rate": 0},
        {"rate": -2},
        {"rate": "2"},
        {"rate": True},
        {"rate": float("nan")},
        {"rate": float("inf")},
        {"rate": limits.STARTS + 1},
        {"rate": 1, "per": 0},
        {"rate": 1, "per": -1.0},
        {"rate": 1, "per": "1s"},
        {"rate": 1e-12, "per": 1e9},
        {"at_once": 1, "priority": 0.5},
        {"at_once": 1, "priority": limits.PRIORITY + 1},
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_where_it_is_declared(wrong: dict[str, Any]) -> None:
    """A wrong number fails at import, not when the limit is first met."""
    with pytest.raises(InvalidInput, match="Limit"):
        Limit("arxiv", **wrong)


@pytest.mark.parametrize("name", ["", "x" * (limits.NAME_BYTES + 1), "a\0b", "\ud800", None, 5])
def test_a_name_that_cannot_be_shared_is_refused(name: Any) -> None:
    """Every worker must mean the same by it, whatever the store."""
    with pytest.raises(InvalidInput, match="Limit"):
        Limit(name, at_once=1)


def test_another_priority_is_the_same_limit() -> None:
    """Only the order of those who wait differs."""
    limit = Limit("arxiv", at_once=5, rate=2, per=timedelta(seconds=3))
    urgent = limit.with_priority(7)
    assert (urgent.priority, limit.priority) == (7, 0)
    assert urgent.with_priority(0) == limit
    with pytest.raises(InvalidInput):
        limit.with_priority(10**9)


@pytest.mark.parametrize(
    ("rate", "per", "allows"),
    [
        (2, 1.0, (2, 1_000_000)),
        (1, timedelta(minutes=1), (1, 60_000_000)),
        (0.5, 1.0, (1, 2_000_000)),
        (2.5, 1.0, (2, 800_000)),
        (1 / 3, 1, (1, 3_000_000)),
    ],
)
def test_a_rate_that_is_no_whole_number_is_the_same_rate_over_another_span(
    rate: float, per: float | timedelta, allows: tuple[int, int]
) -> None:
    """Starts are whole, so the span is what gives way."""
    limit = Limit("arxiv", rate=rate, per=per)
    assert (limit.starts, limit.span) == allows


@given(st.floats(1e-3, limits.STARTS), st.floats(1e-3, 1e6))
def test_a_span_never_allows_more_than_the_rate(rate: float, per: float) -> None:
    """Rounding is on the careful side, and by less than a start."""
    limit = Limit("arxiv", rate=rate, per=per)
    assert limit.starts is not None
    assert 1 <= limit.starts <= max(1.0, rate)
    assert limit.starts / (limit.span / 1e6) <= rate / per * (1 + 1e-9)


def test_who_waits_looks_by_itself_before_long() -> None:
    """Hints are hints: whoever is next looks every second or when the rate allows it, the others now and then."""
    assert look_again_at(0, first=True, start_at=None) == 1_000_000
    assert look_again_at(0, first=True, start_at=250_000) == 250_000
    assert look_again_at(0, first=True, start_at=3_600_000_000) == 5_000_000
    assert look_again_at(0, first=False, start_at=250_000) == 5_000_000
