"""How long a run of one step takes, from its start to its result in hand, one after another."""

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.figure import Figure, of
from benchmarks.measure.steps import PAYLOAD_BYTES, Warn
from benchmarks.subject import HOLDFAST, PEERS, Bench, Failed, Subject
from benchmarks.workload import Load

SUBJECTS: Final = (HOLDFAST, *PEERS)


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Take the median latency of every subject once a round."""
    medians: dict[str, dict[int, float]] = defaultdict(dict)
    for number in range(bench.rounds):
        for subject in SUBJECTS:
            load = Load(Path(), mode="once", seconds=bench.seconds, payload_bytes=PAYLOAD_BYTES)
            try:
                reading = bench.take(subject, load, round=number)
            except Failed as failure:
                warn(str(failure))
                continue
            medians[subject.name][number] = median(reading.sample.latencies) * 1000
    mine = medians[HOLDFAST.name]
    return [*(_time(one, medians) for one in SUBJECTS), *(_against(mine, medians, one) for one in PEERS)]


def _time(subject: Subject, medians: dict[str, dict[int, float]]) -> Figure:
    takes = list(medians[subject.name].values())
    return of(f"once.ms.{subject.name}", f"a one-step run, {subject.name}", takes, "ms")


def _against(mine: dict[int, float], medians: dict[str, dict[int, float]], other: Subject) -> Figure:
    theirs = medians[other.name]
    best = [min(mine.values()) / min(theirs.values())] if mine and theirs else []
    return of(f"once.{other.name}", f"time of a one-step run, of {other.name}", best, "x")
