"""`holdfast demo`: a kill in the middle of a payment, checked against what really happened."""

import asyncio
import json
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest

from holdfast.cli.demo import Demo, Stage
from holdfast.cli.surface import Surface
from tests.surface.command import Shell

EXAMPLE: Final = (files("holdfast.cli") / "example.py").read_text("utf-8")


def quick_stage(folder: Path, text: str) -> Stage:
    """Return a stage whose program does not dawdle."""
    folder.mkdir()
    stage = Stage(folder)
    stage.program.write_text(text.replace("0.3)", "0)"))
    return stage


def test_the_demo_kills_a_process_and_shows_that_nothing_was_done_twice(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newcomer sees a death, a resumption and the proof, and a store named in the environment is left alone."""
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///mine.db")
    ran = shell("demo", "--dir", "demo")
    assert (ran.status, ran.err) == (0, "")
    for told in ("kill -9 ", "runs the same program again", "6 steps from the journal", "in doubt", "verify looked"):
        assert told in ran.out
    assert "✓ the card was charged exactly once" in ran.out
    assert "NOT TRUE" not in ran.out
    assert "╳ lost: killed, crashed or stopped here" in ran.out
    ledger = (shell.folder / "demo" / "ledger.txt").read_text().splitlines()
    assert len({line.split()[0] for line in ledger}) == 2
    assert set(Counter(line.partition(" ")[2] for line in ledger).values()) == {1}
    assert sum(" charge " in line for line in ledger) == 1
    listed = next(line.split("  ")[-1].strip() for line in ran.out.splitlines() if "holdfast ls" in line)
    assert "fulfil" in shell.copied(listed).out
    assert not (shell.folder / "mine.db").exists()


def test_the_demo_tells_its_findings_as_one_json_value(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """What it claims is data too, with the processes and what each step did."""
    stage = quick_stage(shell.folder / "demo", EXAMPLE)
    assert asyncio.run(Demo(Surface(stage.store, json=True), stage).play()) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert said.err == ""
    assert found["ok"] is True
    assert set(found["claims"].values()) == {True}
    assert (found["recorded"], len(found["performed"])) == (6, 12)
    assert {pid for pid, _ in stage.ledger()} == {found["killed"], found["resumed"]}
    assert found["program"] == str(stage.program)


def test_a_claim_that_is_not_true_is_told_and_exits_with_1(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo believes the ledger and not itself: a program that charges twice is caught."""
    once, slowly = '    act(f"charge {order} {cents}", 5)\n', "    time.sleep(5)\n"
    assert once in EXAMPLE
    twice = EXAMPLE.replace(once, once.replace("5)", "0)") * 2 + slowly)
    stage = quick_stage(shell.folder / "twice", twice)
    assert asyncio.run(Demo(Surface(stage.store), stage).play()) == 1
    assert "✗ NOT TRUE: the card was charged exactly once" in capsys.readouterr().out


def test_a_program_that_breaks_spoils_the_demo_in_one_sentence(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the demo cannot be played, it says why and exits with 1."""
    stage = Stage(shell.folder / "broken")
    stage.folder.mkdir()
    stage.program.write_text("raise SystemExit('no')\n")
    assert asyncio.run(Demo(Surface(stage.store), stage).play()) == 1
    assert "the demo could not be played: process " in capsys.readouterr().err


def test_the_demo_overwrites_nothing(shell: Shell) -> None:
    """A folder with something in it is refused."""
    ran = shell("demo", "--dir", ".")
    assert ran.status == 2
    assert "is not empty" in ran.err
    assert shell("demo", "--dir", "program.py").status == 2
