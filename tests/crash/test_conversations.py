"""Two who send and two who answer race on conversations and are killed: the turns are still one sequence."""

import asyncio

import pytest

from tests.chaos import conversations
from tests.chaos.conversations import converse
from tests.chaos.judge import Broken
from tests.chaos.sites import Site

pytestmark = pytest.mark.slow


def test_turns_are_taken_one_at_a_time_and_no_message_is_lost_or_answered_twice(site: Site) -> None:
    """A few conversations, with every way to send, while processes die."""
    counts = asyncio.run(converse(site, 3, seed=1))
    assert counts["rounds"] == 3


@pytest.mark.parametrize("site", ["sqlite"], indirect=True)
def test_turns_that_do_not_wait_for_each_other_are_caught(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a turn is active as soon as it is created, and its commits match nothing."""
    monkeypatch.setattr(conversations, "PATIENCE_SECONDS", 10.0)
    with pytest.raises(Broken, match="two turns at once"):
        asyncio.run(converse(site, 6, seed=1, twin="hasty", kill=False))
