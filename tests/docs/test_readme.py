"""The first page does what it says, to the word."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import README, ROOT
from tests.docs.running import SECONDS, commands, environment, newest_run, run_python
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn

TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


KEY = "ticket-42"
CALL = Call("c-1", "refund", '{"order": "42", "cents": 2000}')
PAYING = "paying 2000 cents back for order 42\n"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The README's program, saved as it says."""
    [block] = [block for block in README.blocks if block.language == "python"]
    path = tmp_path / "clerk.py"
    path.write_text(block.text, "utf-8")
    return path


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider on loopback, which the program finds as it would find any."""
    with Provider() as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "a key")
        yield running


def test_its_program_is_short() -> None:
    """What a newcomer must read first fits a glance."""
    [block] = [block for block in README.blocks if block.language == "python"]
    assert len([line for line in block.text.splitlines() if line.strip()]) <= 12


def test_killed_where_it_says_its_program_goes_on_and_pays_once(program: Path, provider: Provider) -> None:
    """The same key finds the same run: nothing is paid or generated again, and an ended run returns at once."""
    stalls = Turn(Answer(tokens=("Sorry ", "about ")), Fault(cut="stall", after=1))
    provider.says("gpt-5-mini", Answer(calls=(CALL,)), stalls, Answer(tokens=("It ", "is ", "on ", "its ", "way.")))
    with subprocess.Popen(
        [sys.executable, program.name], cwd=program.parent, env=environment(), stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == PAYING
        follow_until_paid(program.parent)
        first.kill()
    assert run_python(program) == "It is on its way.\n"
    assert run_python(program) == "It is on its way.\n"
    assert len(provider.heard["gpt-5-mini"]) == 3
    run = newest_run(program.parent)
    runs = f'run clerk.py "Order 42, a vase for 20.00, arrived broken." --key {KEY}'
    for command in (runs, "ls", "show RUN", "tail RUN", "verify"):
        assert f"`holdfast {command}`" in README.text
        run_quietly(program.parent, *shlex.split(command.replace("RUN", run)))


def follow_until_paid(folder: Path) -> None:
    """Wait until the model writes its answer, as anyone may who watches the run."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    with subprocess.Popen(
        [holdfast, "tail", "--key", KEY, "--json"], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    ) as tail:
        assert tail.stdout is not None
        assert any('"Sorry ' in line for line in tail.stdout)
        tail.kill()


def run_quietly(folder: Path, *words: str) -> None:
    """Run a command of ours; fail with its words if it fails."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    done = subprocess.run(
        [holdfast, *words], cwd=folder, env=environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_make_commands_are_targets() -> None:
    """The commands that do all set-up are there."""
    typed = [command for block in README.blocks if block.language == "console" for command, _ in commands(block.text)]
    assert "make demo" in typed
    assert "make test" in typed
    made = [command.split()[1] for command in typed if command.startswith("make ")]
    made += re.findall(r"`make ([a-z]+)`", README.prose)
    assert set(made) <= set(TARGETS)
    assert [command for command in typed if not command.startswith("make ")] == ["pip install ."]
