"""Bells, and the words that come with them."""

import pytest

from holdfast.core.ids import Fence, RunId
from holdfast.store.bell import Bells
from holdfast.store.value import Granted, Queued

RUN, STEP, FENCE = RunId("a"), "0/call#1", Fence(3)
LATER = Queued(7)


@pytest.fixture
async def bells() -> Bells:
    """Bells of a process in which one step waits for a slot."""
    bells = Bells()
    bells.queued[RUN, STEP] = "limit"
    return bells


async def test_a_word_is_told_once_and_only_to_the_step_and_the_lease_that_it_is_for(bells: Bells) -> None:
    """Told twice, a step would go by what was true before."""
    bells.watch(RUN, entries=False)
    bells.tell((RUN, STEP, FENCE, LATER))
    assert bells.told(RUN, "0/other#1", FENCE) is None
    assert bells.told(RUN, STEP, Fence(4)) is None
    assert [bells.told(RUN, STEP, FENCE) for _ in range(2)] == [LATER, None]


async def test_a_slot_is_looked_for_and_not_taken_on_a_word(bells: Bells) -> None:
    """Whoever has one now may have lost it by the time it looks; and what was told before holds no more."""
    bells.watch(RUN, entries=False)
    bells.tell((RUN, STEP, FENCE, LATER))
    bells.tell((RUN, STEP, FENCE, Granted()))
    assert bells.told(RUN, STEP, FENCE) is None


@pytest.mark.parametrize("how", ["it does not wait here", "the listener left", "somebody else wrote"])
async def test_no_word_is_kept_for_those_who_are_not_there(bells: Bells, how: str) -> None:
    """They would be kept for ever."""
    bell = bells.watch(RUN, entries=False)
    if how == "it does not wait here":
        bells.queued.clear()
    bells.tell((RUN, STEP, FENCE, LATER))
    if how == "the listener left":
        bell.close()
    elif how == "somebody else wrote":
        bells.unsay(RUN)
    assert bells.told(RUN, STEP, FENCE) is None


async def test_whoever_a_word_is_for_is_woken(bells: Bells) -> None:
    """A word that nobody hears of is none."""
    bell = bells.watch(RUN, entries=False)
    bells.tell((RUN, STEP, FENCE, LATER))
    assert await bell.wait(None) is None
