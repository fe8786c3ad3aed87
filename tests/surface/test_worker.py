"""`holdfast worker`: serve a program's runs, and leave in good order."""

import asyncio
import fcntl
import json
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast as hf
from tests.surface.command import Shell, Started

GATED = """
import fcntl, sys
from pathlib import Path
import holdfast as hf

HERE = Path(__file__).parent

def wait() -> str:
    print("at the gate", file=sys.stderr, flush=True)
    with (HERE / "gate").open() as gate:
        fcntl.flock(gate, fcntl.LOCK_SH)
    with (HERE / "ledger.txt").open("a") as ledger:
        ledger.write("x waited\\n")
    return "waited"

@hf.durable
async def gated(ctx: hf.Context, number: int = 0) -> list[str]:
    return [await ctx.step(wait), await ctx.step(wait)]
"""
OTHER = """
import holdfast as hf

@hf.durable
async def other(ctx: hf.Context) -> str:
    return "other"

app = hf.App(other, version="7")
"""


class Yard(Shell):
    """A shell whose processes do not outlive the test."""

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell.folder, shell._capture)
        self.started: list[Started] = []
        self.gate = (self.folder / "gate").open("w")
        fcntl.flock(self.gate, fcntl.LOCK_EX)

    def start(self, *words: str, environment: dict[str, str] | None = None) -> Started:
        """Start a process that can be killed."""
        self.started.append(super().start(*words, environment=environment))
        return self.started[-1]


@pytest.fixture
def gated(shell: Shell) -> Iterator[Yard]:
    """A program that waits in its steps until a gate is open, beside the usual one."""
    (shell.folder / "gated.py").write_text(GATED, "utf-8")
    (shell.folder / "other.py").write_text(OTHER, "utf-8")
    yard = Yard(shell)
    yield yard
    for started in yard.started:
        if started.process.returncode is None:
            started.end(signal.SIGKILL)
    yard.gate.close()


def interrupted(shell: Shell) -> str:
    """Return a run of `gated` that its process left at the gate."""
    started = shell.start("run", "gated.py", "--key", "k")
    started.wait_for("at the gate")
    started.end(signal.SIGKILL)
    run: str = shell("ls", "--json").value["id"]
    return run


def a_worker(shell: Shell, *words: str, until: str = "serving") -> Started:
    """Start a worker and wait until it has said something."""
    started = shell.start("worker", *words)
    started.wait_for(until)
    return started


def test_a_worker_takes_over_from_the_dead_and_says_so(gated: Yard) -> None:
    """What another process left goes on, and whoever watches the worker sees from whom it was taken."""
    run = interrupted(gated)
    worker = a_worker(gated, "gated.py", until="at the gate")
    gated.gate.close()
    assert gated("tail", run, "--json").values[-1]["type"] == "RunFinished"
    ran = worker.end(signal.SIGTERM)
    assert ran.status == 0
    assert "serving gated  64 at a time, on sqlite:///holdfast.db, as worker" in ran.err
    assert "took over 1 run from worker" in ran.err
    assert ran.out == ""


def test_a_worker_that_died_with_nothing_in_hand_is_not_told_of(gated: Yard) -> None:
    """That no run was taken over is no news, for people and programs."""
    a_worker(gated, "gated.py").end(signal.SIGKILL)
    ran = a_worker(gated, "gated.py").end(signal.SIGTERM)
    assert "took over" not in ran.err
    assert "left" in ran.err


