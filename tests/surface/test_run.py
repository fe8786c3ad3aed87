"""`holdfast run`: arguments in, the result out, and a way on from wherever it stopped."""

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest

from holdfast.cli.target import load_target
from tests.surface.command import Shell


def test_the_result_is_all_that_stands_on_stdout(shell: Shell) -> None:
    """A result can be piped: steps, and what the program itself prints, go to stderr."""
    ran = shell("run", "program.py:greet", "Ada")
    assert (ran.status, ran.out) == (0, '"Ada"\n')
    assert "the program prints" in ran.err
    assert '» emit  {"seen":"Ada"}' in ran.err
    assert "completed" in ran.err


def test_steps_are_told_as_they_are_recorded(shell: Shell) -> None:
    """Whoever runs something sees what it does."""
    ran = shell("run", "program.py:count", "5")
    assert ran.out == "7\n"
    assert "✓ add#1" in ran.err
    assert "✓ add#2" in ran.err


def test_a_program_edited_within_a_second_is_run_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python tells what it compiled from an edit by second and size: a program is compiled anew each time."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    program = tmp_path / "edited_at_once.py"
    text = "import holdfast as hf\n@hf.durable\nasync def one(ctx: hf.Context) -> int:\n    return 1\n"
    for name in ("one", "two"):
        program.write_text(text.replace("one", name))
        os.utime(program, (1_700_000_000, 1_700_000_000))
        assert load_target(str(program)).function.name == name


LATER = """
from __future__ import annotations
import holdfast as hf

@hf.durable
async def join(ctx: hf.Context, customer: str, seats: list[int] | None = None) -> str:
    return customer
"""


@pytest.mark.parametrize("args", [["--input", '{"who": 1}'], ["acme", "many"], ["a", "[]", "b"]], ids=str)
def test_annotations_that_are_read_later_are_shown_as_written(shell: Shell, args: list[str]) -> None:
    """A reader sees types, not quotes around them."""
    (shell.folder / "later.py").write_text(LATER)
    ran = shell("run", "later.py", *args)
    assert ran.status == 2
    assert "It takes: join(customer: str, seats: list[int] | None = None)" in ran.err


FAILING = """
import holdfast as hf

def look() -> int:
    return 1

@hf.durable
async def lose(ctx: hf.Context) -> None:
    await ctx.step(look)
    raise ValueError("out of luck")
"""


def test_a_failure_is_told_once_and_last(shell: Shell) -> None:
    """What went before it stands before it: first the steps, then where it was raised, then the error."""
    (shell.folder / "failing.py").write_text(FAILING)
    ran = shell("run", "failing.py")
    assert ran.status == 1
    assert "the run fails" not in ran.err
    step, raised, told = ran.err.index("✓ look#1"), ran.err.index("in lose"), ran.err.index("error: run ")
    assert step < raised < told
    assert ran.err.count("in lose") == 1


@pytest.mark.parametrize("manner", ["--quiet", "--json"])
def test_a_failure_is_one_error_to_whoever_wants_no_more(shell: Shell, manner: str) -> None:
    """No line of a log stands before it."""
    ran = shell("run", "program.py:fail", manner)
    assert ran.err.startswith("error: run " if manner == "--quiet" else '{"error":')


def test_json_prints_the_whole_run_as_one_value(shell: Shell) -> None:
    """A program that runs another learns the id, the status and the result from one value."""
    ran = shell("run", "program.py:count", "5", "--key", "k", "--label", "team=a", "--json")
    assert ran.err == ""
    assert ran.value["status"] == "completed"
    assert ran.value["result"] == 7
    assert ran.value["input"] == {"number": 5}
    assert (ran.value["key"], ran.value["labels"]) == ("k", {"team": "a"})


def test_quiet_leaves_the_result_alone(shell: Shell) -> None:
    """--quiet says nothing beside the result."""
    ran = shell("run", "program.py:count", "5", "--quiet")
    assert (ran.status, ran.out, ran.err) == (0, "7\n", "")


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["42"], "42"),
        (["Ada"], "Ada"),
        (['"Ada"'], "Ada"),
        (["true"], "true"),
        (["Ada", '{"x": 1, "y": 2}'], "Ada at 1,2"),
        (["Ada", "null", "true"], "Ada!"),
        (["--input", '{"name": "Ada", "loud": true}'], "Ada!"),
    ],
)
def test_an_argument_is_json_where_that_fits_its_parameter_and_text_elsewhere(
    shell: Shell, words: list[str], result: str
) -> None:
    """`42` is a number for a number and a text for a text."""
    assert shell("run", "program.py:greet", "-q", *words).value == result


