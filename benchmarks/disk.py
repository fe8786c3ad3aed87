"""A, the disk's own rate: 500-byte appends, each followed by fdatasync. The unit that step rates are given in."""

import os
import time
from pathlib import Path

RECORD_BYTES = 500


def append_rate(directory: Path, seconds: float) -> float:
    """Return synchronised appends per second, measured now in `directory`."""
    path = directory / "append"
    record = b"x" * RECORD_BYTES
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    synchronise = getattr(os, "fdatasync", os.fsync)
    try:
        appends, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            os.write(descriptor, record)
            synchronise(descriptor)
            appends += 1
        return appends / elapsed
    finally:
        os.close(descriptor)
        path.unlink()
