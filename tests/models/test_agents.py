"""An agent whose provider fails: answer, journal and what a watcher shows are one, and what was lost is told."""

from pathlib import Path

import pytest

from tests.chaos.fault_twins import TWINS
from tests.chaos.faults import TRIALS, Trial, play

_TOKENS = {"fifty": (26, 50), "calling": (1,)}
THIN = [one for one in TRIALS if one.fault.cut is None or one.fault.after in _TOKENS[one.answer]]


async def test_whatever_a_provider_does_the_answer_is_whole_and_its_cost_is_known() -> None:
    """Every fault, in the middle and at the end of an answer, and before calls."""
    assert await play(THIN, "memory://") == []


async def test_it_is_so_on_a_disk_too(tmp_path: Path) -> None:
    """A few of the same on SQLite: a cut of each kind."""
    some = [one for one in THIN if one.fault.after == 26 or one.fault.flaw == "half_call"]
    assert await play(some, f"sqlite:///{tmp_path / 'faults.db'}") == []


@pytest.mark.parametrize("name", TWINS)
async def test_a_broken_twin_is_caught(name: str) -> None:
    """Each check of these trials can fail, and says why."""
    twin = TWINS[name]
    with twin.broken():
        [said] = await play([twin.trial], "memory://")
    assert twin.says in said
    assert await play([twin.trial], "memory://") == []


def test_every_fault_is_tried_at_every_token() -> None:
    """The cross product has no hole: eight cuts after each of fifty tokens and before the first, of both providers."""
    cuts = {(one.provider, one.fault.cut, one.fault.after) for one in TRIALS if one.answer == "fifty" and one.fault.cut}
    assert len(cuts) == 2 * 8 * 51
    assert len(set(map(Trial.__str__, TRIALS))) == len(TRIALS)
