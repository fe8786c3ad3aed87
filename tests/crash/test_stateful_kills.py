"""Process death in a conversation that the provider keeps: what it made stays made once, and is found again."""

from collections.abc import Iterator

import pytest

from holdfast.testing.killer import AtPoint, Killer
from tests.chaos.judge import Broken
from tests.chaos.kept_twins import KILL_TWINS
from tests.chaos.kills import scratch
from tests.chaos.stateful_kills import KINDS, Shelf, new_killer

_DEATHS = 4
"""The campaign comes to every point, with both providers and on both databases."""
_NAMED = ("asks POST", "was answered POST", "event 2")
_CAUGHT = {
    "forget_ids": (AtPoint(1, "event 5"), "doubted although the id had come"),
    "create_again": (AtPoint(1, "event 5"), "4 were made for 3 messages, with 0 doubts"),
    "never_doubt": (AtPoint(1, "was answered POST"), "4 were made for 3 messages, with 0 doubts"),
    "pay_nothing": (AtPoint(1, "was answered POST"), "set nothing aside"),
}


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """What these processes die by."""
    with new_killer() as killer:
        yield killer


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_whose_process_is_killed_is_that_of_an_unbroken_one(killer: Killer, kind: str) -> None:
    """One transcript, each generation made once unless a doubt is shown, all charged, no fork."""
    with scratch() as folder, Shelf(killer, folder, kind) as shelf:
        points, unbroken = shelf.unbroken()
        assert points > 80
        stride = points // (_DEATHS + 1)
        for nth in range(stride // 2, points - stride, stride):
            shelf.trial([AtPoint(nth)], unbroken)
        doubts = [shelf.trial([AtPoint(1, name)], unbroken).doubts for name in _NAMED]
    # Whoever dies before the id is on disk leaves a doubt, and whoever dies behind it does not.
    assert doubts == [1, 1, 0]


@pytest.mark.parametrize("twin", _CAUGHT)
def test_a_broken_twin_is_caught(killer: Killer, twin: str) -> None:
    """An id that is told to nobody, a second creation, a doubt that nobody is shown, and what costs nothing."""
    death, says = _CAUGHT[twin]
    with scratch() as folder, Shelf(killer, folder) as sound:
        _, unbroken = sound.unbroken()
        sound.twin = twin
        with pytest.raises(Broken, match=says):
            sound.trial([death], unbroken)


def test_every_twin_is_played() -> None:
    """None of them is forgotten here."""
    assert KILL_TWINS.keys() == {"", *_CAUGHT}
