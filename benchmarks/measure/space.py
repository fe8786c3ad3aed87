"""How many bytes a step takes on disk, and whether a conversation grows in a straight line."""

from pathlib import Path
from typing import Final

from benchmarks.figure import Figure
from benchmarks.measure.steps import PAYLOAD_BYTES, Warn
from benchmarks.subject import HOLDFAST, Bench, Failed
from benchmarks.workload import Load

LENGTHS: Final = (100, 500, 1000)
_LONG_ENOUGH_SECONDS: Final = 120.0


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Store runs of several lengths, each in a store of its own, closed before it is weighed."""
    try:
        sizes = [_size(bench, steps) for steps in LENGTHS]
    except Failed as failure:
        warn(str(failure))
        return [Figure("bytes.step", "bytes stored a step, of its payload", None, "x", str(failure))]
    (short, middle, long), (few, some, many) = LENGTHS, sizes
    early, late = (some - few) / (middle - short), (many - some) / (long - middle)
    weights = ", ".join(f"{size / 1000:.0f} kB at {steps}" for steps, size in zip(LENGTHS, sizes, strict=True))
    whole = (many - few) / (long - short)
    return [
        Figure("bytes.step", f"bytes stored a step, of its {PAYLOAD_BYTES}", whole / PAYLOAD_BYTES, "x", weights),
        Figure("bytes.linear", "bytes of a late step, of an early one's", late / early, "x"),
    ]


def _size(bench: Bench, steps: int) -> int:
    load = Load(Path(), steps=steps, seconds=_LONG_ENOUGH_SECONDS, payload_bytes=PAYLOAD_BYTES)
    return bench.look(HOLDFAST, load).sample.bytes