def test_sigterm_hands_every_run_over_and_exits_with_0(gated: Yard) -> None:
    """A deploy: the step under way is recorded, the next one is another worker's, and nothing is repeated."""
    run = interrupted(gated)
    first = a_worker(gated, "gated.py", until="at the gate")
    first.process.send_signal(signal.SIGTERM)
    first.wait_for("leaving: each run is handed over")
    gated.gate.close()
    ran = first.end()
    assert (ran.status, "left: every run was handed over" in ran.err) == (0, True)
    shown = gated("show", run, "--json").value
    assert (shown["status"], gated.ledger()) == ("queued", ["waited"])
    second = a_worker(gated, "gated.py")
    assert gated("tail", run, "--json").values[-1]["type"] == "RunFinished"
    assert second.end(signal.SIGTERM).status == 0
    assert gated.ledger() == ["waited", "waited"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(gated: Yard, number: int) -> None:
    """Who is in a hurry does not wait for the grace; the run is given back all the same."""
    interrupted(gated)
    worker = a_worker(gated, "gated.py", "--grace", "600", until="at the gate")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_for("leaving")
    ran = worker.end(number)
    assert (ran.status, "left at once" in ran.err) == (130, True)
    assert gated("ls", "--json").value["status"] == "queued"
    assert gated("ls", "--workers", "--json").values == []


def test_ctrl_c_ends_at_once_with_130(gated: Yard) -> None:
    """As every other command does; its runs are another's at once."""
    interrupted(gated)
    worker = a_worker(gated, "gated.py", until="at the gate")
    assert worker.end(signal.SIGINT).status == 130
    assert gated("ls", "--json").value["status"] == "queued"


def test_a_grace_that_is_over_interrupts(gated: Yard) -> None:
    """A step that hangs does not keep a worker from leaving."""
    interrupted(gated)
    worker = a_worker(gated, "gated.py", "--grace", "0.1", until="at the gate")
    assert worker.end(signal.SIGTERM).status == 0
    assert gated("ls", "--json").value["status"] == "queued"


def test_runs_that_nobody_serves_are_named_at_the_start(gated: Yard) -> None:
    """Whoever starts the wrong program learns it from the first lines, not from silence."""
    interrupted(gated)
    worker = a_worker(gated, "other.py", until="no worker serves")
    ran = worker.end(signal.SIGTERM)
    assert "no worker serves: gated (1 run)" in ran.err


def test_runs_that_wait_for_a_busy_worker_are_not_said_to_be_unserved(gated: Yard) -> None:
    """What another worker has the code for will be driven, if not at once."""
    interrupted(gated)
    second = gated.start("run", "gated.py", "--key", "k2")
    second.wait_for("at the gate")
    second.end(signal.SIGKILL)
    a_worker(gated, "gated.py", "--concurrency", "1", until="at the gate")
    beside = a_worker(gated, "other.py")
    assert sorted(run["status"] for run in gated("ls", "--json").values) == ["queued", "running"]
    assert "no worker serves" not in beside.end(signal.SIGTERM).err


def events(text: str) -> dict[str, Any]:
    """Return what a worker told as JSON, by event."""
    return {line["event"]: line for line in map(json.loads, text.splitlines())}


def test_json_tells_the_same_line_by_line(gated: Yard) -> None:
    """A program that starts workers reads what they do."""
    interrupted(gated)
    worker = gated.start("worker", "other.py", "--json", "--concurrency", "3")
    worker.wait_for("unserved", on="out")
    told = events(worker.end(signal.SIGTERM).out)
    assert list(told) == ["took_over", "serving", "unserved", "draining", "left"]
    assert (told["took_over"]["runs"], told["took_over"]["why"]) == (1, "its lock was free")
    assert (told["serving"]["serves"], told["serving"]["concurrency"]) == (["other"], 3)
    assert told["unserved"]["runs"] == {"gated": 1}
    assert told["left"]["drained"] is True


def test_several_targets_are_one_worker_and_only_narrows_it(gated: Yard) -> None:
    """Programs that agree on version and dependencies are served together."""
    worker = a_worker(gated, "gated.py", "program.py", "--only", "gated", "--only", "count")
    (row,) = gated("ls", "--workers", "--json").values
    assert row["serves"] == ["count", "gated"]
    worker.end(signal.SIGTERM)


@pytest.mark.parametrize(
    ("words", "said", "advice"),
    [
        ([], "name the program to serve", "holdfast worker --help"),
        (["gated.py:nothing"], "has no durable function 'nothing'", "gated.py:gated"),
        (["gated.py", "--only", "count"], "no target has 'count'", "There is: gated"),
        (["gated.py", "other.py"], "differ in more than their functions", "Start a worker for each"),
        (["nowhere.py"], "there is no file nowhere.py", "A target is"),
        (["gated.py", "--grace", "-1"], "--grace", "holdfast worker --help"),
    ],
)
def test_what_cannot_be_served_is_refused_with_what_to_do(
    gated: Yard, words: list[str], said: str, advice: str
) -> None:
    """Nothing is started, and no store is made, before it is clear what to serve."""
    ran = gated("worker", *words)
    assert ran.status == 2
    assert said in ran.err
    assert advice in ran.err
    assert not (gated.folder / "holdfast.db").exists()


def test_workers_are_listed_with_what_they_are(gated: Yard) -> None:
    """Who they are, what they serve, what they hold, and whether they live: for people and for programs."""
    assert gated("ls", "--workers").status == 5
    run = interrupted(gated)
    (row,) = gated("ls", "--workers", "--json").values
    assert (row["lock"], row["runs"], row["only"], row["serves"]) == ("free", [run], True, ["gated"])
    worker = a_worker(gated, "gated.py", "--concurrency", "5", until="at the gate")
    (row,) = gated("ls", "--workers", "--json").values
    assert (row["lock"], row["runs"], row["serves"], row["concurrency"]) == ("held", [run], ["gated"], 5)
    assert (row["host"], row["pid"], row["only"]) == (socket.gethostname(), worker.process.pid, False)
    head, line = gated("ls", "--workers").out.splitlines()
    assert head.split() == ["WORKER", "HOST", "PID", "RUNS", "AT", "ONCE", "LAST", "SIGN", "LOCK", "SERVES"]
    assert line.startswith(row["id"])
    assert line.endswith("held  gated")
    worker.end(signal.SIGKILL)
    assert "free" in gated("ls", "--workers").out
    assert gated("ls", "--workers", "--status", "failed").status == 2
    gated.gate.close()
    gated("run", "gated.py", "--key", "k")
    assert "no workers" in gated("ls", "--workers").err


def test_a_workers_lock_is_one_word_in_python_and_in_json(gated: Yard) -> None:
    """Whoever moves from the command line to the client compares the same word."""

    async def locks() -> list[str]:
        async with hf.open(f"sqlite:///{gated.folder}/holdfast.db", work=False) as runtime:
            return [worker.lock for worker in await runtime.client.workers()]

    worker = a_worker(gated, "gated.py")
    assert asyncio.run(locks()) == ["held"] == [line["lock"] for line in gated("ls", "--workers", "--json").values]
    worker.end(signal.SIGKILL)
    assert asyncio.run(locks()) == ["free"] == [line["lock"] for line in gated("ls", "--workers", "--json").values]
