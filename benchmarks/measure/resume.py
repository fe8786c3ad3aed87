"""How soon a killed run goes on in a new process."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import environment
from benchmarks.figure import Figure
from benchmarks.measure.steps import Warn
from benchmarks.subject import Bench, Failed, called, scratch

STEPS: Final = (1_000, 10_000)
_MODULE: Final = "benchmarks.holdfast_resume"


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Kill a run after so many steps and resume it, for each length."""
    return [_figure(steps, warn) for steps in (STEPS[:1] if bench.quick else STEPS)]


def _figure(steps: int, warn: Warn) -> Figure:
    key, name = f"resume.{steps}", f"open to the first new step, {steps:,} steps behind it"
    try:
        return Figure(key, name, _resumed(steps), "s")
    except Failed as failure:
        warn(str(failure))
        return Figure(key, name, None, "s", str(failure))


def _resumed(steps: int) -> float:
    directory = scratch(environment.prepared())
    arguments = [f"--directory={directory}", f"--steps={steps}"]
    try:
        _seed(arguments)
        found: dict[str, Any] = called(Path(sys.executable), _MODULE, ["--phase=resume", *arguments])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return float(found["seconds"])


def _seed(arguments: list[str]) -> None:
    """Make the run and see it die by its own hand."""
    command = [sys.executable, "-m", _MODULE, "--phase=seed", *arguments]
    try:
        died = subprocess.run(command, cwd=environment.ROOT, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired as error:
        raise Failed("the run to resume was not made in time") from error
    if died.returncode != -signal.SIGKILL:
        raise Failed(f"the run to resume ended with {died.returncode}: {(died.stderr.strip() or '-').splitlines()[-1]}")
