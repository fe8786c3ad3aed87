"""`holdfast signal`, `cancel`, `pause`, `resume`, `retry`: what anybody may ask of a run."""

import re
import signal
from collections.abc import Iterator

import pytest

from tests.surface.command import Shell, Started

WAITING = """
import holdfast as hf
from program import note

paid = hf.Signal("paid", int)

def give_back(what: str) -> None:
    note(f"give back {what}")

@hf.durable
async def rent(ctx: hf.Context, what: str, timeout: float | None = None) -> str:
    try:
        cents = await ctx.receive(paid, timeout=timeout)
    finally:
        await ctx.step(give_back, what)
    return f"{cents} paid"

@hf.durable
async def leaf(ctx: hf.Context, number: int) -> int:
    if number == 13:
        raise ValueError("unlucky")
    return number * 2

@hf.durable
async def branch(ctx: hf.Context, number: int) -> int:
    return await ctx.run(leaf, number)

@hf.durable
async def tree(ctx: hf.Context) -> list[int]:
    child = await ctx.spawn(branch, 1)
    try:
        await ctx.run(leaf, 13)
    except hf.RunError:
        pass
    return [await child.result()]

@hf.durable
async def loop(ctx: hf.Context, turn: int) -> int:
    await ctx.sleep(0.01)
    if turn == 2:
        return turn
    await ctx.continue_as(turn + 1)
"""


@pytest.fixture
def waiting(shell: Shell) -> Shell:
    """A folder whose program waits."""
    (shell.folder / "waiting.py").write_text(WAITING)
    return shell


@pytest.fixture
def worker(waiting: Shell) -> Iterator[Started]:
    """A worker of that program."""
    started = waiting.start("worker", "waiting.py")
    started.wait_for("serving")
    yield started
    started.end(signal.SIGKILL)


def rented(shell: Shell) -> str:
    """Return a run that waits for its signal, left by a process that was interrupted."""
    started = shell.start("run", "waiting.py:rent", "boat", "--key", "k")
    started.wait_for("rests: waits for signal paid")
    started.end(signal.SIGKILL)
    run: str = shell("show", "--key", "k", "--json").value["id"]
    return run


def test_a_signal_wakes_the_run_that_waits_for_it(waiting: Shell) -> None:
    """The process that waits with the run sees it come and ends with the result; who sent it is kept."""
    started = waiting.start("run", "waiting.py:rent", "boat", "--key", "k")
    started.wait_for("rests: waits for signal paid")
    run = waiting("show", "--key", "k", "--json").value["id"]
    drawn = waiting("show", run).out
    assert drawn.endswith(f"Send it:\n  holdfast signal {run} paid JSON\n")
    assert "waits for signal paid" in waiting("ls").out
    sent = waiting.copied(drawn.splitlines()[-1].strip() + " --by ada", JSON="42")
    assert sent.status == 0
    ran = started.end()
    assert (ran.status, ran.value) == (0, "42 paid")
    assert re.search(r"✓ receive#1 +[\d.]+ m?s  paid 42, by ada\n", waiting("show", run).out)


def test_a_signal_with_the_same_key_is_sent_once(waiting: Shell) -> None:
    """A script that tries again does no harm: what stands in the inbox is one signal."""
    run = rented(waiting)
    sent = [waiting("signal", run[:8], "paid", value, "--key", "payment-1", "--json") for value in ("1", "2")]
    assert [one.status for one in sent] == [0, 0]
    assert sent[0].value == {
        "run": run, "signal": "paid", "value": 1, "key": "payment-1", "by": "grace", "worker": False, "before": False,
    }  # fmt: skip
    assert sent[1].value["before"] is True
    assert "was sent before" in waiting("signal", run, "paid", "3", "--key", "payment-1").err
    assert waiting("run", "waiting.py:rent", "boat", "--key", "k").value == "1 paid"


def test_a_word_to_a_run_is_told_once_and_refused_when_it_has_ended(waiting: Shell) -> None:
    """`steer` puts the word into the inbox under its key, and a run that has ended is a conflict."""
    run = rented(waiting)
    told = [waiting("steer", run[:13], text, "--key", "w", "--by", "ann", "--json") for text in ("Left!", "Right!")]
    assert [ran.value["before"] for ran in told] == [False, True]
    assert told[0].value == {
        "run": run, "text": "Left!", "key": "w", "by": "ann", "worker": False, "before": False,
    }  # fmt: skip
    assert "was told before" in waiting("steer", run, "Left!", "--key", "w").err
    assert waiting("steer", run, "").status == 2
    waiting("cancel", run)
    assert waiting("run", "waiting.py:rent", "boat", "--key", "k").status == 1
    assert waiting("steer", run, "Too late").status == 4


