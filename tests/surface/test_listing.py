"""What `ls` lists beside runs, on a screen of 80 columns: nothing that matters is lost."""

import re
import signal

import pytest

from tests.surface.command import Shell

LISTED = """
import holdfast as hf

@hf.durable
async def onboarding(ctx: hf.Context) -> bool:
    return bool(await ctx.ask("Accept the application of Grace Hopper?"))

@hf.durable
async def monthly_accounts(ctx: hf.Context) -> None:
    pass

app = hf.App(onboarding, monthly_accounts)
app.schedule(monthly_accounts, "0 3 1 * *", tz="America/Argentina/Buenos_Aires", name="accounts")
"""


@pytest.fixture
def narrow(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder whose program asks and has a schedule, and a screen of 80 columns."""
    (shell.folder / "listed.py").write_text(LISTED)
    monkeypatch.setenv("COLUMNS", "80")
    return shell


def test_a_question_is_read_on_a_narrow_screen(narrow: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands below what it is answered by, and where there is room for it under a heading."""
    question = narrow("run", "listed.py:onboarding", "--json").error["questions"][0]["id"]
    for words in (["answer"], ["ls", "--questions"]):
        head, line, below = narrow(*words).out.splitlines()
        assert head.split() == ["QUESTION", "OF", "AGE", "EXPIRES"]
        assert line.startswith(f"{question}  onboarding  ")
        assert below == "  asks Accept the application of Grace Hopper?"
        assert len(narrow(*words, "-q").out.splitlines()) == 1
    monkeypatch.setenv("COLUMNS", "140")
    head, line = narrow("answer").out.splitlines()
    assert head.split()[-1] == "ASKS"
    assert line.endswith("Accept the application of Grace Hopper?")


def test_workers_and_schedules_are_read_on_a_narrow_screen(narrow: Shell) -> None:
    """The lock and what a worker serves, a schedule's run and its function: below, where they have no room."""
    worker = narrow.start("worker", "listed.py")
    worker.wait_for("serving")
    workers, schedules = (narrow("ls", f"--{what}").out.splitlines() for what in ("workers", "schedules"))
    worker.end(signal.SIGKILL)
    assert all(len(line) <= 80 for line in [*workers, *schedules])
    told = " ".join(workers[1:])
    assert re.search(r"\bheld\b", told)
    assert "serves monthly_accounts, onboarding" in told or "serves onboarding, monthly_accounts" in told
    assert "function monthly_accounts" in " ".join(schedules[1:])
    assert "…" not in "".join([*workers, *schedules])


def test_a_reason_without_room_is_left_out_of_a_quiet_line(narrow: Shell) -> None:
    """An ellipsis alone says nothing; the run's line ends where it is whole."""
    narrow("run", "listed.py:onboarding", "--key", "k-1")
    [line] = narrow("ls", "-q").out.splitlines()
    assert "…" not in line
    assert line.endswith("k-1")


def test_no_list_is_wider_than_its_screen(narrow: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id alone may be."""
    narrow("run", "listed.py:onboarding")
    monkeypatch.setenv("COLUMNS", "30")
    _, line, *below = narrow("answer").out.splitlines()
    assert len(line) == len(line.split()[0]) == 38
    assert below[0].startswith("  of onboarding")
    assert all(len(each) <= 30 for each in below)
