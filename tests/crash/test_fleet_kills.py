"""A fleet whose workers are killed and replaced all the time ends every run, and does nothing twice."""

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.judge import Broken
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow
RUNS = 120


def test_a_fleet_that_loses_workers_ends_every_run_and_repeats_no_effect(site: Site) -> None:
    """The ledger outside the store is the judge."""
    fleet = Fleet(site, seed=1)
    for part in range(10):
        survived = fleet.survive(RUNS, first=part * RUNS, kill_seconds=0.2)
        assert len(survived.stories) == RUNS
        # A quick machine may have done everything before anybody died.
        if survived.kills >= 1:
            return
    pytest.fail("nobody died")


def test_workers_that_act_before_they_write_their_intent_are_caught(site: Site) -> None:
    """The twin: after a death between an effect and its record nobody knows that it may have happened."""
    with pytest.raises(Broken, match="its effect happened 2 times"):
        _survive_long(Fleet(site, seed=1, twin="no_intent"))


def _survive_long(fleet: Fleet) -> None:
    for part in range(10):
        try:
            fleet.survive(RUNS, first=part * RUNS, kill_seconds=0.05)
        except Broken as broken:
            # Without intents a run that dies again and again shows no progress: that is not what is looked for.
            if "is quarantined: no_progress" not in str(broken):
                raise
