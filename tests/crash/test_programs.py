"""Generated programs on real workers that are killed come to what a model of them says."""

import asyncio
import re

import pytest

from tests.chaos.programs import survive
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow
SEEDS = [f"test/{number}" for number in range(12)]
FATAL = (2, 12)


def test_programs_come_to_what_the_model_says_whoever_dies(site: Site) -> None:
    """Results, endings and effects, by a ledger outside the store."""
    survived = asyncio.run(survive(site, SEEDS, kill_seconds=0.5, fatal=FATAL))
    assert survived.broken == []
    assert survived.kills > 0
    assert survived.verbs > len(SEEDS)


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("twin", "says"), [("no_intent", "happened 2 times"), ("key_per_attempt", "was given more than one key")]
)
def test_workers_that_break_a_policy_are_caught(site: Site, twin: str, says: str) -> None:
    """The twins: effects before their intents, and another key for another attempt."""
    said: list[str] = []
    for part in range(10):
        seeds = [f"twin/{part}/{number}" for number in range(16)]
        said += asyncio.run(survive(site, seeds, twin=twin, kill_seconds=0.5, fatal=FATAL)).broken
        if any(re.search(says, each) for each in said):
            return
    pytest.fail(f"not caught: {said[:3]}")
