"""A run by its key, wherever a command takes a run."""

import pytest

from tests.surface.command import Shell
from tests.surface.test_answer import ASKING
from tests.surface.test_completion import completed


@pytest.mark.parametrize(
    "words",
    [
        ["show", "K"], ["tail", "K"], ["export", "K"], ["verify", "K"], ["cancel", "K"], ["pause", "K"],
        ["resume", "K"], ["signal", "K", "paid", "1"], ["resolve", "K", "take", "--not-done"], ["fork", "K"],
        ["ls", "--before", "K"], ["run", "program.py:pay", "--resume", "K"],
    ],
    ids=lambda words: str(words[0]),
)  # fmt: skip
def test_a_command_that_takes_a_run_takes_its_key(shell: Shell, words: list[str]) -> None:
    """Whoever chose a key need not look up the id that it stands for."""
    key = "order 7/a.1"
    run = shell("run", "program.py:pay", "5", "--key", key, "-q")
    assert run.status == 6
    follow = ["--no-follow"] if words[0] == "tail" else []
    ran = shell(*(key if word == "K" else word for word in words), *follow)
    assert ran.status in (0, 6), ran.err


def test_a_run_that_failed_is_retried_and_deleted_by_its_key(shell: Shell) -> None:
    """The commands for ended runs go by the same rule, and so does an archive."""
    shell("run", "program.py:fail", "--key", "bad luck")
    archive = shell.folder / "one.jsonl"
    archive.write_text(shell("export", "bad luck").out)
    assert shell("show", "bad luck", "--archive", archive, "--json").value["key"] == "bad luck"
    assert shell("retry", "bad luck").status == 0
    assert shell("cancel", "bad luck").status == 0
    shell("run", "program.py:count", "1", "--key", "gone")
    assert shell("delete", "gone").status == 0


def test_a_budget_is_raised_and_a_question_answered_by_key(shell: Shell) -> None:
    """Also where the key ends as the id of a question does."""
    shell("run", "program.py:count", "1", "--budget", "steps=1", "--key", "small")
    assert shell("raise", "small", "steps=5").status == 0
    (shell.folder / "asking.py").write_text(ASKING)
    for key in ("acme", "acme.2"):
        shell("run", "asking.py:buy", "tea", "--key", key)
        assert shell("answer", key, "--yes", "--json").value["run"] == shell("show", key, "--json").value["id"]


def test_a_key_that_another_id_begins_with_is_refused_with_both(shell: Shell) -> None:
    """No run is picked by chance; the error names both, and a whole id is always an id."""
    first = shell("run", "program.py:count", "1", "--json").value["id"]
    second = shell("run", "program.py:count", "2", "--key", first[:13], "--json").value["id"]
    ran = shell("show", first[:13])
    assert ran.status == 2
    assert "is the key of one run and the beginning of another's id" in ran.err
    assert first in ran.err
    assert f"{second}  by its key" in ran.err
    third = shell("run", "program.py:count", "3", "--key", second, "--json").value["id"]
    assert shell("show", second, "--json").value["id"] == second
    assert shell("show", "--key", second, "--json").value["id"] == third


def test_the_shell_completes_a_key_that_was_begun(shell: Shell) -> None:
    """A key may stand where an id may, so it is offered there."""
    shell("run", "program.py:pay", "5", "--key", "order-7")
    assert completed(shell, "holdfast cancel ord") == {"holdfast cancel ord": ["order-7"]}
