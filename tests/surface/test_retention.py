"""`holdfast delete`, `export` and `gc`, and archives as `verify`, `show` and `tail` read them."""

import os
import signal
from pathlib import Path

import pytest

from holdfast.store import point
from tests.surface.command import Shell, damage, run_ids

OLD = ("--older-than", "0s")


def a_run(shell: Shell, number: int = 1, *more: str) -> str:
    """Return a run that has ended."""
    id: str = shell("run", "program.py:count", number, *more, "--json").value["id"]
    return id


def keep(shell: Shell, run: str, name: str = "run.jsonl") -> Path:
    """Return the archive of one run."""
    path = shell.folder / name
    path.write_text(shell("export", run).out)
    return path


# delete


def test_a_run_that_has_ended_is_deleted(shell: Shell) -> None:
    """By its id, the beginning of it, or its key; and not found from then on."""
    one, two, three = a_run(shell), a_run(shell, 2), a_run(shell, 3, "--key", "k")
    ran = shell("delete", one)
    assert (ran.status, ran.out) == (0, "")
    assert f"run {one} is deleted" in ran.err
    assert shell("delete", two, "--json").value == {"run": two, "deleted": True}
    assert shell("delete", "--key", "k").status == 0
    assert shell("ls", "--json").out == ""
    for words in (["delete", one], ["show", two], ["delete", "--key", "k"]):
        assert shell(*words).status == 3
    assert "nothing is wrong" in shell("verify").err
    assert three not in shell("verify").out


def test_a_deleted_runs_key_is_not_used_again(shell: Shell) -> None:
    """The work was done; whoever asks for it again is told what became of it and what to do."""
    run = a_run(shell, 1, "--key", "k")
    shell("delete", run)
    ran = shell("run", "program.py:count", "1", "--key", "k")
    assert ran.status == 4
    assert f"key 'k' belongs to run {run}, which was deleted" in ran.err
    assert "use another key" in ran.err
    for words in (["show", "--key", "k"], ["show", "k"], ["tail", "k"]):
        ran = shell(*words)
        assert ran.status == 3
        assert f"run {run}, which was deleted and has key 'k', was not found" in ran.err
        assert f"`holdfast show {run} --archive FILE`" in ran.err
    assert "key 'other' was not found" in shell("show", "--key", "other").err
    assert shell.ledger() == ["add 1", "add 2"]


def test_an_open_run_is_not_deleted(shell: Shell) -> None:
    """It waits for a person, and still does afterwards."""
    run = shell("run", "program.py:pay", "5", "--json").error["run"]
    ran = shell("delete", run)
    assert ran.status == 4
    assert "has not ended" in ran.err
    assert "Cancel it first" in ran.err
    assert shell("show", run).status == 0


# export, and what reads it


def test_an_exported_run_is_an_archive(shell: Shell) -> None:
    """It can be verified, shown and followed without the store it came from."""
    run = a_run(shell, 1, "--key", "k")
    path = keep(shell, run)
    shown, told = shell("show", run).out, shell("tail", run, "--json").out
    shell("delete", run)
    assert "run.jsonl: 1 run: nothing is wrong" in shell("verify", path.name).err
    for which in ([run], [run[:8]], ["--key", "k"]):
        assert shell("show", *which, "--archive", path).out == shown
        assert shell("tail", *which, "--archive", path, "--json").out == told
    assert shell("show", run, "--archive", path, "--json").value["result"] == 3
    os.unlink("holdfast.db")
    assert shell("show", run, "--archive", path).out == shown


def test_an_open_run_is_exported_as_it_stands(shell: Shell) -> None:
    """What it did so far is there, and following it ends there."""
    run = shell("run", "program.py:pay", "5", "--json").error["run"]
    path = keep(shell, run)
    assert shell("verify", path).status == 0
    assert "StepDoubted" in shell("tail", run, "--archive", path, "--json").out
    assert shell("show", run, "--archive", path, "--json").value["status"] == "waiting"


def test_a_damaged_run_is_not_exported(shell: Shell) -> None:
    """The exit status tells that what was printed is no archive, and so does verify."""
    run = a_run(shell)
    damage(shell.folder / "holdfast.db", run, 3)
    ran = shell("export", run)
    assert ran.status == 1
    assert f"run {run}, entry 3" in ran.err
    path = shell.folder / "run.jsonl"
    path.write_text(ran.out)
    assert shell("verify", path).status != 0


def test_the_only_run_of_an_archive_needs_no_name(shell: Shell) -> None:
    """Where there are several, they are listed, and none is picked."""
    run = shell("run", "program.py:count", "1", "--key", "k", "--json").value["id"]
    path = keep(shell, run)
    assert shell("show", "--archive", path).out == shell("show", run, "--archive", path).out
    assert shell("tail", "--archive", path, "--json").out == shell("tail", run, "--archive", path, "--json").out
    other = shell("run", "program.py:fail", "--json").error["run"]
    with (shell.folder / "both.jsonl").open("w") as both:
        both.write("".join((shell.folder / keep(shell, each)).read_text() for each in (run, other)))
    for command in ("show", "tail"):
        refused = shell(command, "--archive", "both.jsonl")
        assert refused.status == 2
        assert "both.jsonl holds 2 runs" in refused.err
        assert f"  {run}  count  k\n" in refused.err
        assert f"  {other}  fail\n" in refused.err


