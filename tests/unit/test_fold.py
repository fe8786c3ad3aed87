"""A run's state is a fold of its entries, and what cannot follow is refused."""

from typing import Any

import pytest
from msgspec.structs import force_setattr

from holdfast.core import entry as e
from holdfast.core.errors import Damaged
from holdfast.core.fold import RunState, fold
from holdfast.core.status import Effect, Status
from tests.unit.facts import AT, FULL, LEAST, OTHER, RUN, SEED, completed, doubted, failed, intent, resolved, resumed

STARTED = LEAST[0]


def state_after(*entries: e.Entry) -> RunState:
    """Fold entries, numbered in order."""
    state = RunState()
    for seq, entry in enumerate(entries, start=1):
        state = fold(state, placed(entry, seq))
    return state


def placed(entry: e.Entry, seq: int) -> e.Entry:
    """Return the entry as if it had been read from that place."""
    copy: e.Entry = type(entry)(**{name: getattr(entry, name) for name in entry.__struct_fields__})
    for name, value in (("run", RUN), ("seq", seq), ("at", AT + seq)):
        force_setattr(copy, name, value)
    return copy


def test_a_started_run_is_queued_under_its_first_owner() -> None:
    """The first entry says who the run is."""
    state = state_after(STARTED)
    assert (state.seq, state.status, state.seed, state.generation) == (1, Status.QUEUED, SEED, 0)
    assert (state.fence, state.attempt, state.open, state.finished) == (1, 1, {}, None)


def test_a_resume_raises_the_fence_and_ends_the_rest() -> None:
    """A run that was taken up again is no longer where it rested."""
    parked = e.RunParked(status=Status.WAITING, reason="retry")
    state = state_after(STARTED, parked)
    assert (state.status, state.reason) == (Status.WAITING, "retry")
    state = state_after(STARTED, parked, e.RunResumed(worker=OTHER, fence=4, attempt=3, why="claimed"))
    assert (state.status, state.reason, state.fence, state.attempt) == (Status.QUEUED, "", 4, 3)


def test_an_intent_opens_a_step_and_an_outcome_closes_it() -> None:
    """What is open is what has an intent and no outcome."""
    opened = state_after(STARTED, intent(timeout=5))
    step = opened.open["0/pay#1"]
    assert (step.effect, step.attempt, step.started_at, step.timeout, step.doubted) == (
        Effect.ONCE,
        1,
        AT + 2,
        5,
        False,
    )
    for closing in (completed(), failed(), resolved("done")):
        assert state_after(STARTED, intent(), closing).open == {}
    assert state_after(STARTED, intent(), completed()).steps_done == 1


def test_a_doubted_step_stays_open() -> None:
    """Doubt is a visible state until somebody ends it."""
    state = state_after(STARTED, intent(), doubted())
    assert state.open["0/pay#1"].doubted


def test_a_later_attempt_may_open_its_step_again() -> None:
    """A keyed step that was interrupted is sent again under the next attempt."""
    assert state_after(STARTED, intent(), intent(attempt=2)).open["0/pay#1"].attempt == 2


def test_a_generation_follows_the_one_before() -> None:
    """`continue_as` raises the generation by one."""
    assert state_after(STARTED, e.RunContinued(generation=1), e.RunContinued(generation=2)).generation == 2


def test_the_ending_is_kept() -> None:
    """How a run ended is part of its state."""
    state = state_after(STARTED, FULL[-1])
    assert (state.status, state.reason) == (Status.FAILED, "ValueError: no é")
    assert state.finished is not None


@pytest.mark.parametrize(
    "entry", [entry for entry in FULL if not isinstance(entry, e.RunStarted)], ids=lambda entry: entry.type
)
def test_every_kind_can_be_folded(entry: e.Entry) -> None:
    """No kind falls through: each has its place after the ones it needs."""
    before: list[e.Entry] = [STARTED]
    if isinstance(entry, e.StepDoubted | e.StepResolved):
        before.append(intent())
    assert state_after(*before, entry).seq == len(before) + 1


ILLEGAL: list[tuple[str, list[e.Entry], str]] = [
    ("begins otherwise", [LEAST[4]], "cannot be entry 1"),
    ("begins twice", [STARTED, STARTED], "cannot be entry 2"),
    ("goes on after its end", [STARTED, LEAST[-1], LEAST[4]], "after the run's ending"),
    ("ends twice", [STARTED, LEAST[-1], LEAST[-1]], "after the run's ending"),
    ("ends in a rest", [STARTED, e.RunFinished(status=Status.WAITING)], "not an ending"),
    ("ends running", [STARTED, e.RunFinished(status=Status.RUNNING)], "not an ending"),
    ("rests at an end", [STARTED, e.RunParked(status=Status.COMPLETED, reason="r")], "not a rest"),
    ("rests running", [STARTED, e.RunParked(status=Status.RUNNING, reason="r")], "not a rest"),
    ("opens twice", [STARTED, intent(), intent()], "already open"),
    ("opens an earlier attempt", [STARTED, intent(attempt=2), intent(attempt=1)], "already open"),
    ("doubts what is not open", [STARTED, doubted()], "is not open"),
    ("resolves what is not open", [STARTED, resolved("done")], "is not open"),
    ("doubts what is closed", [STARTED, intent(), completed(), doubted()], "is not open"),
    ("resolves twice", [STARTED, intent(), doubted(), resolved("done"), resolved("done")], "is not open"),
    ("resumes under its own fence", [STARTED, resumed(1)], "does not follow 1"),
    ("resumes under an older fence", [STARTED, resumed(5), resumed(4)], "does not follow 5"),
    ("skips a generation", [STARTED, e.RunContinued(generation=2)], "out of order"),
    ("repeats a generation", [STARTED, e.RunContinued(generation=1), e.RunContinued(generation=1)], "out of order"),
]


@pytest.mark.parametrize(("entries", "what"), [case[1:] for case in ILLEGAL], ids=[case[0] for case in ILLEGAL])
def test_what_cannot_follow_is_refused_by_its_place(entries: list[e.Entry], what: str) -> None:
    """A history that no run could have had is damage, named by run and entry."""
    state_after(*entries[:-1])
    with pytest.raises(Damaged, match=what) as damaged:
        state_after(*entries)
    assert (damaged.value.run, damaged.value.seq) == (RUN, len(entries))


@pytest.mark.parametrize("seq", [0, 1, 3, 9])
def test_a_gap_or_a_repeat_is_refused(seq: int) -> None:
    """Entries are numbered without a hole."""
    state = state_after(STARTED)
    with pytest.raises(Damaged, match="follows entry 1"):
        fold(state, placed(LEAST[4], seq))


def test_a_foreign_class_is_not_an_entry() -> None:
    """The union is closed."""

    class Invented(e.Entry, frozen=True, kw_only=True):
        """Not one of ours."""

    entry: Any = placed(Invented(), 2)
    with pytest.raises(Damaged, match="Invented is not an entry"):
        fold(state_after(STARTED), entry)
