"""The work that every subject does, and the one JSON line it prints; standard library only.

A subject is a process that is given a `Load`, makes trivial steps that each return `payload_bytes` of text, and prints
a `Sample`. The clock of a step measurement starts when every run has made its first step and stops when every run has
made its last, so starting and finishing runs, importing and opening are outside it. One-step runs are timed whole.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

MARKER = "sample: "
"""What a sample's line begins with, because a peer may print lines of its own."""
READY = "ready"
"""What a process says that waits for a word before it goes on."""

JOINT = "joint"
"""The variant of a subject that is measured in several processes at once."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a subject is asked to do."""

    directory: Path
    mode: str = "steps"
    runs: int = 1
    steps: int = 0
    """At most so many steps a run; 0 means as many as fit into `seconds`."""
    seconds: float = 2.0
    payload_bytes: int = 1000
    variant: str = ""
    address: str = ""
    """An empty database of a PostgreSQL server, for the subjects that keep their steps in one."""

    @property
    def payload(self) -> str:
        return "x" * self.payload_bytes

    def arguments(self) -> list[str]:
        """Return the command line that `parsed` turns back into this load."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]


@dataclass(frozen=True, slots=True)
class Sample:
    """What a subject did, and what it cost."""

    steps: int
    seconds: float
    cpu_seconds: float
    bytes: int = 0
    """Size of everything in the subject's directory after it closed its store."""
    stored: int = 0
    """Steps found in the store afterwards, by a fresh connection."""
    latencies: list[float] = field(default_factory=list)
    """Seconds per one-step run, start to result."""
    settings: dict[str, str] = field(default_factory=dict)
    """What the subject really ran at, read from it and not assumed."""


def parsed(arguments: list[str] | None = None) -> Load:
    """Read a load from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--mode", choices=["steps", "once"], default="steps")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--payload-bytes", type=int, default=1000)
    parser.add_argument("--variant", default="")
    parser.add_argument("--address", default="")
    return Load(**vars(parser.parse_args(arguments)))


class Gate:
    """Lets all runs begin to be measured together and counts what they did."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._waiting = load.runs
        self._opened = asyncio.Event()
        self._barrier = threading.Barrier(load.runs, action=self.open)
        self._lock = threading.Lock()
        self._began = self._ended = self._cpu_began = self._cpu_ended = 0.0
        self._steps = 0

    async def arrive(self) -> None:
        """Wait until every run is here. A run calls it after its first step."""
        self._waiting -= 1
        if self._waiting == 0:
            self.open()
            self._opened.set()
        await self._opened.wait()

    def arrive_in_thread(self) -> None:
        """`arrive` for a run that has a thread of its own."""
        self._barrier.wait()

    def more(self, done: int) -> bool:
        """Say whether a run that has made `done` steps behind the gate should make another."""
        if self._load.steps and done >= self._load.steps:
            return False
        return done == 0 or time.perf_counter() - self._began < self._load.seconds

    def leave(self, done: int) -> None:
        """Count a run's `done` steps; the last run to leave stops the clock."""
        with self._lock:
            self._steps += done
            self._cpu_ended, self._ended = time.process_time(), time.perf_counter()

    def sample(self) -> Sample:
        return Sample(
            steps=self._steps,
            seconds=self._ended - self._began,
            cpu_seconds=self._cpu_ended - self._cpu_began,
        )

    def open(self) -> None:
        """Start the clock. `arrive` does it; a loop that drives all runs by itself calls it."""
        self._cpu_began, self._began = time.process_time(), time.perf_counter()


class JointGate(Gate):
    """A gate that opens in several processes at once: it says that it is ready, and waits for the word to open."""

    def open(self) -> None:
        print(READY, flush=True)
        sys.stdin.readline()
        super().open()


class Subject(Protocol):
    """One opened library under measurement."""

    async def run(self, gate: Gate) -> None:
        """Make one run: a step, `gate.arrive`, steps while `gate.more`, `gate.leave`."""

    async def once(self) -> None:
        """Make a run of one step, from its start to its result in hand."""


async def measure(subject: Subject, load: Load) -> Sample:
    """Do what `load` asks for with an opened subject."""
    if load.mode == "once":
        return await _measure_once(subject, load)
    gate = JointGate(load) if load.variant == JOINT else Gate(load)
    await asyncio.gather(*(subject.run(gate) for _ in range(load.runs)))
    return gate.sample()


async def _measure_once(subject: Subject, load: Load) -> Sample:
    await subject.once()
    latencies: list[float] = []
    cpu_began, began = time.process_time(), time.perf_counter()
    while time.perf_counter() - began < load.seconds and (not load.steps or len(latencies) < load.steps):
        start = time.perf_counter()
        await subject.once()
        latencies.append(time.perf_counter() - start)
    return Sample(
        steps=len(latencies),
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu_began,
        latencies=latencies,
    )


def expected(load: Load, sample: Sample) -> int:
    """Return how many steps must be in the store: the measured ones, and each run's first before the gate."""
    return sample.steps + (1 if load.mode == "once" else load.runs)


def stored_bytes(directory: Path) -> int:
    """Return the size of all files below `directory`."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def count_rows(database: Path, query: str) -> int:
    """Run a counting query on a closed database through a fresh connection."""
    with sqlite3.connect(database) as connection:
        (count,) = connection.execute(query).fetchone()
    connection.close()
    return int(count)


SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def pragmas(execute: Callable[[str], object]) -> dict[str, str]:
    """Read journal mode and synchronous level; `execute` runs one PRAGMA and returns its single value."""
    level = execute("PRAGMA synchronous")
    return {
        "journal_mode": str(execute("PRAGMA journal_mode")),
        "synchronous": SYNCHRONOUS.get(int(str(level)), str(level)),
        "sqlite": str(execute("SELECT sqlite_version()")),
    }


def server_settings(execute: Callable[[str], Sequence[object] | None]) -> dict[str, str]:
    """Read what a PostgreSQL connection runs at; `execute` runs one statement and returns its row."""
    names = ("fsync", "synchronous_commit")
    return {name: str((execute(f"SHOW {name}") or ("?",))[0]) for name in names}


def main(work: Callable[[Load], Awaitable[Sample]]) -> None:
    """Be the process of one subject: read the load, do the work, print the sample."""

    async def run() -> Sample:
        return await work(load)

    load = parsed()
    load.directory.mkdir(parents=True, exist_ok=True)
    print(MARKER + json.dumps(asdict(asyncio.run(run()))), flush=True)
