"""`holdfast worker` starts what is scheduled, and `holdfast ls --schedules` tells what that is."""

import json
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.surface.command import Shell, Started

CLOCKED = """
from datetime import datetime
import holdfast as hf

@hf.durable
async def nightly(ctx: hf.Context, at: datetime, team: str) -> str:
    return f"{team} {at:%H:%M}"

@hf.durable
async def hourly(ctx: hf.Context) -> None:
    return None

app = hf.App(nightly, hourly)
app.schedule(nightly, "30 2 29 2 *", tz="Europe/Berlin", missed="last", args=("blue",))
app.schedule(hourly, "@hourly", overlap="skip")
"""


@pytest.fixture
def clocked(shell: Shell) -> Shell:
    """A program with two schedules, of which one comes so rarely that it does not come while a test looks."""
    (shell.folder / "clocked.py").write_text(CLOCKED, "utf-8")
    return shell


@contextmanager
def serving(shell: Shell, *words: str, until: str, on: str = "err") -> Iterator[Started]:
    """Start a worker that has told of its schedules; it does not outlive the block."""
    worker = shell.start("worker", "clocked.py", *words)
    try:
        worker.wait_for(until, on=on)
        yield worker
    finally:
        if worker.process.returncode is None:
            worker.end(signal.SIGKILL)


def told_by(shell: Shell, *words: str) -> list[Any]:
    """Return what a worker tells as JSON from its beginning to its end."""
    with serving(shell, "--json", *words, until='"event":"schedule"', on="out") as worker:
        return [json.loads(line) for line in worker.end(signal.SIGTERM).out.splitlines()]


def test_a_worker_tells_what_it_starts_and_when(clocked: Shell) -> None:
    """Whoever starts a worker sees each schedule with its next tick, for people and for programs."""
    told = told_by(clocked)
    assert [line["event"] for line in told[:3]] == ["serving", "schedule", "schedule"]
    assert told[0]["serves"] == ["hourly", "nightly"]
    first = told[1]
    assert (first["name"], first["cron"], first["tz"]) == ("nightly", "30 2 29 2 *", "Europe/Berlin")
    assert (first["missed"], first["overlap"], first["function"]) == ("last", "allow", "nightly")
    assert datetime.fromisoformat(first["next_at"]).minute in (0, 30)
    with serving(clocked, until="starts hourly  0 * * * * UTC, next ") as worker:
        assert "starts nightly  30 2 29 2 * Europe/Berlin, next " in worker.end(signal.SIGTERM).err


def test_schedules_are_listed_while_a_worker_looks_after_them(clocked: Shell) -> None:
    """Name, expression, zone, next tick, last tick and its run; a worker that was killed does not count."""
    with serving(clocked, until="starts hourly") as worker:
        hourly, nightly = clocked("ls", "--schedules", "--json").values
        assert (nightly["name"], nightly["cron"], nightly["tz"]) == ("nightly", "30 2 29 2 *", "Europe/Berlin")
        assert (nightly["last_at"], nightly["run"], len(nightly["workers"])) == (None, None, 1)
        assert (hourly["missed"], hourly["overlap"]) == ("skip", "skip")
        run = clocked(
            "run", "clocked.py:nightly", "2026-11-16T01:30:00Z", "red", "--json",
            "--label", "schedule=nightly", "--label", "tick=2026-11-16T01:30:00Z",
        ).value["id"]  # fmt: skip
        nightly = clocked("ls", "--schedules", "--json").values[1]
        assert (nightly["last_at"], nightly["run"]) == ("2026-11-16T01:30:00Z", run)
        head, first, second = clocked("ls", "--schedules").out.splitlines()
        assert head.split() == ["SCHEDULE", "CRON", "ZONE", "NEXT", "LAST", "RUN", "WORKERS", "FUNCTION"]
        assert first.startswith("hourly    0 * * * *    UTC")
        assert f"{run}  1        nightly" in second
        worker.end(signal.SIGKILL)
    assert "all dead" in clocked("ls", "--schedules").out


