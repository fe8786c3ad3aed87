"""A database that crashes under load and comes back loses nothing that it acknowledged, and no caller."""

import random

import pytest

from tests.chaos.judge import Broken
from tests.chaos.restarts import Stage, staged

pytestmark = pytest.mark.slow


def play(stage: Stage, times: int) -> None:
    """Crash the server so often."""
    chance = random.Random(7)
    for _ in range(times):
        stage.play(chance)


def test_tales_under_way_in_a_crash_of_the_server_end_as_if_it_had_not_been() -> None:
    """No entry is missing or there twice, no effect happens twice, and every caller gets the outcome."""
    with staged() as stage:
        play(stage, 2)


def test_a_server_that_acknowledges_before_it_writes_is_caught() -> None:
    """The twin: what it had said was written is gone after the crash, unless it was lucky; not for ever."""
    said = r"NotFound|Damaged|is gone|was told to be|happened 2 times"
    with staged(weak=True) as stage, pytest.raises(Broken, match=said):
        play(stage, 8)
