"""What a conversation of a thousand messages weighs, and whether its last turns cost what its first ones did."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import environment
from benchmarks.figure import Figure
from benchmarks.measure.steps import Warn
from benchmarks.subject import LANGGRAPH_PLAIN, Bench, Failed, called, scratch

TURNS: Final = 500
MESSAGE_BYTES: Final = 1_000
_PATIENCE_SECONDS: Final = 900.0


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Hold the conversation here, and with LangGraph on both savers, each in a process and a directory of its own."""
    payload = 2 * TURNS * MESSAGE_BYTES
    figures: list[Figure] = []
    here, theirs = Path(sys.executable), "benchmarks.peers.langgraph_talk"
    for key, name, python, module, more in (
        ("talk", "Holdfast", here, "benchmarks.holdfast_talk", ()),
        ("talk.LangGraph", "LangGraph", LANGGRAPH_PLAIN.python(), theirs, ()),
        ("talk.saver", "LangGraph on Holdfast's saver", here, theirs, ("--saver=holdfast",)),
    ):
        words = f"{2 * TURNS:,} messages of {MESSAGE_BYTES:,} bytes, {name}"
        try:
            found = _talked(python, module, more)
        except Failed as failure:
            warn(str(failure))
            figures.append(Figure(f"{key}.bytes", f"{words}: bytes stored, of theirs", None, "x", str(failure)))
            continue
        weight, early, late = found["bytes"], found["early"], found["late"]
        note = f"{weight / 1e6:.2f} MB"
        figures.append(Figure(f"{key}.bytes", f"{words}: bytes stored, of theirs", weight / payload, "x", note))
        note = f"{early * 1e3:.1f} and {late * 1e3:.1f} ms of processor time"
        figures.append(Figure(f"{key}.flat", f"{words}: a late turn, of an early one", late / early, "x", note))
    return figures


def _talked(python: Path, module: str, more: Sequence[str]) -> dict[str, Any]:
    directory = scratch(environment.prepared())
    arguments = [f"--directory={directory}", f"--turns={TURNS}", f"--bytes={MESSAGE_BYTES}", *more]
    try:
        return called(python, module, arguments, timeout_seconds=_PATIENCE_SECONDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
