"""Posts from one process race what runs of another do: none is lost, and every sender is told the truth."""

import asyncio

import pytest

from tests.chaos import races
from tests.chaos.judge import Broken
from tests.chaos.races import KINDS, race
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow


def test_whoever_comes_first_nothing_is_lost_and_everybody_is_told_the_truth(site: Site) -> None:
    """A few rounds of each kind: parks, ends, cancels, expiries and pauses."""
    counts = asyncio.run(race(site, KINDS, 15, seed=1))
    assert [counts[kind] for kind in KINDS] == [15] * len(KINDS)


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "twin", "says"),
    [
        ("signal_park", "blind", "a post is lost"),
        ("signal_finish", "boastful", r"left is \[\], not \['signal'\]"),
        ("cancel_park", "blind", "a post is lost"),
        ("cancel_finish", "deaf", "status is completed, not cancelled"),
        ("cancel_cancel", "forgetful", r"CancelReceived is 2, not 1|left is \['cancel'\], not \[\]"),
        ("answer_expiry", "hasty", r"value is \[False, True\], not \[True, False\]"),
        ("resume_pause", "blind", "a post is lost"),
    ],
)
def test_the_check_of_each_kind_catches_a_broken_twin(
    site: Site, kind: str, twin: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twins park without another look, end without one, forget, expire in haste, or promise too much."""
    monkeypatch.setattr(races, "PATIENCE_SECONDS", 5.0)
    with pytest.raises(Broken, match=says):
        asyncio.run(race(site, [kind], 3000, seed=1, twin=twin))
