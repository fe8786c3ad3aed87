"""`holdfast doctor`: what a run's life depends on, and what to do about it."""

import asyncio
import signal
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.store.clock import system_clock
from holdfast.store.sqlite import SqliteStore
from tests.surface.command import Shell, damage
from tests.surface.program import hold


def checks(shell: Shell) -> dict[str, list[Any]]:
    """Return what the doctor found, by what it looked at."""
    found: dict[str, list[Any]] = {}
    for check in shell("doctor", "--json").values:
        found.setdefault(check["check"], []).append(check)
    return found


def killed_at_the_gate(shell: Shell) -> str:
    """Return a run whose process was killed after one step."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--key", "k")
    started.wait_for("at the gate")
    started.end(signal.SIGKILL)
    (shell.folder / "gate").unlink()
    run: str = shell("show", "--key", "k", "--json").value["id"]
    return run


def test_a_sound_store_is_found_sound(shell: Shell) -> None:
    """Python, store, durability, disk, workers and runs are each looked at and named."""
    shell("run", "program.py:count", "1")
    ran = shell("doctor")
    assert ran.status == 0
    for what in ("python", "store", "durability", "disk", "workers", "runs"):
        assert f"✓ {what}" in ran.out
    assert "journal WAL, synchronous FULL" in ran.out
    assert "synchronised appends a second" in ran.out
    assert "GB free" in ran.out
    assert {check["status"] for group in checks(shell).values() for check in group} == {"ok"}
    assert shell("doctor", "--quiet").out == ""
    assert sorted(path.name for path in shell.folder.iterdir() if "doctor" in path.name) == []


def test_where_there_is_no_store_yet_it_says_so_and_makes_none(shell: Shell) -> None:
    """The first look of a newcomer is no failure."""
    ran = shell("doctor")
    assert ran.status == 0
    assert "! store      there is no store at sqlite:///holdfast.db" in ran.out
    assert not (shell.folder / "holdfast.db").exists()


def test_a_store_that_cannot_be_used_exits_with_5(shell: Shell) -> None:
    """Somebody else's database is refused with the reason."""
    apsw.Connection("other.db").execute("CREATE TABLE theirs (x)")
    ran = shell("doctor", "--store", "sqlite:///other.db")
    assert ran.status == 5
    assert "✗ store" in ran.out
    assert "not a Holdfast store" in ran.out


def test_a_dead_worker_and_its_runs_are_named(shell: Shell) -> None:
    """Whoever finds a dead worker learns which runs wait for their program."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1")
    started.wait_for("at the gate")
    assert "alive" in checks(shell)["workers"][0]["advice"]
    started.end(signal.SIGKILL)
    found = checks(shell)
    assert "dead" in found["workers"][0]["advice"]
    assert "Run its program, or start another worker" in found["workers"][0]["advice"]
    run = shell("ls", "--json").value["id"]
    assert found["runs"][0]["runs"] == [run]
    assert "held by a dead worker" in found["runs"][0]["found"]
    (shell.folder / "gate").unlink()
    assert shell("run", "program.py:hold", "--resume", run).status == 0
    assert "dead" not in checks(shell)["workers"][0]["found"], "as the advice says"
    assert shell("doctor").status == 0


def test_runs_that_rest_are_named_by_what_they_wait_for(shell: Shell) -> None:
    """Doubt, divergence and damage are told apart, and only damage is a failure."""
    doubt = shell("run", "program.py:pay", "5", "--json").error["run"]
    [check] = checks(shell)["runs"]
    assert (check["status"], check["runs"]) == ("note", [doubt])
    assert "waiting for a person's word" in check["found"]
    assert shell("doctor").status == 0
    killed_at_the_gate(shell)
    program = (shell.folder / "program.py").read_text()
    changed = program.replace("step(add, number)\n    number", "step(pass_gate, number)\n    number")
    (shell.folder / "program.py").write_text(changed)
    diverged = shell("run", "program.py:hold", "1", "--key", "k", "--json").error["run"]
    found = {check["found"]: check["runs"] for check in checks(shell)["runs"]}
    assert found["1 run diverged from its code"] == [diverged]


def test_a_damaged_run_that_was_set_aside_is_a_failure(shell: Shell) -> None:
    """A quarantined run makes the doctor's exit status 1 and names the next command."""
    run = killed_at_the_gate(shell)
    damage(shell.folder / "holdfast.db", run, 2)
    with pytest.raises(hf.HoldfastError):
        hf.run(hold, 1, key="k")
    [check] = [check for check in checks(shell)["runs"] if check["status"] == "bad"]
    assert check["runs"] == [run]
    assert "holdfast verify" in check["advice"]
    assert shell("doctor").status == 1


def test_a_run_that_nobody_takes_up_is_named_with_its_function(shell: Shell) -> None:
    """A run that is due and waits for its program does not wait in silence."""
    asyncio.run(start_a_minute_ago("late.db", delay_seconds=0))
    run = shell("ls", "--json", "--store", "sqlite:///late.db").value["id"]
    ran = shell("doctor", "--store", "sqlite:///late.db", "--json")
    [check] = [check for check in ran.values if "due" in check["found"]]
    assert check["runs"] == [run]
    assert "1 run due, but no worker is running: hold" in check["found"]
    assert ran.status == 0
    worker = shell.start("worker", "program.py", "--only", "count", "--store", "sqlite:///late.db")
    worker.wait_for("serving")
    assert "1 run due, but no worker that runs knows it: hold" in shell("doctor", "--store", "sqlite:///late.db").out
    worker.end(signal.SIGKILL)


def test_a_run_that_is_not_due_yet_is_nobodys_fault(shell: Shell) -> None:
    """A run that was asked to start later is not missed before its time."""
    asyncio.run(start_a_minute_ago("late.db", delay_seconds=3600))
    assert "due" not in shell("doctor", "--store", "sqlite:///late.db").out


async def start_a_minute_ago(path: str, *, delay_seconds: float) -> None:
    """Write a run that has been waiting for a worker, by a clock that is behind."""
    store = await SqliteStore.open(path, clock=lambda: system_clock() - 60_000_000)
    async with hf.open(store, work=False) as runtime:
        await runtime.start(hold, 1, delay=delay_seconds)
