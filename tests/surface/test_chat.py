"""A conversation from a shell: it goes on wherever it was left."""

import io
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.surface.command import SECONDS, Ran, Shell
from tests.surface.terminal import Terminal

CHAT = ("chat", "agents.py:friend", "--conversation", "c1")


@pytest.fixture
def agents(shell: Shell) -> Shell:
    """A folder with agents in it."""
    shutil.copy(Path(__file__).with_name("agents.py"), shell.folder / "agents.py")
    return shell


@pytest.fixture
def say(agents: Shell, monkeypatch: pytest.MonkeyPatch) -> "Say":
    """Talk over a pipe, in this process."""
    return Say(agents, monkeypatch)


class Say:
    """Sends lines to a chat."""

    def __init__(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shell, self._monkeypatch = shell, monkeypatch

    def __call__(self, lines: str, *words: str) -> Ran:
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return self._shell(*(words or CHAT))


def test_each_line_of_a_pipe_is_a_turn_and_the_next_chat_goes_on(agents: Shell, say: Say) -> None:
    """Answers are all that stdout gets; what needs a person ends the chat with commands, and is then gone on with."""
    ran = say("Hello?\nWipe it.\nneither heard nor lost by anybody\n")
    assert (ran.status, ran.out) == (6, "Hello.\n")
    [yes] = [line.strip() for line in ran.err.splitlines() if line.endswith("--yes")]
    assert agents.copied(yes).status == 0
    again = say("What did I say?\n", *ran.err.splitlines()[-1].split()[1:], "--json")
    first, second = again.values
    assert (first["result"], second["result"]) == ("It is done.", "You said hello.")
    assert first["conversation"] == "c1"
    assert second["usage"]["generations"] == 1


def test_an_answer_that_was_cut_by_a_kill_goes_on_when_the_chat_is_taken_up(agents: Shell, say: Say) -> None:
    """The message is not said again, and its answer comes first."""
    (agents.folder / "gate").touch()
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", *CHAT], cwd=agents.folder, stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as killed:  # fmt: skip
        assert killed.stdin is not None
        assert killed.stderr is not None
        print("Hello?", file=killed.stdin, flush=True)
        assert any("at the gate" in line for line in killed.stderr)
        killed.send_signal(signal.SIGKILL)
        killed.wait(SECONDS)
    (agents.folder / "gate").unlink()
    ran = say("")
    assert (ran.status, ran.out) == (0, "Hello.\n")
    assert "it goes on" in ran.err


def test_what_cannot_be_talked_with_is_refused(say: Say) -> None:
    """A function of other arguments is told so before anything begins."""
    ran = say("Hello?\n", "chat", "program.py:greet", "--conversation", "c1")
    assert ran.status == 2
    assert "cannot be talked with" in ran.err


def test_at_a_terminal_one_is_asked_and_can_stop_an_answer(agents: Shell) -> None:
    """Approvals are asked for where one is; Ctrl-C asks what becomes of the answer; Ctrl-D says how to come back."""
    gate = agents.folder / "gate"
    chat = Terminal(agents.folder, *CHAT)
    chat.wait_for("you> ")
    gate.touch()
    chat.type("Hello?\r")
    chat.wait_for("at the gate")
    gate.unlink()
    chat.type("\x03")
    chat.wait_for("Ctrl-C leaves: ")
    chat.type("s\r")
    chat.wait_for("stopped")
    chat.wait_for("you> ")
    chat.type("Hello again?\r")
    chat.wait_for("Hello.")
    chat.wait_for("you> ")
    chat.type("Wipe it.\r")
    assert "Call wipe?" in chat.wait_for("[l]ater: ")
    chat.type("y\r")
    assert '✓ wipe(disk="sda")' in chat.wait_for("It is done.")
    chat.wait_for("you> ")
    chat.type("/cost\r")
    chat.wait_for("tokens in")
    chat.wait_for("you> ")
    chat.type("\x04")
    chat.wait_for("holdfast chat agents.py:friend --conversation c1")
    assert chat.end() == 0
