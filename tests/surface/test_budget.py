"""`holdfast run --budget` and `holdfast raise`: a run that has used up what it was given goes on when it gets more."""

import pytest

from tests.surface.command import Shell


def used_up(shell: Shell) -> str:
    """Return a run that has used up its steps."""
    ran = shell("run", "program.py:count", "1", "5", "--key", "k", "--budget", "steps=2", "--json")
    assert ran.status == 1
    run: str = ran.error["run"]
    return run


def test_the_commands_that_an_exhausted_run_prints_let_it_go_on(shell: Shell) -> None:
    """Whoever copies what stands on the screen, line by line, sees the run end; the same from `show`."""
    ran = shell("run", "program.py:count", "1", "5", "--key", "k", "--budget", "steps=2,deadline=1h")
    assert ran.status == 1
    assert "has used up its budget: steps: 1 wanted, 0 left of 2" in ran.err
    raised, again = [line.strip() for line in ran.err.splitlines() if line.startswith("  holdfast ")]
    drawn = shell("show", "--key", "k")
    assert "0 of 2 steps left" in drawn.out
    assert raised in drawn.out
    assert shell.copied(raised).status == 0
    assert shell.copied(again).value == 6
    assert "97 of 102 steps left" in shell("show", "--key", "k").out


def test_an_exhausted_run_tells_machines_what_is_left(shell: Shell) -> None:
    """The refusal has its code and the accounts; `show` has them in the run's JSON."""
    ran = shell("run", "program.py:count", "1", "5", "--budget", "steps=2", "--json")
    assert (ran.error["code"], ran.error["status"]) == ("budget_exceeded", "exhausted")
    steps = {"total": 2, "free": 0, "reserved": 0, "spent": 2}
    assert ran.error["budget"] == {"steps": steps}
    assert shell("show", ran.error["run"], "--json").value["budget"] == {"steps": steps}


def test_a_raise_says_what_it_gave_and_who_asked(shell: Shell) -> None:
    """With a key it is given once; a run that has no such limit, or has ended, is refused."""
    run = used_up(shell)
    for _ in range(2):
        ran = shell("raise", run, "steps=3", "--by", "ann", "--key", "more", "--json")
        assert (ran.value["run"], ran.value["steps"], ran.value["by"]) == (run, 3, "ann")
    assert shell("raise", run, "deadline=2h").status == 4
    ran = shell("run", "program.py:count", "1", "5", "--key", "k")
    assert ran.value == 6
    assert "3 more steps, by ann" in ran.err
    assert shell("raise", run, "steps=1").status == 4


@pytest.mark.parametrize(
    "words", [("steps",), ("steps=",), ("steps=-1",), ("steps=1", "steps=2"), ("tokens=5",), ("deadline=soon",), ()]
)  # fmt: skip
def test_what_is_no_budget_is_a_slip_of_usage(shell: Shell, words: tuple[str, ...]) -> None:
    """It is refused before there is a run, and before one is touched."""
    run = used_up(shell)
    assert shell("raise", run, *words).status == 2
    if words:
        assert shell("run", "program.py:count", "1", "--budget", ",".join(words)).status == 2
    assert "0 of 2 steps left" in shell("show", run).out


def test_a_deadline_may_be_a_time(shell: Shell) -> None:
    """With its zone or as the clock on the wall shows it."""
    for at in ("2000-01-01T00:00+00:00", "2000-01-01"):
        ran = shell("run", "program.py:count", "1", "--budget", f"deadline={at}", "--json")
        assert ran.error["reason"].startswith("deadline: it was ")
        assert shell("raise", ran.error["run"], "deadline=2h").status == 0
        assert shell("run", "program.py:count", "--resume", ran.error["run"]).value == 3
