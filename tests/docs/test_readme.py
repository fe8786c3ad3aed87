"""The first page does what it says, to the word."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import README, ROOT
from tests.docs.running import SECONDS, commands, environment, newest_run, run_python

TARGETS = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The README's program, saved as it says."""
    [block] = [block for block in README.blocks if block.language == "python"]
    path = tmp_path / "checkout.py"
    path.write_text(block.text, "utf-8")
    return path


def test_its_program_has_twelve_lines() -> None:
    """What a newcomer must read first stays short."""
    [block] = [block for block in README.blocks if block.language == "python"]
    assert len([line for line in block.text.splitlines() if line.strip()]) == 12


def test_killed_where_it_says_its_program_goes_on_and_charges_once(program: Path) -> None:
    """The same key finds the same run: the charge is not repeated, and an ended run returns at once."""
    with subprocess.Popen(
        [sys.executable, program.name], cwd=program.parent, env=environment(), stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "charging order-42\n"
        follow_until_charged(program.parent)
        first.kill()
    assert run_python(program) == "receipt of order-42\n"
    assert run_python(program) == "receipt of order-42\n"
    run = newest_run(program.parent)
    for command in ("run checkout.py order-42 --key order-42", "ls", "show RUN", "tail RUN", "verify"):
        assert f"`holdfast {command}`" in README.text
        run_quietly(program.parent, *command.replace("RUN", run).split())


def follow_until_charged(folder: Path) -> None:
    """Wait until the charge is recorded, as anyone may who watches the run."""
    holdfast = str(Path(sys.executable).with_name("holdfast"))
    with subprocess.Popen(
        [holdfast, "tail", "--key", "order-42", "--json"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as tail:
        assert tail.stdout is not None
        assert any("StepCompleted" in line for line in tail.stdout)
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
