"""Process death inside a commit: a program dies at its file calls, and ends all the same."""

from collections.abc import Iterator

import pytest

from holdfast.testing.killer import AtCall
from tests.chaos.kills import Stage, Stages, end_all, new_killer, orders, scratch

_STRIDE = 7
"""Neighbouring calls of a commit repeat each other, and the campaign of kills comes to all of them."""


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    """Two places to die at, one for each core."""
    with scratch() as folder, new_killer() as one, new_killer() as other:
        yield Stage(one, folder / "1"), Stage(other, folder / "2")


def test_a_run_killed_at_a_file_call_ends_as_if_unbroken(stages: Stages) -> None:
    """A commit torn anywhere between its first byte and its sync is there as a whole or not at all."""
    _, calls = stages[0].count(orders(1))
    trials = [[AtCall(nth, "before")] for nth in range(1, calls + 1, _STRIDE)]
    assert calls > 300
    assert end_all(stages, orders(1), trials) >= 0.9 * len(trials)