@pytest.mark.parametrize("here", ["UTC", "America/New_York"])
def test_a_tick_is_shown_in_its_schedules_own_zone(clocked: Shell, monkeypatch: pytest.MonkeyPatch, here: str) -> None:
    """The clock of whoever looks plays no part: half past two in Berlin is half past two, with its offset."""
    monkeypatch.setenv("TZ", here)
    time.tzset()
    try:
        with serving(clocked, until="starts hourly") as worker:
            nightly = clocked("ls", "--schedules").out.splitlines()[2]
            said = worker.end(signal.SIGTERM).err
    finally:
        monkeypatch.undo()
        time.tzset()
    assert re.search(r"Europe/Berlin, next \d{4}-02-29 02:30:00 \+01:00", said)
    assert re.search(r"Europe/Berlin  \d{4}-02-29 02:30:00 \+01:00", nightly)


def test_a_store_without_schedules_says_so(clocked: Shell) -> None:
    """An empty list is told apart from a list that failed."""
    assert clocked("ls", "--schedules").status == 5
    clocked("run", "program.py:count", "1")
    ran = clocked("ls", "--schedules")
    assert (ran.status, ran.out) == (0, "")
    assert "no schedules" in ran.err
    assert clocked("ls", "--schedules", "--workers").status == 2
    assert clocked("ls", "--schedules", "--name", "nightly").status == 2


def test_only_narrows_the_schedules_too(clocked: Shell) -> None:
    """A worker that does not serve a function does not start it either."""
    told = told_by(clocked, "--only", "hourly")
    assert [line["name"] for line in told if line["event"] == "schedule"] == ["hourly"]


def test_a_bad_schedule_is_refused_when_the_program_is_loaded(clocked: Shell) -> None:
    """The message is the one that the program's author needs, and no store is made."""
    (clocked.folder / "clocked.py").write_text(CLOCKED.replace("30 2 ", "30 26 "), "utf-8")
    ran = clocked("worker", "clocked.py")
    assert ran.status == 2
    assert "the hour is '26'; it takes 0 to 23" in ran.err
    assert not (clocked.folder / "holdfast.db").exists()


def test_a_schedules_own_run_is_listed_only_for_whoever_names_it(shell: Shell) -> None:
    """It is how a store remembers since when a schedule is looked after, and none of the user's."""
    (shell.folder / "clock.py").write_text(
        "import asyncio\n"
        "import holdfast as hf\n"
        "@hf.durable\n"
        "async def sweep(ctx: hf.Context) -> None: ...\n"
        "app = hf.App(sweep)\n"
        "app.schedule(sweep, '0 0 1 1 *')\n"
        "async def main():\n"
        "    async with hf.open('sqlite:///holdfast.db', app) as runtime:\n"
        "        while not await runtime.runs(name='holdfast:schedule'):\n"
        "            await asyncio.sleep(0.01)\n"
        "asyncio.run(main())\n"
    )
    assert shell.run_python("clock.py").returncode == 0
    assert "no runs yet" in shell("ls").err
    assert [run["name"] for run in shell("ls", "--name", "holdfast:schedule", "--json").values] == ["holdfast:schedule"]
    assert "1 run (1 of them Holdfast's own, which `ls` does not list): nothing is wrong" in shell("verify").err


def test_a_worker_is_listed_without_what_is_holdfasts_own(clocked: Shell) -> None:
    """What it serves are the functions of its program."""
    with serving(clocked, until="starts hourly"):
        assert clocked("ls", "--workers", "--json").value["serves"] == ["hourly", "nightly"]
        assert "holdfast:schedule" not in clocked("ls", "--workers").out


def test_a_tick_is_found_by_its_key_in_either_spelling(clocked: Shell) -> None:
    """A key that was made of parts is kept with its colons escaped; whoever types them as they are finds it too."""
    (clocked.folder / "start.py").write_text(
        "from datetime import UTC, datetime\n"
        "import holdfast as hf\n"
        "from clocked import nightly\n"
        "at = datetime(2026, 11, 16, 8, 48, tzinfo=UTC)\n"
        "hf.run(nightly, at, 'red', store='sqlite:///holdfast.db', key=('schedule', 'nightly', f'{at:%FT%TZ}'))\n"
    )
    assert clocked.run_python("start.py").returncode == 0
    kept, typed = "schedule/nightly/2026-11-16T08%3A48%3A00Z", "schedule/nightly/2026-11-16T08:48:00Z"
    assert clocked("show", "--key", kept, "--json").value["key"] == kept
    assert clocked("show", "--key", typed, "--json").value["key"] == kept
    assert clocked("show", typed, "--json").value["key"] == kept
    missing = clocked("show", "--key", typed.replace("nightly", "daily"))
    assert (missing.status, "key 'schedule/daily/2026-11-16T08:48:00Z' was not found" in missing.err) == (3, True)
