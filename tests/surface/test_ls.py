"""`holdfast ls`: which runs are here, newest first."""

import shlex
import signal
import time

import pytest

from tests.surface.command import SECONDS, Shell, run_ids


def test_runs_are_listed_newest_first(shell: Shell) -> None:
    """The run that somebody just started stands on top, with its id, name, status and key."""
    first = shell("run", "program.py:count", "1", "--key", "one", "--json").value["id"]
    second = shell("run", "program.py:fail", "--json").error["run"]
    lines = shell("ls").out.splitlines()
    assert lines[0].split() == ["RUN", "NAME", "STATUS", "AGE", "KEY"]
    assert lines[1].startswith(f"{second}  fail   failed")
    assert lines[1].endswith("ValueError: out of luck")
    assert lines[2].startswith(f"{first}  count  completed")
    assert lines[2].endswith("one")


def test_json_gives_a_line_for_each_run(shell: Shell) -> None:
    """A program reads the list line by line."""
    shell("run", "program.py:count", "1", "--key", "one", "--label", "team=a")
    shell("run", "program.py:fail")
    ran = shell("ls", "--json")
    assert [run["name"] for run in ran.values] == ["fail", "count"]
    assert ran.values[0]["status"] == "failed"
    assert (ran.values[1]["key"], ran.values[1]["labels"]) == ("one", {"team": "a"})
    assert ran.err == ""


def test_filters_narrow_the_list(shell: Shell) -> None:
    """Status, name and labels each leave out what they do not name."""
    shell("run", "program.py:count", "1", "--label", "team=a", "--label", "tier=free")
    shell("run", "program.py:count", "2", "--label", "team=b")
    shell("run", "program.py:fail")
    names = [run["name"] for run in shell("ls", "--json", "--status", "failed").values]
    assert names == ["fail"]
    assert len(shell("ls", "--json", "--name", "count").values) == 2
    assert len(shell("ls", "--json", "--label", "team=a").values) == 1
    assert len(shell("ls", "--json", "--label", "team=a", "--label", "tier=paid").values) == 0
    assert "no runs like that" in shell("ls", "--status", "paused").err


def test_pages_give_every_run_exactly_once(shell: Shell) -> None:
    """The command at the foot of a page gives the next one, until there is none."""
    made = [shell("run", "program.py:count", str(n), "--json").value["id"] for n in range(5)]
    seen, ran = [], shell("ls", "--limit", "2", "--name", "count")
    while True:
        page = [line.split()[0] for line in ran.out.splitlines()[1:]]
        assert len(page) <= 2
        seen += page
        older = [line.removeprefix("older: ") for line in ran.err.splitlines() if line.startswith("older: ")]
        if not older:
            break
        assert "--name" in shlex.split(older[0])
        ran = shell.copied(older[0])
    assert seen == made[::-1]


def test_a_limit_over_a_page_of_the_store_is_filled(shell: Shell) -> None:
    """--limit is how many lines come, whatever the store reads at once."""
    made = [shell("run", "program.py:count", str(n), "0", "--json").value["id"] for n in range(3)]
    assert run_ids(shell("ls", "--json", "--limit", "5000").values) == made[::-1]


