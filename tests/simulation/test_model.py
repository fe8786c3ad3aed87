"""The model knows what a program comes to without running it, and what it did not come to."""

import re
from typing import Any

import pytest
from msgspec.structs import force_setattr

from holdfast import events as e
from holdfast.core.codec import NULL
from holdfast.core.status import Status
from tests.simulation.judge import Broken, Ended, Observed, judge
from tests.simulation.plan import MOST_VERBS, Ask, Pace, Plan, Receive, Step, Visit, generate, parsed, verbs_of, written

PACE = Pace(blink=0.1, rest=1.0, soon=1.0)
PLAN = Plan("p", (Step("p.0", "once"), Receive("p.1"), Ask("p.2", 1.0)), (Visit("answer", 0.5, "p.2"),))
GOOD: dict[str, Any] = {"p.0": "p.0!", "p.1": ["1"], "p.2": "expired"}
DID = {"what": "did", "place": "p.0", "key": "k", "saw": "", "run": "r"}


def observed(result: Any, *lines: dict[str, Any], status: str = "completed", deaths: bool = True) -> Observed:
    """Return a world in which one run ended in this way, but for its journal."""
    run = Ended("r", "act", status, "", result, ())
    return Observed({"p": [run]}, lines, deaths)


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (observed({**GOOD, "p.0": "in doubt"}, DID, deaths=False), "p.0 is 'in doubt'"),
        (observed({**GOOD, "p.1": ["1", "1"]}, DID), r"p.1 is \['1', '1'\]"),
        (observed(GOOD, DID, {"what": "told", "of": "p", "verb": "answer", "place": "p.2", "answer": True}),
         "p.2 is 'expired'"),
        (observed({place: GOOD[place] for place in ("p.0", "p.1")}, DID), "p.2 is missing"),
        (observed(GOOD), "p.0 happened 0 times"),
        (observed(GOOD, DID, DID), "p.0 happened 2 times"),
        (observed(GOOD, DID, {**DID, "what": "tried", "key": "other"}), "more than one key"),
        (observed(GOOD, {"what": "ack", "place": "p.0"}, DID), "done again after its result"),
        (observed(None, DID, status="cancelled"), "is cancelled .*, not completed"),
        (observed(GOOD, DID, {"what": "told", "of": "p", "verb": "cancel", "place": "", "answer": True}),
         "is completed .*, not cancelled"),
        (Observed({}, (), True), "p has 0 runs"),
    ],
)  # fmt: skip
def test_what_a_program_did_not_come_to_is_said(seen: Observed, says: str) -> None:
    """Each check speaks when what it looks at is wrong, and only then."""
    with pytest.raises(Broken) as told:
        judge([PLAN], _with_journal(seen))
    lines = str(told.value).splitlines()
    assert re.search(says, lines[0])
    assert len(lines) == 1


def test_what_it_did_come_to_is_not() -> None:
    """The model does not accuse."""
    judge([PLAN], _with_journal(observed(GOOD, DID)))


def test_programs_are_the_same_from_the_same_seed_and_survive_being_written() -> None:
    """A failing program can be printed, and run alone."""
    for number in range(50):
        plan = generate(f"x/{number}", PACE)
        assert plan == generate(f"x/{number}", PACE) == parsed(written(plan))
        assert verbs_of(plan) <= MOST_VERBS + 4  # endings and continuations are not counted


def _with_journal(seen: Observed) -> Observed:
    """Give each run the journal of one that did what it says."""
    runs = {}
    for name, ended in seen.runs.items():
        received = e.SignalReceived(step="0/receive#1", name="p.1", post=1, raw=NULL)
        entries = [received, e.RunFinished(status=Status(ended[0].status))]
        for seq, entry in enumerate(entries, start=1):
            force_setattr(entry, "seq", seq)
        runs[name] = [Ended("r", "act", ended[0].status, "", ended[0].result, entries)]
    return Observed(runs, seen.ledger, seen.deaths)
