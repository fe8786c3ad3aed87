"""The programs in `examples` do what they say, from a shell."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surface.command import SECONDS, Shell

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def onboard(shell: Shell) -> Shell:
    """A folder with the example in it."""
    shutil.copy(EXAMPLES / "onboard.py", shell.folder / "onboard.py")
    return shell


def called(shell: Shell, *words: str, status: int = 0) -> str:
    """Run one command as a process of its own and return what it printed; fail with its words otherwise."""
    command = [sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(
        command,
        cwd=shell.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_a_customer_is_brought_on_board_from_a_shell(onboard: Shell) -> None:
    """It is started, asks, is answered, is killed, goes on, is signalled and ends; nothing is done twice."""
    called(onboard, "run", "onboard.py", "acme", "--key", "acme", status=6)
    question = json.loads(called(onboard, "answer", "--json"))
    assert question["show"]["customer"] == "acme"
    called(onboard, "answer", question["id"], "--yes", "--by", "ada", "--args", '{"text": "Hello!"}')
    killed = onboard.start("run", "onboard.py", "acme", "--key", "acme")
    killed.wait_for("rests: waits for signal paid")
    killed.end(signal.SIGKILL)
    waiting = onboard.start("run", "onboard.py", "acme", "--key", "acme")
    waiting.wait_for("recorded before, not performed again")
    called(onboard, "signal", question["run"], "paid", '{"cents": 4200}', "--key", "payment-1")
    ran = waiting.end()
    assert ran.status == 0, ran.err
    assert "to acme: Hello!" in ran.value
    assert "4200 cents paid" in ran.value
    shown = json.loads(called(onboard, "show", "--key", "acme", "--json"))
    steps = [act["step"] for process in shown["processes"] for act in process["acts"] if act["outcome"] == "completed"]
    assert len(steps) == len(set(steps)), "no step was performed twice"
    assert (shown["status"], shown["waits"], shown["questions"]) == ("completed", [], [])


def test_a_customer_who_is_refused_gets_no_mail(onboard: Shell) -> None:
    """A no ends it at once, with who said it."""
    called(onboard, "run", "onboard.py", "acme", "--key", "acme", status=6)
    question = json.loads(called(onboard, "ls", "--questions", "--json"))["id"]
    called(onboard, "answer", question, "--no", "--by", "ada")
    assert json.loads(called(onboard, "run", "onboard.py", "acme", "--key", "acme")) == "refused by ada"
    assert "send_mail" not in called(onboard, "show", "--key", "acme")
