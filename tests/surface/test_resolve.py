"""`holdfast resolve`: a person's word ends a doubt, once."""

import signal

import pytest

from tests.surface.command import Shell


def doubted(shell: Shell, key: str = "p") -> str:
    """Return a run whose step is in doubt."""
    run: str = shell("run", "program.py:pay", "5", "--key", key, "--json").error["run"]
    return run


def test_a_value_ends_the_doubt_and_the_step_is_not_performed_again(shell: Shell) -> None:
    """What a person says it returned is what the run goes on with; who said it and why is kept."""
    run = doubted(shell)
    ran = shell("resolve", run, "0/take#1", "--value", '"R-1"', "--by", "ada", "--note", "seen at the bank")
    assert ran.status == 0
    assert "did happen" in ran.err
    assert shell("run", "program.py:pay", "5", "--key", "p").value == "R-1"
    assert shell.ledger().count("take 5") == 1
    [resolved] = [e for e in shell("tail", run, "--json").values if e["type"] == "StepResolved"]
    assert (resolved["data"]["by"], resolved["data"]["note"]) == ("ada", "seen at the bank")
    assert "says ada: it did happen (seen at the bank)" in shell("show", run).out


def test_not_done_is_recorded_as_a_word_too(shell: Shell) -> None:
    """A person may say that it did not happen; the word is taken as data."""
    run = doubted(shell)
    ran = shell("resolve", run, "0/take#1", "--not-done", "--json")
    assert ran.value == {
        "run": run, "step": "0/take#1", "done": False, "by": "grace", "note": None, "worker": False,
    }  # fmt: skip


@pytest.mark.parametrize("step", ["take", "take#1", "0/take#1"])
def test_a_step_may_be_given_by_its_name(shell: Shell, step: str) -> None:
    """Where only one step of that name is in doubt, its name is enough."""
    assert shell("resolve", doubted(shell), step, "--value", '"R"', "--json").value["step"] == "0/take#1"


def test_without_a_worker_it_says_when_the_run_goes_on(shell: Shell) -> None:
    """Nobody waits for a run that no program drives."""
    ran = shell("resolve", doubted(shell), "take", "--value", '"R"')
    assert "no worker is running: the run goes on when its program next runs" in ran.err


def test_with_a_worker_it_says_that_the_run_goes_on(shell: Shell) -> None:
    """A live worker takes the word at once."""
    run = doubted(shell)
    (shell.folder / "gate").touch()
    working = shell.start("run", "program.py:hold", "1")
    working.wait_for("at the gate")
    assert "as soon as a worker" in shell("resolve", run, "take", "--value", '"R"').err
    working.end(signal.SIGKILL)


def test_the_first_word_stands(shell: Shell) -> None:
    """A second word is a conflict, whatever it says."""
    run = doubted(shell)
    shell("resolve", run, "take", "--value", '"R-1"')
    ran = shell("resolve", run, "take", "--not-done", "--json")
    assert (ran.status, ran.error["code"]) == (4, "conflict")
    assert shell("run", "program.py:pay", "5", "--key", "p").value == "R-1"


def test_what_is_not_in_doubt_is_not_found(shell: Shell) -> None:
    """Only a doubt can be ended, and the refusal names those that are open."""
    run = doubted(shell)
    ran = shell("resolve", run, "add", "--value", "1")
    assert ran.status == 3
    assert "In doubt are:\n  0/take#1" in ran.err
    assert shell("resolve", "00000000-0000-7000-8000-000000000000", "take", "--value", "1").status == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --value JSON"),
        (["--value", "1", "--not-done"], "give --value JSON"),
        (["--value", "R-1"], "--value is not JSON"),
        (["--value", "R-1"], """--value '"R-1"'"""),
    ],
)
def test_a_word_that_says_nothing_clear_is_refused(shell: Shell, words: list[str], says: str) -> None:
    """Text without quotes is not JSON, and the hint writes it as it must be."""
    ran = shell("resolve", doubted(shell), "take", *words)
    assert ran.status == 2
    assert says in ran.err
