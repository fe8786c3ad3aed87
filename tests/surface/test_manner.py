"""What all commands have in common: help, colours, errors, exit statuses, completion."""

import os
import pty
import re
import subprocess
import sys

import pytest

from holdfast.cli.exits import status_of
from holdfast.core import errors
from tests.surface.command import COMMANDS, SECONDS, Shell

NAMES = list(COMMANDS)
STATUSES = {
    errors.RunError(run="r", status="failed", reason="x"): 1,
    errors.BudgetExceeded(run="r", status="failed", reason="x"): 1,
    errors.StepError(step="s", type="t", message="m"): 1,
    errors.InDoubt(step="s"): 1,
    errors.ToolError("x"): 1,
    errors.TurnLimit(agent="a", limit=1): 1,
    errors.OutputInvalid(agent="a", wrong="w", asked=1): 1,
    errors.UnknownPrice(model="m"): 1,
    errors.Diverged(seq=1, recorded="a", asked="b"): 1,
    errors.Damaged(run="r", seq=1, what="w"): 1,
    errors.InvalidInput("x"): 2,
    errors.InvalidValue("x"): 2,
    errors.PayloadTooLarge("x", size=2, limit=1): 2,
    errors.BadCursor("x", "y"): 2,
    errors.Misuse("x"): 2,
    errors.NotFound("x"): 3,
    errors.Conflict("x"): 4,
    errors.AlreadyAnswered("x"): 4,
    errors.Expired("x"): 4,
    errors.ConversationBusy(conversation="c"): 4,
    errors.CheckpointOwned(checkpoint="c", run="r", owner="w", host=None, pid=None): 4,
    errors.StoreError("x"): 5,
    errors.StoreUnavailable("x"): 5,
    errors.NoStore("x"): 5,
    errors.StoreClosed("x"): 5,
    errors.StoreRefused("x"): 5,
    errors.UnknownEntry(kind="k", version=2): 5,
}


@pytest.mark.parametrize("error", STATUSES, ids=lambda error: type(error).__name__)
def test_every_error_has_its_exit_status(error: errors.HoldfastError) -> None:
    """A script tells by the number what went wrong."""
    assert status_of(error) == STATUSES[error]


def test_no_error_is_left_out() -> None:
    """An error that is added must be given its number above."""

    def below(kind: type[errors.HoldfastError]) -> set[type[errors.HoldfastError]]:
        return {kind}.union(*(below(one) for one in kind.__subclasses__() if one.__module__ == errors.__name__))

    assert below(errors.HoldfastError) - {errors.HoldfastError} == {type(error) for error in STATUSES}


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself(shell: Shell, name: str) -> None:
    """--help tells what a command does and has the options that all have."""
    ran = shell(name, "--help")
    assert ran.status == 0
    assert "--json" in ran.out
    assert "--quiet" in ran.out
    assert ("--store URL" in ran.out) == (name != "demo")


def test_the_bare_command_and_a_wrong_one_exit_with_2(shell: Shell) -> None:
    """Usage errors go to stderr, as text or as JSON."""
    bare = shell()
    assert (bare.status, bare.out) == (2, "")
    assert all(f"\n  {name} " in bare.err for name in NAMES)
    assert shell("frobnicate").status == 2
    ran = shell("ls", "--frobnicate", "--json")
    assert (ran.status, ran.error["code"]) == (2, "usage")
    assert "holdfast ls --help" in ran.error["hint"]


def test_the_version_is_told(shell: Shell) -> None:
    """--version names the program and its version."""
    assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", shell("--version").out)


