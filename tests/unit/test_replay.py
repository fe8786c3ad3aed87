"""Replay as a machine: what is asked, against what was recorded."""

from typing import Any

import pytest
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.errors import Damaged, Diverged
from holdfast.core.status import Effect
from holdfast.journal import replay as r
from tests.unit.facts import AT, DIGEST, LEAST, completed, doubted, failed, intent, resolved
from tests.unit.test_fold import placed

OTHER_DIGEST = "ff" * 32
ERROR = e.ErrorInfo(type="ValueError", message="no")
PAY = "0/pay#1"

DIED = "the process died before the outcome was recorded"


def replay_of(*entries: e.Entry) -> r.Replay:
    """Return a replay of these entries behind the first one."""
    return r.replay_of([placed(entry, seq) for seq, entry in enumerate((LEAST[0], *entries), start=1)])


def test_recorded_steps_are_given_out_in_order_and_then_all_is_fresh() -> None:
    """A step is fresh only past the branch's last record."""
    replay = replay_of(completed("0/a#1", b"1"), completed("0/b#1", b"2"))
    assert replay.ask("0", "0/a#1", DIGEST) == r.Recorded(Raw(b"1"), None)
    assert replay.ask("0", "0/b#1", DIGEST) == r.Recorded(Raw(b"2"), None)
    assert replay.ask("0", "0/c#1", DIGEST) is r.FRESH
    assert replay.ask("0", "0/d#1", DIGEST) is r.FRESH
    replay.finish()


def test_a_run_replays_until_its_last_record_was_asked_for() -> None:
    """What is logged before that was logged when it happened."""
    replay = replay_of(completed("0/a#1"), completed("0/b#1"))
    seen = [replay.replaying]
    for key in ("0/a#1", "0/b#1"):
        replay.ask("0", key, DIGEST)
        seen.append(replay.replaying)
    assert seen == [True, True, False]


@pytest.mark.parametrize(
    ("asked", "digest"),
    [("0/b#1", DIGEST), ("0/a#2", DIGEST), ("0/=a", DIGEST), ("0/new#1", DIGEST), ("0/a#1", OTHER_DIGEST)],
    ids=["another recorded one", "another count", "explicit", "a new one", "another input"],
)
def test_anything_but_the_next_record_diverges(asked: str, digest: str) -> None:
    """Renamed, reordered, inserted, deleted or changed: refused with what was recorded and what was asked."""
    replay = replay_of(completed("0/a#1"), completed("0/b#1"))
    with pytest.raises(Diverged) as diverged:
        replay.ask("0", asked, digest)
    assert diverged.value.seq == 2
    assert "'0/a#1'" in diverged.value.recorded
    assert (asked if asked != "0/a#1" else "another input") in diverged.value.asked


def test_a_refused_question_takes_no_place() -> None:
    """Asking again for what was recorded still gets it; nothing was consumed by the wrong question."""
    replay = replay_of(completed("0/a#1"))
    with pytest.raises(Diverged):
        replay.ask("0", "0/b#1", DIGEST)
    assert isinstance(replay.ask("0", "0/a#1", DIGEST), r.Recorded)


def test_the_end_before_the_last_record_diverges() -> None:
    """Finishing requires all records consumed: a deleted step is seen."""
    replay = replay_of(completed("0/a#1"), completed("0/b#1"))
    replay.ask("0", "0/a#1", DIGEST)
    with pytest.raises(Diverged, match=r"entry 3 recorded '0/b#1' but the code asked for the end of the run"):
        replay.finish()


def test_each_branch_has_its_own_order() -> None:
    """Entries of branches may interleave; within each, order counts."""
    replay = replay_of(completed("0/g#1.0/a#1"), completed("0/g#1.1/a#1"), completed("0/g#1.0/b#1"))
    assert isinstance(replay.ask("0/g#1.1", "0/g#1.1/a#1", DIGEST), r.Recorded)
    assert isinstance(replay.ask("0/g#1.0", "0/g#1.0/a#1", DIGEST), r.Recorded)
    assert replay.ask("0/g#1.1", "0/g#1.1/b#1", DIGEST) is r.FRESH
    with pytest.raises(Diverged):
        replay.finish()


ANSWERS: list[tuple[str, list[e.Entry], r.Answer]] = [
    ("completed", [completed()], r.Recorded(Raw(b"1"), None)),
    ("failed", [failed(attempt=3)], r.Failed(ERROR, 3)),
    ("to be tried again", [failed(retry_at=AT)], r.Retrying(1, AT)),
    ("cancelled", [failed(cancelled=True)], r.Cancelled(2)),
    ("interrupted", [intent()], r.Interrupted(Effect.ONCE, 1, AT + 2, 9)),
    ("interrupted again", [intent(), intent(attempt=2)], r.Interrupted(Effect.ONCE, 2, AT + 3, 9)),
    ("in doubt", [intent(), doubted()], r.InQuestion(1, AT + 2, 9, DIED)),
    ("in doubt by an error", [intent(), doubted(error=ERROR)], r.InQuestion(1, AT + 2, 9, "ValueError: no")),
    ("cancelled in doubt", [intent(), doubted(why="cancelled")], r.Cancelled(3)),
    ("resolved as done", [intent(), doubted(), resolved("done", value=b"5")], r.Recorded(Raw(b"5"), None)),
    ("resolved as not done", [intent(attempt=2), doubted(attempt=2), resolved("not_done")], r.Reopened(2)),
    ("given up", [intent(attempt=2), doubted(attempt=2), resolved("unknown")], r.GivenUp(DIED, 2)),
    (
        "done after all",
        [intent(), doubted(), resolved("not_done"), intent(attempt=2), completed(value=b"7")],
        r.Recorded(Raw(b"7"), None),
    ),
    ("a value taken", [e.ValueTaken(step=PAY, name="now", raw=Raw(b"4"))], r.Recorded(Raw(b"4"), None)),
    ("emitted", [e.Emitted(step=PAY, name="emit", raw=Raw(b"4"))], r.Recorded(Raw(b"4"), None)),
]


@pytest.mark.parametrize(("entries", "answer"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS])
def test_a_step_is_answered_by_the_latest_that_is_known_of_it(entries: list[e.Entry], answer: Any) -> None:
    """However many entries a step has, it takes one place, and the last of them counts."""
    replay = replay_of(*entries)
    assert replay.ask("0", PAY, DIGEST) == answer
    replay.finish()


CLOSED: list[list[e.Entry]] = [
    [completed()], [failed()], [failed(cancelled=True)], [intent(), doubted(), resolved("unknown")],
    [intent(), doubted(), resolved("done")],
]  # fmt: skip


@pytest.mark.parametrize("closed", CLOSED, ids=["completed", "failed", "cancelled", "given up", "resolved"])
@pytest.mark.parametrize("second", [completed(), failed(), intent(attempt=9)], ids=["completed", "failed", "opened"])
def test_a_step_closed_before_is_not_closed_or_opened_again(closed: list[e.Entry], second: e.Entry) -> None:
    """An outcome is single: a second one is damage, not a newer truth."""
    with pytest.raises(Damaged, match=r"step 0/pay#1 was closed before, by entry 2"):
        replay_of(*closed, second)
