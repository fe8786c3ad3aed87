"""Whoever watches sees every event once, whichever process dies."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.chaos.judge import Broken
from tests.chaos.watchers import hosted, play


def test_watchers_lose_nothing_and_see_nothing_twice_when_server_and_worker_are_killed(tmp_path: Path) -> None:
    """They leave and come again at random; every preview they hold ends in its entry."""
    with hosted(f"sqlite:///{tmp_path}/runs.db", workers=1) as hosts:
        watchers = asyncio.run(play(hosts, random.Random(5), clients=6, runs=2, steps=8, kills=2))
    assert hosts.kills == 2
    assert sum(watcher.reconnects for watcher in watchers) > 50


def test_a_server_that_sends_on_only_what_it_hears_is_caught(tmp_path: Path) -> None:
    """The twin: whoever was away for a moment misses what came then."""
    with hosted(f"sqlite:///{tmp_path}/runs.db", workers=1, twin="live_only") as hosts, pytest.raises(Broken):
        asyncio.run(play(hosts, random.Random(5), clients=6, runs=2, steps=8, kills=0))
