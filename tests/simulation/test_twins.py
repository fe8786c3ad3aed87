"""Each check of the simulation has a broken twin of Holdfast that it catches."""

import re

import pytest

from tests.simulation.judge import Broken
from tests.simulation.stage import Play
from tests.simulation.twins import TWINS

_MOST_SEEDS = 400


@pytest.mark.parametrize("name", TWINS)
def test_a_broken_twin_is_caught(name: str) -> None:
    """By what it breaks, among seeds that Holdfast itself survives."""
    twin, said = TWINS[name], list[str]()
    for number in range(_MOST_SEEDS):
        seed = f"twin/{number}"
        try:
            with twin.engine():
                Play(seed, store=twin.store, wire=twin.wire).run()
        except Broken as broken:
            said.append(str(broken))
            if re.search(twin.says, said[-1]):
                Play(seed).run()
                return
    pytest.fail(f"not caught; it was said: {said[:3]}")
