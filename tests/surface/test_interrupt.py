"""Ctrl-C inside a `once` step: whoever pressed it is told what is not known, and what ends the doubt."""

import signal

import pytest

from tests.surface.command import Shell

PAYING = """
import os, sys, threading
import holdfast as hf

@hf.step(effect="once", in_doubt="POLICY")
def charge(cents: int) -> str:
    print("charging", file=sys.stderr, flush=True)
    threading.Event().wait()
    return "paid"

@hf.durable
async def pay(ctx: hf.Context, cents: int) -> str:
    return await ctx.step(charge, cents)

if __name__ == "__main__":
    hf.run(pay, 5, key="k")
"""


def test_the_step_and_the_way_to_settle_it_are_named(shell: Shell) -> None:
    """The money may be gone: the message says so, and what it says to do works."""
    (shell.folder / "paying.py").write_text(PAYING.replace("POLICY", "wait"))
    started = shell.start("run", "paying.py", "5", "--key", "k", "--json")
    started.wait_for("charging")
    ran = started.end(signal.SIGINT)
    assert ran.status == 130
    assert ran.error["in_doubt"] == ["0/charge#1"]
    assert f"run {ran.error['run']}" in ran.error["message"]
    assert "step 0/charge#1 may or may not have happened" in ran.error["message"]
    done, not_done = ran.error["resolve"]
    assert not_done.endswith("--not-done")
    assert shell.copied(ran.error["resume"]).status == 6
    assert shell.copied(done, JSON='"paid"').status == 0
    assert shell.copied(ran.error["resume"]).value == "paid"


def test_a_step_that_has_an_outcome_is_not_doubted(shell: Shell) -> None:
    """Only what is unknown is called unknown."""
    (shell.folder / "gate").touch()
    started = shell.start("run", "program.py:hold", "1", "--json")
    started.wait_for("at the gate")
    ran = started.end(signal.SIGINT)
    assert (ran.error["in_doubt"], ran.error["resolve"]) == ([], [])
    assert "may or may not" not in ran.err


@pytest.mark.parametrize(
    ("policy", "then"), [("wait", "it waits for a word: holdfast resolve "), ("raise", "the step raises hf.InDoubt")]
)
def test_a_plain_call_logs_it(shell: Shell, policy: str, then: str) -> None:
    """`hf.run` raises KeyboardInterrupt, as Python does; the log has named the doubt before."""
    (shell.folder / "paying.py").write_text(PAYING.replace("POLICY", policy))
    started = shell.start_python("paying.py")
    started.wait_for("charging")
    ran = started.end(signal.SIGINT)
    assert "a once step was interrupted: it may or may not have happened" in ran.err
    assert "0/charge#1" in ran.err
    assert then in ran.err
    assert "KeyboardInterrupt" in ran.err