def test_a_signal_that_says_nothing_clear_is_refused(waiting: Shell) -> None:
    """Text without quotes is not JSON, an empty name is none, and a run that is not there gets nothing."""
    run = rented(waiting)
    ran = waiting("signal", run, "paid", "cash")
    assert ran.status == 2
    assert "'\"cash\"'" in ran.err
    assert waiting("signal", run, "").status == 2
    assert waiting("signal", "00000000-0000-7000-8000-000000000000", "paid", "1").status == 3


def test_a_signal_that_nobody_can_take_says_when_it_will_be(waiting: Shell) -> None:
    """Without a worker it waits in the inbox."""
    assert "no worker is running" in waiting("signal", rented(waiting), "paid", "1").err


def test_a_worker_of_other_functions_is_no_worker_of_a_run(waiting: Shell) -> None:
    """Nobody is promised that a run goes on soon because something else does."""
    run = rented(waiting)
    worker = waiting.start("worker", "program.py", "--only", "count")
    worker.wait_for("serving")
    sent = waiting("signal", run, "paid", "1")
    assert "no worker serves 'rent': the run goes on when its program next runs" in sent.err
    assert waiting("signal", run, "paid", "1", "--json").value["worker"] is False
    assert "no worker serves 'rent': it is heeded when its program next runs" in waiting("pause", run).err
    left = waiting("run", "waiting.py:rent", "boat", "--detach")
    assert "no worker serves 'rent': `holdfast worker waiting.py` takes it up" in left.err
    served = waiting("run", "program.py:count", "1", "--detach", "--delay", "2h", "--json").value["id"]
    assert waiting("cancel", served, "--json").value["worker"] is True
    worker.end(signal.SIGKILL)


def test_cancel_ends_a_run_and_its_clean_up_is_performed(waiting: Shell) -> None:
    """Who asked and why stands in the journal, in the drawing and in the run's reason."""
    started = waiting.start("run", "waiting.py:rent", "boat", "--key", "k")
    started.wait_for("rests: waits for signal paid")
    assert waiting.ledger() == []
    assert waiting("cancel", "--key", "k", "--reason", "storm", "--by", "ada").status == 0
    ran = started.end()
    assert ran.status == 1
    assert "is cancelled: storm\n" in ran.err
    assert waiting.ledger() == ["give back boat"]
    drawn = waiting("show", "--key", "k").out
    assert "│ ■ its end was asked for, by ada: storm" in drawn
    assert re.search(r"│ ✗ receive#1 +[\d.]+ m?s  left, since the run shall end\n", drawn)
    assert "╰ ■ cancelled: storm\n" in drawn


def test_a_cancel_without_a_reason_is_said_in_one_word(waiting: Shell) -> None:
    """Where nobody said why, the status is all that there is to say."""
    run = rented(waiting)
    waiting("cancel", run)
    ran = waiting("run", "waiting.py:rent", "boat", "--key", "k")
    assert f"run {run} is cancelled\n" in ran.err
    assert "╰ ■ cancelled\n" in waiting("show", run).out
    assert waiting("ls", "-q").out.count("cancelled") == 1


@pytest.mark.parametrize("command", ["signal", "cancel", "pause", "resume", "retry"])
def test_what_is_asked_of_an_ended_run_is_a_conflict(waiting: Shell, command: str) -> None:
    """It says that the run had ended and how, and changes nothing."""
    run = waiting("run", "program.py:count", "1", "--json").value["id"]
    before = waiting("tail", run, "--json").out
    ran = waiting(command, run, *(["paid"] if command == "signal" else []), "--json")
    assert (ran.status, ran.error["code"]) == (4, "conflict")
    assert "had ended before: completed" in ran.error["message"]
    assert waiting("tail", run, "--json").out == before


def test_a_paused_run_takes_nothing_until_it_is_resumed(waiting: Shell, worker: Started) -> None:
    """A signal that comes meanwhile waits; the commands on the screen lead on."""
    (waiting.folder / "start.py").write_text(
        "import asyncio, waiting, holdfast as hf\n"
        "async def main():\n"
        "    async with hf.open(work=False) as runtime:\n"
        "        await runtime.start(waiting.rent, 'boat', key='k')\n"
        "asyncio.run(main())\n"
    )
    starting = waiting.run_python("start.py")
    assert starting.returncode == 0, starting.stderr
    until(waiting, "k", "RunParked", "signal")
    run = waiting("show", "--key", "k", "--json").value["id"]
    assert waiting("pause", run, "--reason", "lunch", "--json").value == {
        "run": run, "asked": "pause", "reason": "lunch", "by": "grace", "worker": True,
    }  # fmt: skip
    until(waiting, "k", "RunParked", "paused")
    assert waiting("signal", run, "paid", "7").status == 0
    drawn = waiting("show", run).out
    assert "rests: paused: lunch" in drawn
    assert waiting("show", run, "--json").value["status"] in ("paused", "running")
    resumed = waiting.copied(f"holdfast resume {run} --by ada")
    assert "may go on" in resumed.err
    until(waiting, "k", "RunFinished", "")
    assert waiting("show", run, "--json").value["result"] == "7 paid"