def test_damage_to_an_archive_is_named(shell: Shell) -> None:
    """By run and entry; the other runs of the archive are sound and can be shown."""
    runs = [a_run(shell, number) for number in (1, 2, 3)]
    texts = [keep(shell, run).read_text() for run in runs]
    texts[1] = texts[1].replace('"value":4,', '"value":5,')
    path = shell.folder / "runs.jsonl"
    path.write_text("".join(texts))
    ran = shell("verify", path)
    assert ran.status == 1
    assert f"✗ run {runs[1]}, entry 3: " in ran.out
    assert [(found["run"], found["seq"]) for found in shell("verify", path, "--json").values] == [(runs[1], 3)]
    assert shell("show", runs[2], "--archive", path).status == 0
    refused = shell("show", runs[1], "--archive", path)
    assert refused.status == 1
    assert f"run {runs[1]}, entry 3" in refused.err


def test_what_is_no_archive_is_told_from_a_damaged_one(shell: Shell) -> None:
    """A store's own file, another file, and one that is not there."""
    a_run(shell)
    assert "is not an archive" in shell("verify", "holdfast.db").err
    for words in (["verify", "program.py"], ["show", "12345678", "--archive", "program.py"]):
        ran = shell(*words)
        assert ran.status == 2
        assert "is not an archive" in ran.err
        assert "gc --archive" in ran.err
    missing = shell("verify", "nothing.jsonl")
    assert (missing.status, "no such file" in missing.err) == (3, True)
    assert shell("tail", "12345678", "--archive", "nothing.jsonl").status == 2
    run = a_run(shell)
    assert shell("show", "00000000", "--archive", keep(shell, run)).status == 3


# gc


def test_what_is_old_goes(shell: Shell) -> None:
    """Counted before and after; what is young, or of another name or ending, stays."""
    a_run(shell)
    a_run(shell, 2)
    failed = shell("run", "program.py:fail", "--json").error["run"]
    assert "0 runs deleted" in shell("gc", "--older-than", "1h").err
    assert "3 runs would be deleted" in shell("gc", *OLD, "--dry-run").err
    assert "nothing was deleted" in shell("gc", *OLD, "--name", "hold").err
    assert len(shell("ls", "--json").values) == 3
    assert "1 run deleted" in shell("gc", *OLD, "--status", "completed,cancelled", "--keep", "1").err
    ran = shell("gc", *OLD, "--status", "completed", "--json")
    assert ran.value == {"deleted": 1, "kept": {}, "blobs": 0, "archive": None, "dry_run": False}
    assert run_ids(shell("ls", "--json").values) == [failed]
    assert shell("gc", *OLD, "--quiet").err == ""
    assert shell("ls", "--json").out == ""


def test_what_goes_is_archived_first(shell: Shell) -> None:
    """Each clean-up adds to the archive, and an archive is never written over."""
    one = a_run(shell)
    ran = shell("gc", *OLD, "--archive", "old.jsonl")
    assert f"1 run deleted, archived in {shell.folder / 'old.jsonl'}" in ran.err
    two = a_run(shell, 2)
    assert shell("gc", *OLD, "--archive", "old.jsonl", "--json").value["archive"] == str(shell.folder / "old.jsonl")
    assert "old.jsonl: 2 runs: nothing is wrong" in shell("verify", "old.jsonl").err
    for run in (one, two):
        assert shell("show", run, "--archive", "old.jsonl").status == 0
    before = (shell.folder / "program.py").read_bytes()
    a_run(shell, 3)
    assert shell("gc", *OLD, "--archive", "program.py").status == 2
    assert shell("gc", *OLD, "--archive", "holdfast.db").status == 2
    assert (shell.folder / "program.py").read_bytes() == before
    assert len(shell("ls", "--json").values) == 1


def test_what_stays_is_told_with_the_reason(shell: Shell) -> None:
    """A damaged run is not archived, so it is not deleted either."""
    run = a_run(shell)
    damage(shell.folder / "holdfast.db", run, 2)
    ran = shell("gc", *OLD, "--archive", "old.jsonl")
    assert ran.status == 0
    assert "0 runs deleted" in ran.err
    assert "1 run kept: damaged" in ran.err
    assert not (shell.folder / "old.jsonl").exists()
    assert run_ids(shell("ls", "--json").values) == [run]


@pytest.mark.parametrize(
    "words",
    [
        [], ["--older-than", "30"], ["--older-than", "soon"], ["--older-than", "-1d"], ["--older-than", "99999w"],
        [*OLD, "--status", "open"], [*OLD, "--status", ""], [*OLD, "--keep", "-1"], [*OLD, "--name", ""],
    ],
)  # fmt: skip
def test_a_wrong_policy_is_a_usage_error(shell: Shell, words: list[str]) -> None:
    """Nothing is deleted by a slip."""
    a_run(shell)
    assert shell("gc", *words).status == 2
    assert len(shell("ls", "--json").values) == 1


@pytest.mark.parametrize("place", ["archive written", "archive synced", "before", "after"])
def test_an_interrupted_clean_up_ends_its_batch_and_says_how_far_it_came(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Ctrl-C in the middle of a batch, wherever, ends the clean-up behind it; the same command goes on."""
    runs = [a_run(shell, number) for number in range(3)]

    def reached(name: str) -> None:
        if name == place:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(point, "reached", reached)
        ran = shell("gc", *OLD, "--archive", "old.jsonl", "--json")
    assert ran.status == 130
    assert (ran.error["code"], ran.error["deleted"]) == ("interrupted", 3)
    assert "3 runs deleted" in ran.error["message"]
    assert shell("verify", "old.jsonl").status == 0
    for run in runs:
        assert shell("show", run, "--archive", "old.jsonl").status == 0


def test_a_clean_up_of_a_name_that_no_run_has_says_so(shell: Shell) -> None:
    """A mistyped name is not told as a clean-up that found everything clean."""
    a_run(shell)
    ran = shell("gc", "--older-than", "1h", "--name", "cuont")
    assert (ran.status, ran.err) == (0, "! no run is called 'cuont': nothing was deleted\n")
    assert "0 runs deleted" in shell("gc", "--older-than", "1h", "--name", "count").err