def test_a_run_whose_process_is_dead_is_said_to_be(shell: Shell) -> None:
    """`running` with a dead process is told apart from one at work."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1")
    started.wait_for("at the gate")
    assert "its process is dead" not in shell("ls").out
    started.end(signal.SIGKILL)
    assert "running" in shell("ls").out
    assert "its process is dead" in shell("ls").out


def test_a_store_without_runs_says_so(shell: Shell) -> None:
    """An empty list is told apart from a list that failed."""
    shell("run", "program.py:count", "1", "--key", "k")
    shell("run", "program.py:count", "2", "--key", "k", "--store", "sqlite:///other.db")
    assert shell("ls", "--quiet").out.count("\n") == 1
    ran = shell("ls", "--before", shell("ls", "-q").out.split()[0])
    assert (ran.status, ran.out) == (0, "")
    assert "no runs" in ran.err
    assert shell("ls", "--before", "00000000").status == 3
    assert shell("ls", "--limit", "0").status == 2
    assert shell("ls", "--status", "asleep").status == 2
    assert shell("ls", "--label", "team").status == 2


def test_a_long_reason_is_cut_and_the_id_never_is(shell: Shell) -> None:
    """An id on the screen can always be copied."""
    run = shell("run", "program.py:fail", "x" * 500, "--json").error["run"]
    line = shell("ls", "-q").out.splitlines()[0]
    assert line.startswith(run)
    assert len(line) <= 160
    assert line.endswith("…")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_on_a_narrow_screen_key_and_reason_stand_below_the_run(
    shell: Shell, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Id and key can be copied, and the reason be read, however narrow the screen is; no line is wrapped for it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    key = "a-rather-long-key-of-an-order-of-2026"
    run = shell("run", "program.py:pay", "5", "--key", key, "--json").error["run"]
    shell("run", "program.py:count", "1")
    head, *lines = shell("ls").out.splitlines()
    assert head.split() == ["RUN", "NAME", "STATUS", "AGE"]
    assert len(lines) == 3
    assert lines[0].split()[1:3] == ["count", "completed"]
    assert lines[1].startswith(f"{run}  pay    waiting")
    assert lines[2].startswith(f"  key {key}  doubt: step")
    assert len(lines[2]) <= columns
    assert len(shell("ls", "-q").out.splitlines()) == 2


def test_where_everything_fits_a_run_is_one_line(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short key and no reason need no second line, at 80 columns neither."""
    monkeypatch.setenv("COLUMNS", "80")
    shell("run", "program.py:count", "1", "--key", "k1")
    head, line = shell("ls").out.splitlines()
    assert head.split()[-1] == "KEY"
    assert line.endswith("k1")


def test_a_long_name_gives_way_to_the_rest(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """The id, the status and the age stay on the screen."""
    monkeypatch.setenv("COLUMNS", "80")
    code = (
        "import holdfast as hf\n\n@hf.durable\nasync def " + "long_" * 12 + "(ctx: hf.Context) -> int:\n    return 1\n"
    )
    (shell.folder / "long.py").write_text(code)
    shell("run", "long.py")
    line = shell("ls").out.splitlines()[1]
    assert len(line) <= 80
    assert "…  completed  " in line


WAITED = """
import sys
import threading
import holdfast as hf

def work() -> None:
    print("at work", file=sys.stderr, flush=True)
    threading.Event().wait()

@hf.durable
async def waited(ctx: hf.Context) -> None:
    await ctx.receive(hf.Signal("paid", int))
    await ctx.step(work)
"""


def test_a_run_at_work_is_listed_without_what_it_waited_for_before(shell: Shell) -> None:
    """Why it rested is over once somebody drives it."""
    (shell.folder / "waited.py").write_text(WAITED)
    worker = shell.start("worker", "waited.py")
    worker.wait_for("serving")
    shell("run", "waited.py", "--key", "k", "--detach")
    give_up = time.monotonic() + SECONDS
    while shell("ls", "--json").value["reason"] != "signal: paid":
        assert time.monotonic() < give_up, "it never came to rest"
    shell("signal", "k", "paid", "1")
    worker.wait_for("at work")
    listed = shell("ls", "--json").value
    assert (listed["status"], listed["reason"]) == ("running", "")
    assert "waits for signal" not in shell("ls").out
    worker.end(signal.SIGKILL)


NAP = """
import holdfast as hf

@hf.durable
async def nap(ctx: hf.Context) -> None:
    await ctx.sleep(7 * 24 * 3600)
"""


def test_a_run_that_sleeps_is_listed_with_until_when(shell: Shell) -> None:
    """Whoever looks learns when to look again."""
    (shell.folder / "nap.py").write_text(NAP)
    started = shell.start("run", "nap.py")
    started.wait_for("rests: sleeps until ")
    started.end(signal.SIGKILL)
    assert "sleeps until " in shell("ls").out
    assert shell("ls", "--json").value["due_at"].endswith("Z")
