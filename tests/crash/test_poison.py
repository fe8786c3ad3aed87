"""Runs that kill their worker again and again, beside runs that do nobody harm."""

from collections.abc import Iterator

import pytest

from holdfast.core import limits
from holdfast.testing.killer import Killer
from tests.chaos.judge import Broken
from tests.chaos.poison import Loop, new_killer
from tests.chaos.sites import Site, file_site

_HEALTHY = 40


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Whoever starts the workers."""
    with new_killer() as killer:
        yield killer


def test_only_the_runs_that_kill_are_quarantined_and_a_retry_mends_them(killer: Killer, site: Site) -> None:
    """P5: poison is set aside with its reason and last step, holds nobody up, and goes on when its cause is gone."""
    survived = Loop(killer, site).survive(_HEALTHY, 1)
    assert survived.deaths > limits.STALLS


def test_a_worker_that_drives_all_suspects_at_once_is_caught(killer: Killer) -> None:
    """The twin: the neighbours of what kills are charged for each of its deaths, and quarantined with it."""
    with file_site() as site, pytest.raises(Broken, match="healthy is quarantined"):
        Loop(killer, site, twin="charges_all").survive(_HEALTHY, 1)
