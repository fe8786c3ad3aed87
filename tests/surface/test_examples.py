"""The programs in `examples` do what they say, from a shell."""

import asyncio
import importlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.surface.command import SECONDS, Shell

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


KILLED = """
import os, keep_your_loop as k
act = k.act
k.act = lambda tool: act(tool) if tool != "mail" else os.kill(os.getpid(), 9)
k.work_on("ticket-42", "Order 42 arrived broken.")
"""
"""The loop of an example, which dies inside its last tool."""


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


def test_a_loop_that_is_killed_is_kept_and_goes_on(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process says what was left, goes on with its messages, and no tool is called twice."""
    monkeypatch.setenv("PAUSE", "0")
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES))
    asked: dict[str, Any] = {"cwd": shell.folder, "capture_output": True, "text": True, "timeout": SECONDS}
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False, **asked)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = subprocess.run([sys.executable, str(EXAMPLES / "keep_your_loop.py")], check=False, **asked)
    assert done.returncode == 0, done.stderr
    assert "ticket-42 was left by process" in done.stdout
    assert "attempt 2, 6 messages" in done.stdout
    assert "nobody knows whether call-2 happened" in done.stdout
    assert "The order is refunded" in done.stdout
    assert (shell.folder / "done.txt").read_text("utf-8") == "look\nrefund\n"


@pytest.fixture
def example(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder with the agents of the examples in it, and no model but theirs."""
    monkeypatch.delenv("MODEL", raising=False)
    monkeypatch.setenv("PAUSE", "0")
    for name in ("support.py", "research.py", "chat_app.py"):
        shutil.copy(EXAMPLES / name, shell.folder / name)
    return shell


def test_a_refund_is_paid_once_and_only_after_a_person_agreed(example: Shell) -> None:
    """It asks, is answered with other arguments, pays, and pays nothing when it is run again."""
    words = ("run", "support.py", "Order 42 arrived broken.", "--key", "ticket-42")
    assert example(*words).status == 6
    assert not Path("refunds.txt").exists()
    question = example("answer", "--json").value
    assert question["show"] == {"tool": "refund", "arguments": {"order": "42", "cents": 2000}}
    assert example("answer", question["id"], "--yes", "--args", '{"cents": 1500}').status == 0
    for _ in range(2):
        ran = example(*words)
        assert (ran.status, ran.out.startswith("I am sorry about the vase.")) == (0, True)
    assert Path("refunds.txt").read_text("utf-8") == "42 1500\n"


def test_a_report_is_written_of_what_was_read(example: Shell) -> None:
    """Pages are read side by side, another agent judges, and the result has the report's form."""
    ran = example("run", "research.py:researcher", "Why do durable runs help agents?")
    assert ran.status == 0, ran.err
    assert (len(ran.value["findings"]), len(ran.value["sources"])) == (3, 3)
    assert ran.err.count("✓ fetch(") == 3
    assert "✓ critic(" in ran.err


def test_whoever_comes_again_with_the_same_key_joins_the_same_turn(example: Shell) -> None:
    """The chat application streams words, then the answer; a lost connection costs nothing."""
    sys.path.insert(0, str(example.folder))
    try:
        app = importlib.import_module("chat_app").app
        answers = asyncio.run(ask_twice(app))
    finally:
        sys.path.remove(str(example.folder))
        sys.modules.pop("chat_app", None)
    first, again = ([json.loads(line) for line in answer.splitlines() if line] for answer in answers)
    assert first[-1] == again[-1]
    assert (first[-1]["type"], first[-1]["result"]) == ("session.run.completed", "You said: Good day")


async def ask_twice(app: Any) -> list[str]:
    """Say the same thing twice under one key, as a page does that lost its connection."""
    transport = httpx2.ASGITransport(app=app)
    async with app.router.lifespan_context(app), httpx2.AsyncClient(transport=transport, base_url="http://own") as web:
        assert "<form>" in (await web.get("/")).text
        said: dict[str, Any] = {"json": {"text": "Good day"}, "headers": {"idempotency-key": "m-1"}}
        return [(await web.post("/chat/c-1", **said)).text for _ in range(2)]
