"""Process death in a loop of a user's own: wherever it dies, it goes on with what it saved, and acts once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.killer import Killer
from tests.chaos import contender
from tests.chaos.judge import Broken
from tests.chaos.kills import scratch
from tests.chaos.loops import Loops, Unbroken, linear, new_killer

_DEATHS = 12
"""The campaign comes to every point, on both databases."""


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """A server for the trials."""
    with new_killer() as killer:
        yield killer


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """In memory."""
    with scratch() as folder:
        yield folder


def test_a_loop_that_is_killed_goes_on_with_what_it_saved(killer: Killer, folder: Path) -> None:
    """No save that was acknowledged is lost, no effect happens twice, and each message is stored once."""
    loops = Loops(killer, folder / "sound")
    unbroken = loops.unbroken()
    points = unbroken[0]
    assert points > 60
    assert linear(unbroken[2], unbroken[1]) is None
    deaths = [loops.trial((nth,), unbroken) for nth in range(1, points, max(1, points // _DEATHS))]
    assert sum(deaths) >= _DEATHS
    assert loops.trial((points // 2, points // 3, points // 4), unbroken) == 3


@pytest.mark.parametrize(
    ("twin", "says"),
    [
        ("no_intent", "happened 2 times"),
        ("early", "had been acknowledged: it is lost"),
        ("forgets", "happened 2 times"),
        ("whole", "bytes were saved"),
    ],
)
def test_a_broken_twin_is_caught(killer: Killer, folder: Path, twin: str, says: str) -> None:
    """A check that cannot fail proves nothing."""
    wanted = Loops(killer, folder / "compared").unbroken()
    loops = Loops(killer, folder / twin, twin=twin)
    if twin == "whole":
        unbroken = loops.unbroken()
        assert says in (linear(unbroken[2], unbroken[1]) or "")
        return
    with pytest.raises(Broken, match=says):
        _die_in_the_middle(loops, wanted)


def _die_in_the_middle(loops: Loops, wanted: Unbroken) -> None:
    for nth in range(wanted[0] // 4, wanted[0] // 2):
        loops.trial((nth,), wanted)


def test_of_many_that_want_one_checkpoint_one_has_it_at_a_time(tmp_path: Path) -> None:
    """Some of them die with it; every word that was acknowledged is there, in order, and nobody is robbed."""
    address = f"sqlite:///{tmp_path / 'store.db'}"
    came = contender.play(address, tmp_path, seed="1", processes=3, rounds=4)
    assert came["said"] >= 4
    assert came["refused"] >= 1


def test_a_twin_that_takes_what_another_has_is_caught(tmp_path: Path) -> None:
    """The check for one owner can fail."""
    address = f"sqlite:///{tmp_path / 'store.db'}"
    with pytest.raises(AssertionError, match=r"two had it at once|was robbed"):
        contender.play(address, tmp_path, seed="1", processes=2, rounds=2, twin="impatient")