def test_a_default_is_left_out_of_the_recorded_input(shell: Shell) -> None:
    """The input is what was given, so that a new default does not change what a key stands for."""
    ran = shell("run", "program.py:greet", "--json", "--input", '{"name": "Ada", "loud": true}')
    assert ran.value["input"] == {"loud": True, "name": "Ada"}


def test_input_may_come_from_stdin_or_be_the_bare_value_of_one_parameter(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long input need not stand on the command line."""
    assert shell("run", "program.py:fail", "--input", '"why"').status == 1
    (shell.folder / "input.json").write_text('{"number": 3}')
    with (shell.folder / "input.json").open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert shell("run", "program.py:count", "-q", "--input", "-").value == 5


def test_a_failed_run_exits_with_1_and_a_sentence(shell: Shell) -> None:
    """A failure is told in one sentence with the next command, and never as a traceback."""
    ran = shell("run", "program.py:fail", "the moon")
    assert (ran.status, ran.out) == (1, "")
    assert "ValueError: the moon" in ran.err
    assert "Traceback" not in ran.err
    show = ran.err.splitlines()[-1].strip()
    assert show.startswith("holdfast show ")
    assert "the moon" in shell.copied(show).out


def test_a_failed_run_is_told_as_json(shell: Shell) -> None:
    """A program learns why another failed without reading prose."""
    ran = shell("run", "program.py:fail", "--json")
    assert (ran.status, ran.out) == (1, "")
    assert ran.error["code"] == "run_error"
    assert ran.error["status"] == "failed"
    assert (ran.error["error"]["type"], ran.error["error"]["message"]) == ("ValueError", "out of luck")
    assert "in fail" in ran.error["error"]["traceback"]


def test_the_same_key_performs_nothing_twice(shell: Shell) -> None:
    """Same key, same run: its recorded result is given again."""
    first = shell("run", "program.py:count", "1", "--key", "k", "--json")
    again = shell("run", "program.py:count", "1", "--key", "k")
    assert again.value == first.value["result"]
    assert "it had ended before: nothing is performed" in again.err
    assert shell.ledger() == ["add 1", "add 2"]


def test_the_same_key_with_another_input_is_a_conflict(shell: Shell) -> None:
    """A key names one run for ever, and the refusal says which."""
    first = shell("run", "program.py:count", "1", "--key", "k", "--json").value
    ran = shell("run", "program.py:count", "2", "--key", "k", "--json")
    assert ran.status == 4
    assert (ran.error["code"], ran.error["run"], ran.error["differs"]) == ("conflict", first["id"], ["input"])


def test_an_app_is_used_where_a_module_has_one(shell: Shell) -> None:
    """Dependencies of the app reach the steps, and only its functions are offered."""
    (shell.folder / "whole.py").write_text(
        "import holdfast as hf\n"
        "from program import count\n"
        "def look(step: hf.Step[str]) -> str:\n"
        "    return step.deps\n"
        "@hf.durable(name='look-up')\n"
        "async def find(ctx: hf.Context) -> str:\n"
        "    return await ctx.step(look)\n"
        "app = hf.App(find, deps=lambda: 'deps')\n"
    )
    for target in ("whole.py", "whole.py:find", "whole.py:look-up", "whole", "whole:find", "whole.py:app"):
        assert shell("run", target, "-q").value == "deps", target


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py"], "there is no file nowhere.py"),
        (["nowhere"], "there is no module nowhere"),
        (["empty.py"], "empty.py holds no durable function"),
        (["broken.py"], "NameError: name 'missing' is not defined (broken.py, line 2)"),
        (["unreadable.py"], "SyntaxError"),
        (["program.py"], "holds 6 durable functions"),
        (["program.py"], "  program.py:greet"),
        (["program.py:nobody"], "no durable function 'nobody'"),
        (["program.py:nobody"], "  program.py:count"),
        (["program.py:count"], "count misses its argument number"),
        (["program.py:count", "x"], "'x' does not fit the parameter number: int"),
        (["program.py:count", "1", "2", "3"], "count takes 2 arguments, but 3 were given"),
        (["program.py:count", "1", "2", "3"], "It takes: count(number: int, times: int = 2)"),
        (["program.py:count", "--input", "{bad"], "--input is not JSON"),
        (["program.py:count", "--input", "[1]"], "--input must be an object"),
        (["program.py:count", "--input", '{"nombre": 1}'], "nombre"),
        (["program.py:count", "1", "--input", "{}"], "not both"),
        (["program.py:count", "--resume", "0199f3a2", "--key", "k"], "--resume"),
        (["program.py:count", "1", "--label", "x"], "a label is written NAME=VALUE"),
        (["program.py:count", "1", "--key", ""], "the key is empty"),
        ([], "Missing argument 'TARGET'"),
    ],
)
def test_what_cannot_be_run_is_refused_with_2_and_what_to_do(shell: Shell, words: list[str], says: str) -> None:
    """Nothing is started on a guess: the refusal names what is there instead."""
    (shell.folder / "empty.py").write_text("x = 1\n")
    (shell.folder / "broken.py").write_text("import holdfast\nmissing\n")
    (shell.folder / "unreadable.py").write_text("def (\n")
    ran = shell("run", *words)
    assert ran.status == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert shell("run", *words, "--json").error["code"] in ("usage", "invalid_input")
    assert shell.ledger() == []


def test_a_run_in_doubt_exits_with_6_and_prints_what_to_copy(shell: Shell) -> None:
    """The commands on the screen are the ones that end the doubt and go on."""
    ran = shell("run", "program.py:pay", "5", "--json")
    assert (ran.status, ran.out) == (6, "")
    assert (ran.error["code"], ran.error["step"]) == ("waiting_for_person", "0/take#1")
    for command in (*ran.error["resolve"], ran.error["resume"]):
        assert f"  {command}\n" in ran.error["hint"] + "\n"
    assert shell.copied(ran.error["resolve"][0], JSON='"R-1"').status == 0
    done = shell.copied(ran.error["resume"])
    assert (done.status, done.value) == (0, "R-1")
    assert shell.ledger() == ["add 5", "take 5", "add 6"]


def test_a_person_is_told_where_the_word_is_awaited(shell: Shell) -> None:
    """A run that waits is no error, and the screen says what it waits for."""
    ran = shell("run", "program.py:pay", "5", "--key", "p")
    assert "waiting: run " in ran.err
    assert "--value JSON" in ran.err
    assert "--not-done" in ran.err
    assert ran.err.rstrip().endswith("holdfast run program.py:pay --key p 5")
    assert shell("run", "program.py:pay", "5", "--key", "p").status == 6


def test_ctrl_c_says_how_to_go_on_and_the_run_does(shell: Shell) -> None:
    """An interruption loses nothing that was recorded, and the printed command continues the very run."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--store", "sqlite:///here.db", "--json")
    started.wait_for("at the gate")
    ran = started.end(signal.SIGINT)
    assert (ran.status, ran.out) == (130, "")
    assert ran.error["code"] == "interrupted"
    assert shlex.split(ran.error["resume"])[-2:] == ["--resume", ran.error["run"]]
    (shell.folder / "gate").unlink()
    done = shell.copied(ran.error["resume"])
    assert (done.status, done.value) == (0, 3)
    assert "1 step recorded before, not performed again" in done.err
    assert shell.ledger() == ["add 1", "at the gate", "at the gate", "add 2"]


