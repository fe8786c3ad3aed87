"""`holdfast run --budget` and `holdfast raise`: a run that has used up what it was given goes on when it gets more."""

import time
from collections.abc import Iterator

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
    "words",
    [
        ("steps",), ("steps=",), ("steps=-1",), ("steps=1", "steps=2"), ("gold=5",), ("usd=much",), ("deadline=soon",),
        (),
    ],
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


def overdue(shell: Shell, budget: str = "steps=9,deadline=2000-01-01") -> str:
    """Return a run whose deadline has passed."""
    run: str = shell("run", "program.py:count", "1", "5", "--budget", budget, "--json").error["run"]
    return run


def test_a_raise_says_what_still_holds_the_run(shell: Shell) -> None:
    """Steps do not help a run that is out of time, nor time one that is out of steps; with both it goes on."""
    run = overdue(shell)
    for amount, too in (("steps=3", " too"), ("deadline=2001-01-01T00:00Z", "")):
        said = shell("raise", run, amount).err
        assert f"; it still rests: its deadline has passed; raise deadline=1h{too};" in said
        assert "; it goes on" not in said
    assert "; it goes on" in shell("raise", run, "steps=3", "deadline=1h").err
    run = shell("run", "program.py:count", "1", "5", "--budget", "steps=2,deadline=1h", "--json").error["run"]
    said = shell("raise", run, "deadline=2h").err
    assert "it still rests: it has no steps left; raise steps=100 too" in said
    assert "; it goes on" in shell("raise", run, "steps=3").err


def test_a_deadline_that_is_later_already_is_said_to_stay(shell: Shell) -> None:
    """Nothing is claimed that a raise does not do; what is given beside it is."""
    run = shell("run", "program.py:count", "1", "5", "--budget", "steps=2,deadline=3h", "--json").error["run"]
    said = shell("raise", run, "deadline=1h").err
    assert f"run {run}: its deadline is later already: nothing changed" in said
    assert "has more" not in said
    said = shell("raise", run, "deadline=1h", "steps=3").err
    assert f"run {run} has more: steps=3, by grace; its deadline is later already; it goes on" in said


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows the time of Berlin."""
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_a_time_without_a_zone_is_told_with_the_one_that_was_assumed(shell: Shell) -> None:
    """Whoever meant another one sees it at once."""
    run = overdue(shell)
    assert (
        "deadline=2040-01-31T18:00+01:00 (CET, your own zone)" in shell("raise", run, "deadline=2040-01-31T18:00").err
    )
    assert "your own zone" not in shell("raise", run, "deadline=2041-01-31T18:00+01:00").err


@pytest.mark.usefixtures("berlin")
def test_a_deadline_that_has_passed_is_told_in_local_time(shell: Shell) -> None:
    """As every other time for people; for machines it stays in UTC."""
    ran = shell("run", "program.py:count", "1", "--key", "k", "--budget", "deadline=2000-01-01T00:00Z")
    for said in (ran.err, shell("ls").out, shell("show", "k").out):
        assert "it was 2000-01-01 01:00:00" in said
        assert "+00:00" not in said
    assert shell("ls", "--json").value["reason"] == "deadline: it was 2000-01-01T00:00:00+00:00"


def test_one_more_step_is_one(shell: Shell) -> None:
    """As people count."""
    run = used_up(shell)
    shell("raise", run, "steps=1", "--by", "ann")
    assert "+ 1 more step, by ann" in shell("run", "program.py:count", "1", "5", "--key", "k").err


def test_money_and_tokens_are_shown_and_raised_as_people_write_them(shell: Shell) -> None:
    """Dollars are read and told exactly, and every channel has its own word."""
    ran = shell("run", "program.py:count", "1", "5", "--key", "k", "--budget", "steps=2,usd=0.50,tokens=9000,calls=3")
    assert ran.status == 1
    assert shell("raise", "k", "usd=0.125", "tokens=1000", "steps=9", "--json").value["usd"] == "0.125"
    assert shell("run", "program.py:count", "1", "5", "--key", "k").value == 6
    drawn = shell("show", "--key", "k").out
    for said in ("$0.625 of $0.625 left", "10,000 of 10,000 tokens left", "3 of 3 calls left", "$0.125 more"):
        assert said in drawn
    known = shell("show", "--key", "k", "--json").value["budget"]
    assert known["usd"] == {"total": 0.625, "free": 0.625, "reserved": 0.0, "spent": 0.0}