def on_a_terminal(shell: Shell, *words: str, **environment: str) -> str:
    """Return what a command writes to a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast", *words]
    environment = {**os.environ, "TERM": "xterm-256color", **environment}
    with subprocess.Popen(
        command, cwd=shell.folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                read = os.read(ours, 65536)
            except OSError:  # how Linux tells that the other end is closed
                break
            if not read:
                break
            said += read
        assert process.wait(SECONDS) == 0
    os.close(ours)
    return said.decode()


def test_a_terminal_gets_colours_unless_it_asks_for_none(shell: Shell) -> None:
    """NO_COLOR is honoured, and a pipe gets plain text."""
    shell("run", "program.py:count", "1", "--key", "k")
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert coloured.search(on_a_terminal(shell, "show", "--key", "k"))
    styled = re.compile(r"\x1b\[[0-9;]+m")
    assert not styled.search(on_a_terminal(shell, "show", "--key", "k", NO_COLOR="1")), "not even bold or dim"
    assert "\x1b" not in shell("show", "--key", "k").out


def test_a_run_on_a_terminal_is_shown_at_work(shell: Shell) -> None:
    """Somebody who waits sees that something goes on, and the result is printed plainly at the end."""
    said = on_a_terminal(shell, "run", "program.py:count", "1")
    assert "working" in said
    assert said.rstrip().endswith("3")


def test_the_shell_completes_commands_and_runs(shell: Shell) -> None:
    """TAB offers what there is."""
    run = shell("run", "program.py:count", "1", "--json").value["id"]
    asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_LINE": "holdfast "}
    assert all(f"plain,{name}" in shell.start(environment=asked).end().out for name in ["show", "tail"])
    asked |= {"COMP_LINE": f"holdfast show {run[:4]}"}
    assert run in shell.start(environment=asked).end().out


def test_a_reader_that_has_enough_ends_the_command_quietly(shell: Shell) -> None:
    """`holdfast tail … | head -1` is no error."""
    shell("run", "program.py:count", "0", "50", "--key", "k", "-q")
    reader = shell.start("tail", "--key", "k", "--json")
    assert reader.process.stdout is not None
    reader.process.stdout.close()
    assert reader.process.stderr is not None
    assert reader.process.stderr.read() == b""
    assert reader.process.wait(SECONDS) == 0
    reader.process.stderr.close()


def test_the_library_does_not_load_the_command_line() -> None:
    """`import holdfast` stays light: neither click nor rich comes with it."""
    look = "import sys, holdfast; print(sorted({'click', 'rich', 'holdfast.cli'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=SECONDS, check=True)
    assert done.stdout == "[]\n"


def test_a_number_below_zero_that_is_taken_for_an_option_is_told_how_to_be_written(shell: Shell) -> None:
    """The hint is the very words, and they work."""
    refused = shell("run", "program.py:count", "-5")
    assert refused.status == 2
    assert "write `-- -5`" in refused.err
    assert shell("run", "program.py:count", "--", "-5").value == -3


def test_an_object_that_names_what_is_no_parameter_says_so(shell: Shell) -> None:
    """Whoever mistypes the name of the one parameter is not told of its type."""
    refused = shell("run", "program.py:hold", "--input", '{"nummer": 1}')
    assert refused.status == 2
    assert "hold has no parameter nummer" in refused.err
    assert "It takes: hold(number: int)" in refused.err
    assert shell("run", "program.py:hold", "--input", "1", "--quiet").value == 3


def test_an_address_with_a_parameter_that_nobody_knows_names_those_that_are(shell: Shell) -> None:
    """A slip in one is seen beside the right one, on lines that are whole."""
    refused = shell("ls", "--store", "postgresql://localhost/db?shema=x")
    assert refused.status == 5
    assert "⏎" not in refused.err
    assert "schema, pool, listen, durability" in refused.err


def test_a_missing_driver_is_told_with_what_installs_it(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """And with nothing about newer stores or backups."""
    for name in [name for name in sys.modules if name.startswith(("holdfast.store.postgres", "psycopg"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    refused = shell("ls", "--store", "postgresql://localhost/db")
    assert refused.status == 5
    assert "needs psycopg, which is not installed: pip install 'holdfast[postgres]'\nInstall it; or use " in refused.err
