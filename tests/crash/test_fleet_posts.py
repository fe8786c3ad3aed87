"""Posts from one process race parks and posts of another: every one arrives, once, and wakes who has not seen it."""

import asyncio

import pytest

from tests.chaos.judge import Broken
from tests.chaos.posts import cross, race
from tests.chaos.sites import Site, make_store

pytestmark = pytest.mark.slow


def test_no_post_that_races_a_park_is_lost(site: Site) -> None:
    """Whichever comes first, the run takes the post: it does not park, or it is woken."""
    counts = asyncio.run(race(site, 200, seed=1))
    assert min(counts["posted_first"], counts["parked_first"]) > 0


def test_a_park_that_does_not_look_at_the_inbox_again_is_caught(site: Site) -> None:
    """The twin: it takes as seen what came since it looked."""
    with pytest.raises(Broken, match="a clerk lost"):
        asyncio.run(race(site, 200, seed=1, twin="blind"))


def test_batches_that_post_to_each_others_runs_neither_deadlock_nor_lose_any(site: Site) -> None:
    """Two processes, each with runs that post to all runs at one time."""
    assert asyncio.run(cross(site, 20, seed=1)) == 2 * 20 * (6 * 3 + 1)


def test_posts_that_are_numbered_before_they_wait_are_caught(site: Site) -> None:
    """The twin: two posts get one number."""
    asyncio.run(make_store(site.address))
    twin = site.unlock_posts()
    with pytest.raises(Broken, match=r"a clerk raised|are there"):
        asyncio.run(cross(site, 40, seed=1, twin=twin))


@pytest.mark.parametrize("site", ["postgresql"], indirect=True)
def test_commits_that_lock_in_any_order_are_caught(site: Site) -> None:
    """The twin: its deadlocks reach whoever commits."""
    with pytest.raises(Broken, match=r"a clerk raised.*deadlock"):
        asyncio.run(cross(site, 40, seed=1, twin="disorder"))
