"""The clock that moves when told."""

from datetime import timedelta

import pytest

from holdfast.store.clock import system_clock
from holdfast.testing import MovingClock


def test_it_stands_until_it_is_told() -> None:
    """Time is an argument: nothing passes by itself."""
    clock = MovingClock(1_000_000)
    assert (clock(), clock()) == (1_000_000, 1_000_000)
    assert clock.advance(1.5) == 2_500_000
    assert clock.advance(timedelta(milliseconds=1)) == 2_501_000
    assert clock() == 2_501_000


def test_it_does_not_turn_round() -> None:
    """A store's clock may stand still, but does not go back."""
    with pytest.raises(ValueError, match="does not move back"):
        MovingClock().advance(-1)


def test_the_machines_clock_is_in_microseconds() -> None:
    """Stored times are integer µs UTC."""
    assert 1_700_000_000_000_000 < system_clock() < 9_000_000_000_000_000
