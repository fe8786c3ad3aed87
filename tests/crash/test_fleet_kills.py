"""A fleet whose workers are killed and replaced all the time ends every run, and does nothing twice."""

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.judge import Broken
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow
RUNS = 60
MOST = 6
"""How many workers die: to start another takes as long as to see dozens of runs to their ends."""


def test_a_fleet_that_loses_workers_ends_every_run_and_repeats_no_effect(site: Site) -> None:
    """The ledger outside the store is the judge."""
    fleet = Fleet(site, seed=1)
    for part in range(10):
        survived = fleet.survive(RUNS, first=part * RUNS, kill_seconds=0.2, most=MOST)
        assert len(survived.stories) == RUNS
        # A quick machine may have done everything before anybody died.
        if survived.kills >= 1:
            return
    pytest.fail("nobody died")


def test_workers_that_act_before_they_write_their_intent_are_caught(site: Site) -> None:
    """The twin: after a death between an effect and its record nobody knows that it may have happened."""
    with pytest.raises(Broken, match=r"its effect happened \d times"):
        _survive_long(Fleet(site, seed=1, twin="no_intent"))


def _survive_long(fleet: Fleet) -> None:
    for part in range(10):
        # The first to die does so between the two, if it has anything to do. So few deaths quarantine nobody.
        fleet.survive(RUNS, first=part * RUNS, kill_seconds=0.05, most=3)