def until(shell: Shell, key: str, kind: str, reason: str) -> None:
    """Follow a run until it has such an entry."""
    tail = shell.start("tail", "--key", key, "--json")
    tail.wait_for(f'"type":"{kind}"' if not reason else f'"reason":"{reason}"', on="out")
    tail.end(signal.SIGKILL)


def test_resume_of_a_run_that_is_not_paused_says_how_it_stands(waiting: Shell) -> None:
    """It does no harm, and nobody is led to believe that it was paused."""
    assert "it was waiting" in waiting("resume", rented(waiting)).err


def test_a_run_that_goes_on_by_itself_is_not_tried_again(waiting: Shell) -> None:
    """Only what was set aside, or refused, is."""
    assert waiting("retry", rented(waiting)).status == 4


def test_a_run_that_code_refused_is_tried_again_when_asked(waiting: Shell) -> None:
    """The same version may have been mended in a place that it does not tell of."""
    program = (
        "import holdfast as hf\n"
        "@hf.durable\n"
        "async def f(ctx: hf.Context) -> int:\n"
        "    await ctx.sleep(0.01)\n"
        "    return await ctx.ask('On?') and 1\n"
    )
    (waiting.folder / "f.py").write_text(program + "app = hf.App(f, version='1')\n")
    question = waiting("run", "f.py", "--key", "f", "--json").error["questions"][0]["id"]
    changed = program.replace("sleep(0.01)", "sleep(0.02)")
    (waiting.folder / "f.py").write_text(changed + "app = hf.App(f, version='2')\n")
    waiting("answer", question, "--yes")
    assert "diverged" in waiting("run", "f.py", "--key", "f").err
    (waiting.folder / "f.py").write_text(program + "app = hf.App(f, version='2')\n")
    assert waiting("run", "f.py", "--key", "f").status == 1, "a version that diverged is refused for good"
    assert waiting("retry", "--key", "f", "--by", "ada").status == 0
    assert waiting("run", "f.py", "--key", "f").value == 1


def test_the_children_of_a_run_are_drawn_as_a_tree(waiting: Shell) -> None:
    """Each stands under its parent, with how it ended; the drawing says when each was spawned and settled."""
    shown = waiting("run", "waiting.py:tree", "--key", "t", "--json").value
    assert shown["result"] == [2]
    ran = waiting("show", "--key", "t")
    assert "│ ▸ branch#1  child " in ran.out
    assert re.search(r"│ ✗ leaf#1 +child failed: unlucky\n", ran.out)
    lines = ran.out[ran.out.index("\nchildren\n") :].splitlines()[2:]
    assert [line.partition("  ")[0] for line in lines] == ["├ branch", "│ └ leaf", "└ leaf"]
    assert lines[2].endswith("failed  ValueError: unlucky")
    first, second = waiting("show", "--key", "t", "--json").value["children"]
    assert (first["name"], first["status"], first["children"][0]["name"]) == ("branch", "completed", "leaf")
    assert (second["status"], second["children"]) == ("failed", [])


def test_a_run_that_goes_on_from_the_top_is_drawn_so(waiting: Shell) -> None:
    """Its generations are told apart."""
    assert waiting("run", "waiting.py:loop", "0", "--key", "l").value == 2
    drawn = waiting("show", "--key", "l").out
    assert 'goes on from the top: generation 2  {"turn":2}' in drawn


def test_a_signal_that_did_not_come_in_time_is_told(waiting: Shell) -> None:
    """A wait that ended by itself does not look like one that was answered."""
    assert waiting("run", "waiting.py:rent", "boat", "0.05", "--key", "k").value == "None paid"
    assert "nothing came in time" in waiting("show", "--key", "k").out


TREE = """
import holdfast as hf
from pathlib import Path

def clean(name: str) -> None:
    with Path("cleaned").open("a") as file:
        print(name, file=file)

@hf.durable
async def leaf(ctx: hf.Context) -> None:
    try:
        await ctx.ask("Shall I?")
    finally:
        await ctx.step(clean, "leaf")

@hf.durable
async def bough(ctx: hf.Context) -> None:
    try:
        await ctx.run(leaf)
    finally:
        await ctx.step(clean, "bough")

@hf.durable
async def tree(ctx: hf.Context) -> None:
    await ctx.run(bough)
"""


def test_a_run_that_is_ended_here_has_its_children_ended_here(shell: Shell) -> None:
    """Nobody else may come who would: their clean-up is done before the command leaves."""
    (shell.folder / "tree.py").write_text(TREE)
    assert shell("run", "tree.py:tree", "--key", "k").status == 6
    assert shell("cancel", "k").status == 0
    assert shell("run", "tree.py:tree", "--key", "k").status == 1
    assert {(run["name"], run["status"]) for run in shell("ls", "--json").values} == {
        ("tree", "cancelled"), ("bough", "cancelled"), ("leaf", "cancelled"),
    }  # fmt: skip
    assert sorted((shell.folder / "cleaned").read_text().split()) == ["bough", "leaf"]