def test_ctrl_c_on_a_run_with_a_key_says_to_run_it_again(shell: Shell) -> None:
    """With a key the same command line goes on with the same run, so that is what is printed."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "my key")
    started.wait_for("at the gate")
    ran = started.end(signal.SIGINT)
    assert ran.status == 130
    assert ran.err.endswith("Go on with it:\n  holdfast run program.py:hold --key 'my key' 1\n")


def test_a_killed_run_goes_on_and_repeats_nothing_recorded(shell: Shell) -> None:
    """After kill -9 the same command goes on from the last recorded step."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    assert started.end(signal.SIGKILL).status == -signal.SIGKILL
    (shell.folder / "gate").unlink()
    assert shell("run", "program.py:hold", "1", "--key", "k").value == 3
    assert shell.ledger().count("add 1") == 1


def test_a_run_whose_code_changed_waits_for_the_old_code_and_then_goes_on(shell: Shell) -> None:
    """Changed code is refused before it acts; the code that wrote the run finds it where it was."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    started.end(signal.SIGKILL)
    (shell.folder / "gate").unlink()
    old = (shell.folder / "program.py").read_text()
    (shell.folder / "program.py").write_text(
        old.replace("step(add, number)\n    number", "step(pass_gate, number)\n    number")
    )
    ran = shell("run", "program.py:hold", "1", "--key", "k", "--json")
    assert ran.status == 1
    assert ran.error["reason"].startswith("diverged")
    assert shell.ledger() == ["add 1", "at the gate"]
    (shell.folder / "program.py").write_text(old)
    assert shell("run", "program.py:hold", "1", "--key", "k").value == 3


@pytest.mark.parametrize(
    ("given", "status"), [("0199f3a2", 3), ("00000000-0000-7000-8000-000000000000", 3), ("short", 3)]
)
def test_resuming_what_is_not_there_starts_nothing(shell: Shell, given: str, status: int) -> None:
    """--resume goes on with a run or says that there is none."""
    shell("run", "program.py:count", "1")
    ran = shell("run", "program.py:count", "--resume", given)
    assert ran.status == status
    assert len(shell("ls", "--json").values) == 1


def test_a_run_is_resumed_only_by_its_own_function(shell: Shell) -> None:
    """A mistyped target cannot drive another function's run."""
    run = shell("run", "program.py:pay", "1", "--json").error["run"]
    ran = shell("run", "program.py:count", "--resume", run)
    assert ran.status == 2
    assert "is of 'pay', not of 'count'" in ran.err


