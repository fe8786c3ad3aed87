"""What a campaign leaves behind: a page for people and the same for machines."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

import holdfast
from tests.chaos.campaign import Result
from tests.chaos.kills import scratch

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "results"

_MEANINGS: Final = {
    "kills": (
        "Real SIGKILLs of a program with every verb, one to six runs at once, before and after its writes, at its file "
        "calls and inside its effects. A kill `during_recovery` struck a process that was taking up what an earlier "
        "kill had left. Judged by a ledger outside of the program: result and journal of an unbroken run, `once` "
        "effects once (a request acts two seconds after its sender died), doubts ended by their policy, the same "
        "idempotency key at every attempt, transactions exactly once, nothing acknowledged taken back, no committed "
        "work done again, and no chunk, worker or lock left behind."
    ),
    "power": (
        "Different disks that a power loss could have left (unsynced writes dropped, kept, torn at sectors, any "
        "prefix; names strict and ordered), each taken up again and judged in the same way by all that the program "
        "had acknowledged by then."
    ),
    "flips": "Bytes of a store changed under it: damage is named, set aside, and spoils no other run.",
    "controls": (
        "Deliberately broken twins of Holdfast, each of which the same checks must catch at every play, and the same "
        "plays with Holdfast itself, which must not be accused."
    ),
}


def facts(command: str) -> dict[str, Any]:
    """Return what the numbers were measured on."""
    with scratch() as folder:
        file_system = _file_system(folder)
    return {
        "commit": _git("rev-parse", "HEAD"),
        "src_clean": _is_ours() and not _git("status", "--porcelain", "--", "src"),
        "tests_clean": not _git("status", "--porcelain", "--", "tests/chaos"),
        "command": command,
        "machine": {
            "cpu": _cpu(),
            "cores": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            "file_system": file_system,
        },
    }


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _is_ours() -> bool:
    """Say whether the Holdfast that ran is the one of this checkout."""
    return Path(holdfast.__file__).resolve().is_relative_to(ROOT / "src")


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder lies on."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
    around = [(len(place), kind) for _, place, kind, *_ in mounts if folder.is_relative_to(place)]
    return max(around)[1]


def as_json(known: Mapping[str, Any], results: Mapping[str, Result]) -> bytes:
    """Return everything as one JSON object."""
    parts = {name: msgspec.to_builtins(result) for name, result in results.items()}
    return msgspec.json.format(msgspec.json.encode({**known, "parts": parts}), indent=2) + b"\n"


def as_page(known: Mapping[str, Any], results: Mapping[str, Result]) -> str:
    """Return everything as a page."""
    machine = known["machine"]
    clean = "src/ as committed" if known["src_clean"] else "src/ CHANGED since that commit"
    lines = [
        "# Chaos",
        "",
        f"Commit `{known['commit']}`, {clean}. Command: `{known['command']}`, seed {known['seed']}, {known['date']}.",
        "",
        ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in machine.items()) + ".",
        "",
        "| campaign | seconds | failures | counts |",
        "|---|---:|---:|---|",
    ]
    for name, result in results.items():
        counts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in result.counts.items())
        lines.append(f"| {name} | {result.seconds:,.0f} | {len(result.failures)} | {counts} |")
    for name, result in results.items():
        lines += ["", f"## {name}", "", _MEANINGS[name]]
        lines += [f"\n```\n{failure[:3000]}\n```" for failure in result.failures]
    return "\n".join(lines) + "\n"
