"""A fleet whose workers are killed and replaced all the time ends every run, and does nothing twice."""

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.judge import Broken
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow
RUNS = 120


def test_a_fleet_that_loses_workers_ends_every_run_and_repeats_no_effect(site: Site) -> None:
    """The ledger outside the store is the judge."""
    survived = Fleet(site, seed=1).survive(RUNS, kill_seconds=0.2)
    assert len(survived.stories) == RUNS
    assert survived.kills >= 1


def test_workers_that_act_before_they_write_their_intent_are_caught(site: Site) -> None:
    """The twin: after a death between an effect and its record nobody knows that it may have happened."""
    with pytest.raises(Broken, match="its effect happened 2 times"):
        Fleet(site, seed=1, twin="no_intent").survive(RUNS, kill_seconds=0.05)