def test_a_store_that_fails_under_a_run_ends_the_command_and_tells_the_way_on(shell: Shell) -> None:
    """It would wait for ever: the command says what is wrong, exits with 5, and names itself to go on with."""
    (shell.folder / "narrow.py").write_text(_NARROW, "utf-8")
    ran = shell.start("run", "narrow.py", "--key", "n", "--quiet", environment={"NARROW": "1"}).end()
    assert ran.status == 5, ran.err
    assert "holdfast.db failed: disk I/O error" in ran.err
    assert "Then go on with it:\n  holdfast run narrow.py --key n\n" in ran.err
    again = shell.start("run", "narrow.py", "--key", "n", "--quiet").end()
    assert (again.status, again.out) == (0, "100000\n"), again.err


_NARROW = """
import os, resource
import holdfast as hf

def made(length: int) -> str:
    return "x" * length

@hf.durable
async def narrow(ctx: hf.Context) -> int:
    await ctx.step(made, 1)
    if "NARROW" in os.environ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    return len(await ctx.step(made, 100_000))
"""


def test_a_wrong_argument_is_refused_with_a_command_that_works(shell: Shell) -> None:
    """The example in the hint can be copied, and arguments by name are told where they belong."""
    for words in (["program.py:count", '{"a": 1}'], ["program.py:greet"], ["program.py:count", "--input", '{"a": 1}']):
        ran = shell("run", *words)
        assert ran.status == 2
        assert "It takes: " in ran.err
        example = ran.err.splitlines()[-1].strip()
        assert shell.copied(example).status == 0
    ran = shell("run", "program.py:count", '{"number": 5}', "--json")
    assert "--input '{\"number\": 5}'" in ran.error["hint"]


APPS = """
import holdfast as hf

@hf.durable
async def report(ctx: hf.Context) -> str:
    return "report"

@hf.durable(name="daily")
async def nightly(ctx: hf.Context) -> str:
    return "nightly"

@hf.durable
async def shared(ctx: hf.Context) -> str:
    return "shared"

one = hf.App(report, shared, version="1")
two = hf.App(nightly, shared, version="2")
"""


def test_a_functions_name_picks_the_app_that_has_it(shell: Shell) -> None:
    """Where a file holds several apps, its function says enough, by its own name or by the module's for it."""
    (shell.folder / "apps.py").write_text(APPS)
    assert shell("run", "apps.py:report").value == "report"
    assert shell("run", "apps.py:daily").value == "nightly"
    assert shell("run", "apps.py:nightly", "--json").value["name"] == "daily"
    for target, said in (
        ("apps.py", "apps.py holds 2 apps"),
        ("apps.py:nothing", "apps.py holds 2 apps, and none has 'nothing'"),
        ("apps.py:shared", "shared is in several apps of apps.py: one, two"),
    ):
        refused = shell("run", target)
        assert (refused.status, said in refused.err) == (2, True), refused.err
    assert "\n  apps.py:one\n  apps.py:two\n  apps.py:daily\n  apps.py:report\n" in shell("run", "apps.py").err
