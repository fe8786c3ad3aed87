"""Whoever watches sees every event once, whichever process dies."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.browsing import Browser
from tests.chaos.hosts import hosted
from tests.chaos.judge import Broken
from tests.chaos.watchers import Size, play

SMALL = Size(clients=6, runs=2, steps=12, stays=(3,), kills=0)


@pytest.mark.slow
def test_watchers_lose_nothing_and_see_nothing_twice_when_server_and_worker_are_killed(tmp_path: Path) -> None:
    """They leave and come again at random, a browser among them; every preview they hold ends in its entry."""
    with hosted(f"sqlite:///{tmp_path}/runs.db", workers=1) as hosts:
        watchers = asyncio.run(play(hosts, random.Random(5), replace(SMALL, kills=2)))
    assert (hosts.kills, hosts.server_kills) == (2, 1)
    assert sum(watcher.reconnects for watcher in watchers) > 20
    [browser] = [watcher for watcher in watchers if isinstance(watcher, Browser)]
    assert browser.left > 0


def test_a_server_that_sends_on_only_what_it_hears_is_caught(tmp_path: Path) -> None:
    """The twin: whoever was away for a moment misses what came then."""
    with hosted(f"sqlite:///{tmp_path}/runs.db", workers=1, twin="live_only") as hosts, pytest.raises(Broken):
        asyncio.run(play(hosts, random.Random(5), SMALL, browser=False))


@pytest.mark.slow
def test_a_server_that_gives_words_no_id_is_caught_by_the_browser_alone(tmp_path: Path) -> None:
    """The twin: EventSource keeps the id of the entry before and gets words again; readers of lines notice nothing."""
    with hosted(f"sqlite:///{tmp_path}/runs.db", workers=1, twin="words_without_id") as hosts:
        asyncio.run(play(hosts, random.Random(5), SMALL, browser=False))
        with pytest.raises(Broken, match="is number"):
            asyncio.run(play(hosts, random.Random(5), SMALL))
