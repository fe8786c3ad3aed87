"""The picture of a run that rested and went on: each line whole, and under the process that it belongs to."""

from datetime import UTC, datetime

from holdfast import events as ev
from holdfast.cli.drawing import draw_run
from holdfast.cli.picture import paint
from holdfast.cli.surface import Surface
from holdfast.client.protocol import RunInfo
from holdfast.core.entry import BudgetMove, Entry, Wait
from holdfast.core.status import Effect, Status

RUN = "0199f3a2-7c41-7d53-9a0e-5f1c2b7a9e10"
RECEIVE = "0/receive#1"


def drawn(status: Status, *entries: Entry) -> list[str]:
    """Return the lines of a run that these entries are all of."""
    started = ev.RunStarted(name="listen", tenant="", digest="", seed="", root=RUN, at=1)
    now = datetime.now(UTC)
    info = RunInfo(
        id=RUN, name="listen", status=status, reason="", key=None, input={}, result=None, error=None,
        conversation=None, parent=None, root=RUN, labels={}, created_at=now, updated_at=now, attempt=1,
        last_seq=len(entries) + 1,
    )  # fmt: skip
    picture = paint([started, *entries], status=status)
    return [line.plain for line in draw_run(Surface("memory://"), info, picture)]


def taken_up(worker: str) -> ev.RunResumed:
    """Return that a worker went on with the run."""
    return ev.RunResumed(worker=worker, fence=1, attempt=1, why="due", at=3)


def waits() -> ev.StepStarted:
    """Return that the run began to wait for a signal."""
    return ev.StepStarted(step=RECEIVE, digest="", effect=Effect.REPEAT, waits=["signal verified"], at=2)


def rests() -> ev.RunParked:
    """Return that it rests for it."""
    wait = Wait(kind="signal", step=RECEIVE, name="verified")
    return ev.RunParked(
        status=Status.WAITING, reason="signal", detail="verified", step=RECEIVE, waits=[wait], at=3
    )  # fmt: skip


def exhausted() -> ev.RunParked:
    """Return that it has used up its steps."""
    return ev.RunParked(status=Status.EXHAUSTED, reason="steps", detail="1 wanted, 0 left of 2", step="0/add#3", at=3)


def raised() -> ev.BudgetChanged:
    """Return that somebody gave it more."""
    return ev.BudgetChanged(moves=[BudgetMove("steps", total=3)], why="raised", by="ann", at=4)


def test_a_rest_in_the_middle_of_a_process_repeats_nothing_that_its_wait_has_said() -> None:
    """However often a process wakes up and rests again, what it waits for is told once, and whole."""
    got = ev.SignalReceived(step=RECEIVE, name="verified", post=1, at=5)
    lines = drawn(Status.RUNNING, taken_up("a"), waits(), rests(), taken_up("a"), rests(), taken_up("a"), got)
    assert [line for line in lines if "receive#1" in line or "rests" in line] == [
        "│ … receive#1           waits for signal verified",
        "│ ✓ receive#1     0 ms  verified null",
    ]


def test_a_rest_that_nothing_else_tells_of_is_a_whole_line() -> None:
    """A process that took a wait over says what it rests for, once, from its first letter."""
    lines = drawn(
        Status.RUNNING, taken_up("a"), waits(), rests(), taken_up("b"), rests(), taken_up("b"), rests(), taken_up("b")
    )
    assert lines.count("│ ‖ rests: waits for signal verified") == 1
    assert lines.count("╰ ‖ rests: waits for signal verified") == 1
    lines = drawn(Status.RUNNING, taken_up("a"), exhausted(), taken_up("a"))
    assert "│ ‖ rests: out of steps: 1 wanted, 0 left of 2" in lines


def test_a_raise_stands_where_the_run_went_on_with_it() -> None:
    """In the process that takes it up, also where that is the one that rested; not in a later one."""
    lines = drawn(Status.RUNNING, taken_up("a"), exhausted(), raised(), taken_up("a"), exhausted(), taken_up("b"))
    where = lines.index("│ + 3 more steps, by ann")
    assert lines[where - 1] == "│ ‖ rests: out of steps: 1 wanted, 0 left of 2"
    assert lines[where + 1] == "╰ ‖ rests: out of steps: 1 wanted, 0 left of 2"


def test_a_raise_that_does_not_end_the_rest_is_shown() -> None:
    """It was given, and the run rests all the same."""
    lines = drawn(Status.EXHAUSTED, taken_up("a"), exhausted(), raised())
    where = lines.index("│ + 3 more steps, by ann")
    assert lines[where + 1] == "╰ ‖ rests: out of steps: 1 wanted, 0 left of 2"
