"""What importing costs in time and memory, and what installing puts on disk, beside the peers."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import environment
from benchmarks.figure import Figure
from benchmarks.measure.steps import Warn
from benchmarks.subject import Bench

TAKES: Final = 15
IMPORTS: Final[tuple[tuple[str, str, str, Callable[[], Path]], ...]] = (
    ("Holdfast", "holdfast", "open", environment.holdfast),
    ("durabl", "durabl", "Runtime", lambda: environment.peer("durabl")),
    ("DBOS", "dbos", "DBOS", lambda: environment.peer("dbos")),
    ("LangGraph", "langgraph.graph", "StateGraph", lambda: environment.peer("langgraph")),
)
"""Who, which module, a name that must be in it, and an interpreter that has it."""

_PEAK: Final = """
import {module}
try:
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
except OSError:
    import resource, sys
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1))
"""
"""Prints the peak in KiB. Linux hands a parent's ru_maxrss down to its child, so the kernel's mark is read first."""


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Weigh Holdfast and its peers, each in an environment that holds nothing else."""
    figures: list[Figure] = []
    for subject, module, name, python in IMPORTS:
        try:
            figures += _weighed(subject, module, name, python(), 5 if bench.quick else TAKES)
        except environment.NotInstalled as failure:
            warn(str(failure))
            figures.append(Figure(_key(subject, "ms"), f"import {module}", None, "ms", "it cannot be installed"))
        except subprocess.CalledProcessError:
            warn(f"{module} has no {name} to import")
            figures.append(Figure(_key(subject, "ms"), f"import {module}", None, "ms", f"it has no {name}"))
    return figures


def _weighed(subject: str, module: str, name: str, python: Path, takes: int) -> list[Figure]:
    """Time starts with and without the import turn by turn, the first of each thrown away.

    Raises:
        CalledProcessError: the module cannot be imported, or is an empty shell without what users import it for.
    """
    _start(python, f"from {module} import {name}")
    pairs = [(_start(python, "pass"), _start(python, f"import {module}")) for _ in range(takes + 1)][1:]
    milliseconds = 1000 * (median(whole for _, whole in pairs) - median(bare for bare, _ in pairs))
    memory, empty = _peak(python, module), _peak(python, "sys")
    installed = environment.installed_bytes(python) / 1e6
    return [
        Figure(_key(subject, "ms"), f"import {module}, beyond Python's own start", milliseconds, "ms"),
        Figure(_key(subject, "memory"), f"memory after import {module}", memory, "MB", f"Python alone {empty:.1f}"),
        Figure(_key(subject, "installed"), f"installed for {subject}, without bytecode", installed, "MB"),
    ]


def _key(subject: str, what: str) -> str:
    """Only Holdfast's figures have targets."""
    return f"import.{what}" if subject == "Holdfast" else f"import.{what}.{subject}"


def _start(python: Path, statement: str) -> float:
    began = time.perf_counter()
    subprocess.run([python, "-c", statement], check=True, capture_output=True)
    return time.perf_counter() - began


def _peak(python: Path, module: str) -> float:
    printed = subprocess.run([python, "-c", _PEAK.format(module=module)], check=True, capture_output=True, text=True)
    return int(printed.stdout) * 1024 / 1e6
