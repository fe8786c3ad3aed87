"""Negative controls: for each promise a twin that breaks it, which the very checks of the other tests must catch."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.killer import Killer
from tests.chaos.controls import CONTROLS, Control
from tests.chaos.kills import new_killer, scratch

SEEDS = range(2)
every_control = pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.twin)


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """The server of these trials."""
    with new_killer() as killer:
        yield killer


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where a trial is played."""
    with scratch() as folder:
        yield folder / "trial"


@every_control
def test_the_twin_is_caught_whatever_the_seed(killer: Killer, folder: Path, control: Control) -> None:
    """A check that lets a broken twin pass would let a broken Holdfast pass."""
    for seed in SEEDS:
        assert re.search(control.says, control.caught(killer, folder, seed) or ""), f"seed {seed}"


@every_control
def test_holdfast_is_not_accused_by_the_same_trial(killer: Killer, folder: Path, control: Control) -> None:
    """A check that accuses everybody catches nobody."""
    for seed in SEEDS:
        assert control.accused(killer, folder, seed) is None, f"seed {seed}"
