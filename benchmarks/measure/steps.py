"""How many steps a second, alone and many runs at once, in the disk's own unit and beside the loop and the peers."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.figure import GROUP_FLOOR_APPENDS, GROUP_FLOOR_RATE, Figure, of
from benchmarks.subject import (
    COMMIT,
    DBOS,
    DBOS_PLAIN,
    DBOS_WAL,
    DURABL,
    HOLDFAST,
    LANGGRAPH,
    LANGGRAPH_PLAIN,
    LOOP,
    PEERS,
    Bench,
    Failed,
    Reading,
    Subject,
)
from benchmarks.workload import Load

PAYLOAD_BYTES: Final = 1000
TINY_BYTES: Final = 2
AT_ONCE: Final = (1, 64, 256, 1000)
PEERS_AT_ONCE: Final = 64

Cell = tuple[Subject, int]
Warn = Callable[[str], None]

CELLS: Final[tuple[Cell, ...]] = (
    (COMMIT, 1),
    *((subject, runs) for runs in AT_ONCE for subject in (LOOP, HOLDFAST)),
    *((peer, runs) for runs in (1, PEERS_AT_ONCE) for peer in PEERS),
)
TINY_CELLS: Final[tuple[Cell, ...]] = tuple(
    (subject, runs) for runs in (1, PEERS_AT_ONCE) for subject in (LOOP, HOLDFAST, DURABL, DBOS_WAL, LANGGRAPH)
)
OTHERS: Final[tuple[tuple[str, str, tuple[Subject, ...]], ...]] = (
    ("DBOS", "DBOS on asyncio", (DBOS, DBOS_WAL)),
    ("DBOS.any", "DBOS in any way", (DBOS, DBOS_WAL, DBOS_PLAIN)),
    ("LangGraph", "LangGraph on asyncio", (LANGGRAPH,)),
    ("LangGraph.any", "LangGraph in any way", (LANGGRAPH, LANGGRAPH_PLAIN)),
    ("durabl", "durabl", (DURABL,)),
)
"""Key, words and subjects of what Holdfast is compared with when many runs go on at once; the best of a row counts."""

Rounds = dict[tuple[str, int], dict[int, Reading]]
"""Readings by subject and runs at once, then by round."""


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Take every cell once a round, so that a slow minute of the machine hits all of them alike."""
    rounds: Rounds = defaultdict(dict)
    for number in range(bench.rounds):
        for subject, runs in CELLS:
            load = Load(Path(), runs=runs, seconds=bench.seconds, payload_bytes=PAYLOAD_BYTES)
            if reading := _taken(bench, warn, subject, load, number):
                rounds[subject.name, runs][number] = reading
    for subject, runs in () if bench.quick else TINY_CELLS:
        _taken(bench, warn, subject, Load(Path(), runs=runs, seconds=bench.seconds, payload_bytes=TINY_BYTES), 0)
    return [*_alone(rounds), *(figure for runs in AT_ONCE[1:] for figure in _at_once(rounds, runs))]


def _taken(bench: Bench, warn: Warn, subject: Subject, load: Load, number: int) -> Reading | None:
    try:
        return bench.take(subject, load, round=number)
    except Failed as failure:
        warn(str(failure))
        return None


def _alone(rounds: Rounds) -> Iterator[Figure]:
    mine = rounds[HOLDFAST.name, 1]
    yield of("steps.1.rate", "steps a second, one run alone", [one.rate for one in mine.values()], "/s")
    yield of("steps.1.appends", "one run alone, in A", [one.in_appends for one in mine.values()], "A")
    yield of("steps.1.loop", "one run alone, of the bare loop", _ratio(rounds, 1, (LOOP,), 1), "x")
    yield of("steps.1.best_peer", "one run alone, of the best peer", _ratio(rounds, 1, PEERS, 1), "x")
    yield of("steps.1.cpu", "processor time a step, one run alone", _cpu(mine), "µs")


def _at_once(rounds: Rounds, runs: int) -> Iterator[Figure]:
    mine = rounds[HOLDFAST.name, runs]
    floors = [one.rate / min(GROUP_FLOOR_APPENDS * one.appends, GROUP_FLOOR_RATE) for one in mine.values()]
    floor = f"of the lesser of {GROUP_FLOOR_APPENDS:g} A and {GROUP_FLOOR_RATE:,.0f}/s"
    yield of(f"steps.{runs}.rate", f"steps a second, {runs} runs at once", [one.rate for one in mine.values()], "/s")
    yield of(f"steps.{runs}.appends", f"{runs} at once, in A", [one.in_appends for one in mine.values()], "A")
    yield of(f"steps.{runs}.floor", f"{runs} at once, {floor}", floors, "x")
    yield of(f"steps.{runs}.loop", f"{runs} at once, of the bare loop", _ratio(rounds, runs, (LOOP,), runs), "x")
    for key, name, others in OTHERS:
        ratio = _ratio(rounds, runs, others, PEERS_AT_ONCE)
        yield of(f"steps.{runs}.{key}", f"{runs} at once, of {name} with {PEERS_AT_ONCE}", ratio, "x")
    yield of(f"steps.{runs}.cpu", f"processor time a step, {runs} at once", _cpu(mine), "µs")


def _cpu(readings: dict[int, Reading]) -> list[float]:
    return [one.cpu_microseconds for one in readings.values()]


def _best(rounds: Rounds, subjects: Sequence[Subject], runs: int) -> float | None:
    """Return the best rate of any of the subjects, or None where one is missing: it might have been the best."""
    takes = [rounds[subject.name, runs] for subject in subjects]
    return max(one.rate for readings in takes for one in readings.values()) if all(takes) else None


def _ratio(rounds: Rounds, runs: int, others: Sequence[Subject], their_runs: int) -> list[float]:
    """Return Holdfast's best round over the others' best: what disturbs a round only ever slows it down."""
    mine, theirs = _best(rounds, (HOLDFAST,), runs), _best(rounds, others, their_runs)
    return [mine / theirs] if mine and theirs else []
