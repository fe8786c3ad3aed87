"""What the figures were taken on: machine, interpreter, file system and commit; never a path."""

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Enough to judge a figure by."""

    cpu: str
    cores: int
    kernel: str
    python: str
    filesystem: str
    load_average: float
    """Of the last minute before the run: above zero, others were using the machine too."""


def described(directory: Path) -> Machine:
    """Describe this machine and the file system that `directory` is on."""
    return Machine(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        filesystem=_filesystem(directory),
        load_average=round(os.getloadavg()[0], 2),
    )


def commit(root: Path) -> str:
    """Return the checked-out commit, marked where tracked files differ from it."""
    revision = _git(root, "rev-parse", "--short=12", "HEAD")
    if not revision:
        return "none"
    return revision + (" with changes" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")


def _git(root: Path, *arguments: str) -> str:
    answer = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _filesystem(directory: Path) -> str:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    inside = [(len(point), kind) for _, point, kind, *_ in mounts if directory.resolve().is_relative_to(point)]
    return max(inside)[1] if inside else "unknown"
