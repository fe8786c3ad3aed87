"""What can be said of the machine under a store: its Python, its settings, its disk."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

from msgspec import Struct

OK, NOTE, BAD = "ok", "note", "bad"
_SUPPORTED: Final = ((3, 11), (3, 14))
_RECORD: Final = b"x" * 500
_MEASURE_SECONDS: Final = 0.3
_LITTLE_BYTES: Final = 1 << 30
_TOO_LITTLE_BYTES: Final = 100 << 20
_SLOW: Final = 50
_TOO_GOOD: Final = 100_000
_SHARED: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs"})
_MOST_LISTED: Final = 5


class Check(Struct, frozen=True):
    """One thing that was looked at: what was found, and what to do about it."""

    check: str
    status: str
    found: str
    advice: str
    runs: Sequence[str] = ()


def listed(runs: Sequence[str]) -> str:
    """Return runs as lines of an advice, the first few."""
    more = [f"  and {len(runs) - _MOST_LISTED:,} more"] if len(runs) > _MOST_LISTED else []
    return "".join(f"\n{line}" for line in [*(f"  {run}" for run in runs[:_MOST_LISTED]), *more])


def check_python() -> Check:
    """Look at the interpreter and at what comes with it."""
    own = ".".join(str(part) for part in sys.version_info[:3])
    found = f"{own}, holdfast {version('holdfast')}, apsw {version('apsw')}"
    if _SUPPORTED[0] <= sys.version_info[:2] < _SUPPORTED[1]:
        return Check("python", OK, found, "")
    return Check("python", NOTE, found, "Holdfast is tested on Python 3.11, 3.12 and 3.13.")


def check_settings(about: Mapping[str, str]) -> Check:
    """Look at what makes an acknowledged entry survive a power loss."""
    if about["driver"] == "postgres":
        found = f"PostgreSQL {about['version']}, fsync {about['fsync']}, synchronous_commit {about['commits']}"
        if "off" not in (about["fsync"], about["commits"]):
            return Check("durability", OK, found, "")
        return Check("durability", BAD, found, "A crash of the server may take entries back: both are needed.")
    if about["driver"] != "sqlite":
        return Check(
            "durability", NOTE, f"{about['driver']} keeps nothing when its process ends", "Use sqlite:///file.db."
        )
    found = f"SQLite {about['version']}, journal {about['journal'].upper()}, synchronous {about['synchronous']}"
    if about["journal"] == "wal" and about["synchronous"] in ("FULL", "EXTRA"):
        return Check("durability", OK, found, "")
    return Check("durability", BAD, found, "A power loss may take entries back: WAL and FULL are needed.")


def check_disk(path: str) -> Iterator[Check]:
    """Look at the disk under a store's file: what kind, how much room, how fast it makes a write certain."""
    folder = Path(path).absolute().parent
    yield _check_room(Path(path), folder)
    kind = _file_system(folder)
    if kind in _SHARED:
        advice = "SQLite's locks are not reliable over a network: use a local disk."
        yield Check("disk", BAD, f"{folder} is on a network file system ({kind})", advice)
    yield _check_rate(folder)


def _check_room(path: Path, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    used = sum(file.stat().st_size for file in (path, Path(f"{path}-wal")) if file.exists())
    found = f"{_size(free)} free; the store has {_size(used)}"
    if free >= _LITTLE_BYTES:
        return Check("disk", OK, found, "")
    return Check("disk", BAD if free < _TOO_LITTLE_BYTES else NOTE, found, "Make room: a full disk stops every run.")


def _check_rate(folder: Path) -> Check:
    try:
        rate = append_rate(folder, _MEASURE_SECONDS)
    except OSError as error:
        return Check("disk", BAD, f"{folder} cannot be written: {error.strerror}", "Make the folder yours to write.")
    found = f"{rate:,.0f} synchronised appends a second"
    if rate < _SLOW:
        return Check("disk", NOTE, found, "Every step waits for one or two of them: a faster disk makes faster steps.")
    if rate > _TOO_GOOD:
        advice = "No disk is that fast: it answers before the data is safe (it is memory, or a cache without power)."
        return Check("disk", NOTE, found, advice)
    return Check("disk", OK, found, "")


def append_rate(folder: Path, seconds: float) -> float:
    """Return how many 500-byte appends a second the disk makes certain, one by one."""
    path = folder / f".holdfast-doctor-{os.getpid()}"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    synchronise = getattr(os, "fdatasync", os.fsync)
    try:
        appends, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds or not appends:
            os.write(file, _RECORD)
            synchronise(file)
            appends += 1
        return appends / elapsed
    finally:
        os.close(file)
        path.unlink()


def _file_system(folder: Path) -> str | None:
    """Return the kind of file system that a folder is on, where the machine tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", errors="replace")
    except OSError:
        return None
    places = [line.split()[1:3] for line in mounts.splitlines()]
    real = folder.resolve()
    over = [(len(place), kind) for place, kind in places if f"{real}/".startswith(f"{place.rstrip('/')}/")]
    return max(over)[1] if over else None


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"
