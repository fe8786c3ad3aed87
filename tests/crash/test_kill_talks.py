"""Process death in a conversation: wherever its worker dies, what was said is what would have been said anyway."""

from collections.abc import Iterator

import pytest

from holdfast.testing.killer import AtPoint
from tests.chaos.kills import scratch
from tests.chaos.parlour import Parlour, new_killer

TURNS = (2, 3, 5, 6)
"""Tools of every effect beside each other, an approval with other arguments, a word while a tool runs, a sub-agent."""
_DEATHS = 10
"""The campaign comes to every point of all ten turns, on both databases."""


@pytest.fixture(scope="module")
def parlour() -> Iterator[Parlour]:
    """Where conversations are held."""
    with scratch() as folder, new_killer() as killer, Parlour(killer, folder / "1") as parlour:
        yield parlour


def test_a_conversation_whose_worker_is_killed_is_that_of_an_unbroken_one(parlour: Parlour) -> None:
    """One history, byte-equal requests, `once` tools at most once, and onlookers who reconnect miss nothing."""
    points, unbroken = parlour.unbroken(TURNS)
    assert points > 100
    stride = points // (_DEATHS + 1)
    talks = [
        parlour.trial([AtPoint(nth)], unbroken, turns=TURNS, seed=str(nth))
        for nth in range(stride // 2, points - stride, stride)
    ]
    assert sum(len(talk.deaths) for talk in talks) >= _DEATHS - 1
