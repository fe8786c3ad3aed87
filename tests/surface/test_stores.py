"""Which store: the option, the environment, the default; and what is refused."""

from pathlib import Path

import apsw
import pytest

from tests.surface.command import Shell

LOOKING = [["ls"], ["show", "00000000"], ["tail", "00000000"], ["verify"], ["resolve", "00000000", "x", "--not-done"]]


@pytest.mark.parametrize("words", LOOKING, ids=lambda words: words[0])
def test_looking_at_a_store_that_is_not_there_makes_none(shell: Shell, words: list[str]) -> None:
    """A mistyped address is an error and not an empty store."""
    ran = shell(*words, "--store", "sqlite:///typo.db")
    assert (ran.status, ran.out) == (5, "")
    assert "there is no store at sqlite:///typo.db" in ran.err
    assert not list(shell.folder.glob("typo*"))


@pytest.mark.parametrize("words", [*LOOKING, ["run", "program.py:count", "1"]], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("here.db", "write sqlite:///here.db"),
        ("mysql://here", "there is no driver for 'mysql://here'"),
        ("sqlite:///folder", "is a folder"),
        ("sqlite:///theirs.db", "not a Holdfast store"),
        ("sqlite:///text.db", "not a database"),
    ],
)
def test_what_is_no_store_of_ours_is_refused_with_5_and_left_alone(
    shell: Shell, words: list[str], address: str, says: str
) -> None:
    """A wrong address changes nothing at that address."""
    (shell.folder / "folder").mkdir()
    (shell.folder / "text.db").write_text("hello, " * 1000)
    database = apsw.Connection("theirs.db")
    database.execute("CREATE TABLE theirs (x)")
    database.close()
    before = contents(shell.folder)
    ran = shell(*words, "--store", address)
    assert (ran.status, ran.out) == (5, "")
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert contents(shell.folder) == before
    assert shell(*words, "--store", address, "--json").error["code"] == "store_refused"


def contents(folder: Path) -> dict[str, bytes]:
    """Return what the databases in a folder hold."""
    return {path.name: path.read_bytes() for path in folder.glob("*.db*")}


def test_a_store_in_a_folder_that_is_not_there_is_unavailable(shell: Shell) -> None:
    """A run says that it cannot begin, and why."""
    ran = shell("run", "program.py:count", "1", "--store", "sqlite:///nowhere/here.db", "--json")
    assert (ran.status, ran.error["code"]) == (5, "store_unavailable")


def test_the_environment_names_the_store_and_the_option_overrides_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--store, else HOLDFAST_STORE, else sqlite:///holdfast.db."""
    shell("run", "program.py:count", "1")
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///by-name.db")
    shell("run", "program.py:count", "1")
    shell("run", "program.py:count", "1", "--store", f"sqlite:///{shell.folder}/by-option.db")
    assert sorted(path.name for path in shell.folder.glob("*.db")) == ["by-name.db", "by-option.db", "holdfast.db"]


def test_a_printed_command_names_the_store_that_was_named(shell: Shell) -> None:
    """What is copied from the screen means the same store."""
    error = shell("run", "program.py:pay", "1", "--store", "sqlite:///a b.db", "--json").error
    assert "--store 'sqlite:///a b.db'" in error["resume"]
    assert shell.copied(error["resolve"][0], JSON='"R"').status == 0
    assert shell.copied(error["resume"]).value == "R"
