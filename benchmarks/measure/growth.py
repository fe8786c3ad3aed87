"""Whether a step costs the same when the run is long and when the store is full, in processor time on a memory disk."""

import shutil
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import environment
from benchmarks.figure import Figure
from benchmarks.measure.steps import Warn
from benchmarks.subject import Bench, Failed, called, scratch

SIZES: Final = (10, 1_000, 100_000)
QUICK_SIZES: Final = (10, 1_000, 5_000)
_MEMORY: Final = Path("/dev/shm")
_WORDS: Final = {
    ("entries", "step"): ("growth.entries", "a step after {size} entries of its run"),
    ("runs", "step"): ("growth.runs", "a step in a store of {size} runs"),
    ("runs", "once"): ("growth.runs.once", "a one-step run in a store of {size} runs"),
}


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Compare the largest size with the smallest, by entries and by runs."""
    sizes = QUICK_SIZES if bench.quick else SIZES
    return [*_grown("entries", sizes, warn), *_grown("runs", sizes, warn)]


def _grown(of: str, sizes: tuple[int, ...], warn: Warn) -> list[Figure]:
    directory = scratch(_MEMORY if _MEMORY.is_dir() else environment.prepared())
    arguments = [f"--of={of}", f"--directory={directory}", "--sizes", *map(str, sizes)]
    try:
        found: dict[str, Any] = called(Path(sys.executable), "benchmarks.holdfast_growth", arguments)
    except Failed as failure:
        warn(str(failure))
        return [Figure(f"growth.{of}", f"cost of a step by {of}", None, "x", str(failure))]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return [_figure(of, what, costs) for what, costs in found.items()]


def _figure(of: str, what: str, costs: dict[str, float]) -> Figure:
    key, words = _WORDS[of, what]
    sizes = sorted(costs, key=int)
    note = ", ".join(f"{costs[size] * 1e6:.0f} µs at {int(size):,}" for size in sizes)
    name = words.format(size=f"{int(sizes[-1]):,}") + f", of one at {int(sizes[0]):,}"
    return Figure(key, name, costs[sizes[-1]] / costs[sizes[0]], "x", note)
