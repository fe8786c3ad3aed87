"""Process death: a program with every verb dies around each of its writes, calls and effects, and ends all the same."""

import random
from collections.abc import Iterator

import pytest

from holdfast.testing.killer import AtCall, AtPoint
from tests.chaos.kills import Stage, Stages, end_all, new_killer, orders, scratch


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    """Two places to die at, one for each core."""
    with scratch() as folder, new_killer() as one, new_killer() as other:
        yield Stage(one, folder / "1"), Stage(other, folder / "2")


def test_a_run_killed_before_or_after_any_write_or_inside_any_effect_ends_as_if_unbroken(stages: Stages) -> None:
    """Result and journal are those of an unbroken run; `once` happens once, keys stay, transactions are exact."""
    points, _ = stages[0].count(orders(1))
    trials = [[AtPoint(nth)] for nth in range(1, points + 1)]
    assert points > 80
    assert end_all(stages, orders(1), trials) >= 0.9 * points


def test_a_run_killed_at_any_file_call_ends_as_if_unbroken(stages: Stages) -> None:
    """A commit torn anywhere between its first byte and its sync is there as a whole or not at all."""
    _, calls = stages[0].count(orders(1))
    trials = [[AtCall(nth, "before")] for nth in range(1, calls + 1)]
    assert calls > 300
    assert end_all(stages, orders(1), trials) >= 0.9 * calls


@pytest.mark.parametrize("seed", [1, 2])
def test_runs_that_share_their_commits_survive_deaths_of_their_recoveries_too(stages: Stages, seed: int) -> None:
    """Group commit takes no neighbour's work along, and a recovery that dies is recovered from like any other."""
    chance = random.Random(seed)
    points, _ = stages[0].count(orders(3))
    deaths = 0
    for _ in range(5):
        # How many points there are depends on which commits were shared, so that a late one may not come.
        trials = [[AtPoint(chance.randint(1, points)) for _ in range(chance.randint(1, 3))] for _ in range(20)]
        deaths += end_all(stages, orders(3), trials)
        if deaths >= 20:
            return
    pytest.fail(f"only {deaths} deaths were died")
