"""When to try again is arithmetic: bounded, jittered, and without a clock."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import Retry, capped_retry_after, seconds


def test_the_wait_doubles_up_to_its_most() -> None:
    """Half of the wait is fixed and half by chance."""
    retry = Retry(attempts=9, first=1.0, factor=2.0, most=10.0)
    assert [retry.delay_seconds(attempt, 0.0) for attempt in range(1, 7)] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert [retry.delay_seconds(attempt, 0.5) for attempt in range(1, 7)] == [0.75, 1.5, 3.0, 6.0, 7.5, 7.5]


@given(
    st.floats(0, 1e6), st.floats(1, 1e6), st.floats(0, 1e6), st.integers(1, 10**9), st.floats(0, 1, exclude_max=True)
)
def test_a_wait_is_never_longer_than_the_most_nor_negative(
    first: float, factor: float, most: float, attempt: int, jitter: float
) -> None:
    """Whatever the attempt, the arithmetic neither overflows nor leaves its bounds."""
    delay = Retry(first=first, factor=factor, most=most).delay_seconds(attempt, jitter)
    assert 0 <= delay <= most
    assert first or delay == 0


def test_only_so_many_attempts_and_only_for_what_is_named() -> None:
    """`attempts` counts the first one; `on` narrows what is worth another."""
    every, narrow = Retry(attempts=3), Retry(attempts=3, on=(ConnectionError, KeyError))
    assert [every.wants(ValueError(), attempt) for attempt in (1, 2, 3, 4)] == [True, True, False, False]
    assert narrow.wants(ConnectionResetError(), 1)
    assert not narrow.wants(ValueError(), 1)
    assert not every.wants(KeyboardInterrupt(), 1)
    assert not Retry(attempts=1).wants(ValueError(), 1)
    assert not Retry(on=()).wants(ValueError(), 1)


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"factor": 0.5}, {"first": -1.0}, {"most": -1.0}, {"first": timedelta(-1)}]
)
def test_a_policy_that_makes_no_sense_is_refused_where_it_is_declared(wrong: dict) -> None:
    """A wrong number fails at import, not at the first failure in production."""
    with pytest.raises(ValueError, match="Retry"):
        Retry(**wrong)


def test_durations_are_seconds_or_timedeltas() -> None:
    """Both ways of writing a duration mean the same."""
    assert Retry(first=timedelta(seconds=2), most=timedelta(minutes=1)).delay_seconds(1, 0.0) == 1.0
    assert (seconds(90), seconds(timedelta(minutes=1.5)), seconds(0.25)) == (90.0, 90.0, 0.25)


def test_retry_after_is_obeyed_up_to_a_cap() -> None:
    """A provider can slow a run down, not stop it."""
    assert [capped_retry_after(asked) for asked in (-5.0, 0.0, 12.5, 1e9)] == [0.0, 0.0, 12.5, 300.0]
    assert capped_retry_after(50.0, cap_seconds=10.0) == 10.0
