"""What is told of a run whose code asks for something else than it recorded."""

import re
import signal

import pytest

from holdfast.core.divergence import UNSTEADY
from holdfast.core.errors import Diverged
from tests.surface.command import Shell

FICKLE = """
import os
import pathlib
import holdfast as hf

def left() -> str:
    return "left"

def right() -> str:
    return "right"

@hf.durable
async def fickle(ctx: hf.Context) -> str:
    been = pathlib.Path(__file__).with_name("been")
    way = right if been.exists() else left
    been.touch()
    said = await ctx.step(way)
    await ctx.ask("Go on?")
    return said
"""


def diverged(shell: Shell, *, changed: bool) -> str:
    """Return a run that its code does not follow any more: because the code is another, or takes another way."""
    (shell.folder / "fickle.py").write_text(FICKLE)
    assert shell("run", "fickle.py", "--key", "k", "--quiet").status == 6
    if changed:
        other = FICKLE.replace("await ctx.step(way)", "await ctx.step(right)")
        (shell.folder / "fickle.py").write_text(other)
    assert shell("answer", "k", "--yes").status == 0
    ran = shell("run", "fickle.py", "--key", "k", "--json")
    assert ran.error["reason"].startswith("diverged: entry 2 recorded '0/left#1' but the code asked for '0/right#1'")
    run: str = ran.error["run"]
    return run


@pytest.mark.parametrize("changed", [True, False])
def test_show_doctor_and_preflight_give_one_advice(shell: Shell, changed: bool) -> None:
    """Whoever looks at a divergence from anywhere is told the same, and the truth about which code changed."""
    run = diverged(shell, changed=changed)
    said, other = (Diverged.hint, UNSTEADY) if changed else (UNSTEADY, Diverged.hint)
    shown, checked = shell("show", run).out, shell("doctor").out
    tried = shell("preflight", "fickle.py")
    assert tried.status == 1
    for told in (shown, checked, tried.err):
        assert said in told
        assert other not in told
    reason = shell("show", run, "--json").value["reason"]
    assert reason.endswith("; the code's version is the one that recorded it") is not changed


def test_a_worker_that_refuses_a_run_logs_what_was_recorded_and_what_was_asked(shell: Shell) -> None:
    """Whoever reads a worker's log after a deploy sees which runs do not follow, and what tells of all of them."""
    (shell.folder / "fickle.py").write_text(FICKLE)
    assert shell("run", "fickle.py", "--key", "k", "--quiet").status == 6
    run = shell("show", "--key", "k", "--json").value["id"]
    assert shell("answer", "k", "--yes").status == 0
    worker = shell.start("worker", "fickle.py")
    worker.wait_for("holdfast preflight")
    said = worker.end(signal.SIGTERM).err
    [line] = [line for line in said.splitlines() if "the run is refused" in line]
    plain = re.sub(r"\x1b\[[\d;]*m", "", line)
    assert run in plain
    assert "recorded=\"'0/left#1'\"" in plain
    assert "asked=\"'0/right#1'\"" in plain
