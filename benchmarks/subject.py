"""Who is measured, and the running of one of them in a process of its own with the disk's rate taken around it."""

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks import disk, environment
from benchmarks.server import Postgres
from benchmarks.workload import MARKER, Load, Sample, expected

RESTLESS: Final = 1.5
"""A disk whose rate moved by more than this factor during a measurement has spoilt it."""


class Failed(Exception):
    """A subject did not finish, or its store does not hold what it claims to have done."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A library, in one way of using it."""

    name: str
    module: str
    variant: str = ""
    peer: str = ""
    """Which peer's environment it runs in; empty for the interpreter that runs the benchmark."""
    on_server: bool = False
    """True for one that is measured beside PostgreSQL, in its unit A2."""

    def python(self) -> Path:
        return environment.peer(self.peer) if self.peer else Path(sys.executable)


HOLDFAST: Final = Subject("Holdfast", "benchmarks.holdfast_steps")
LOOP: Final = Subject("bare loop", "benchmarks.bare", variant="loop")
COMMIT: Final = Subject("one-row commit", "benchmarks.bare", variant="commit")
DURABL: Final = Subject("durabl", "benchmarks.peers.durabl", peer="durabl")
DBOS: Final = Subject("DBOS", "benchmarks.peers.dbos", peer="dbos")
DBOS_WAL: Final = Subject("DBOS, WAL", "benchmarks.peers.dbos", variant="wal", peer="dbos")
DBOS_PLAIN: Final = Subject("DBOS, WAL, threads", "benchmarks.peers.dbos", variant="plain-wal", peer="dbos")
LANGGRAPH: Final = Subject("LangGraph", "benchmarks.peers.langgraph", peer="langgraph")
LANGGRAPH_PLAIN: Final = Subject("LangGraph, threads", "benchmarks.peers.langgraph", variant="plain", peer="langgraph")
PEERS: Final = (DURABL, DBOS, DBOS_WAL, DBOS_PLAIN, LANGGRAPH, LANGGRAPH_PLAIN)

HOLDFAST_POSTGRES: Final = Subject("Holdfast, PostgreSQL", "benchmarks.holdfast_steps", on_server=True)
SERVER_PEERS: Final = (
    Subject("Absurd", "benchmarks.peers.absurd", peer="absurd", on_server=True),
    Subject("Absurd, threads", "benchmarks.peers.absurd", variant="plain", peer="absurd", on_server=True),
    Subject("DBOS, PostgreSQL", "benchmarks.peers.dbos", peer="dbos", on_server=True),
    Subject("DBOS, PostgreSQL, threads", "benchmarks.peers.dbos", variant="plain", peer="dbos", on_server=True),
    Subject("LangGraph, PostgreSQL", "benchmarks.peers.langgraph_postgres", peer="langgraph_postgres", on_server=True),
    Subject(
        "LangGraph, PostgreSQL, threads",
        "benchmarks.peers.langgraph_postgres",
        variant="plain",
        peer="langgraph_postgres",
        on_server=True,
    ),
    Subject("Restate", "benchmarks.peers.restate", peer="restate", on_server=True),
    Subject("Temporal", "benchmarks.peers.temporal", peer="temporal", on_server=True),
)
"""Whoever keeps steps on PostgreSQL, and the two that bring a server of their own, which works on the same disk."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample and the disk it was taken on."""

    subject: str
    mode: str
    runs: int
    payload_bytes: int
    sample: Sample
    appends_before: float
    appends_after: float
    round: int = 0
    unit: str = "A"
    """A for the disk's rate of appends; A2 for the server's of one-row commits, which then stands in its place."""

    @property
    def appends(self) -> float:
        """The unit: the mean of the disk's or the server's rate before and after."""
        return (self.appends_before + self.appends_after) / 2

    @property
    def rate(self) -> float:
        return self.sample.steps / self.sample.seconds

    @property
    def unrest(self) -> float:
        """How much the disk's rate moved meanwhile: 1 is not at all."""
        return max(self.appends_before, self.appends_after) / min(self.appends_before, self.appends_after)

    @property
    def in_appends(self) -> float:
        return self.rate / self.appends

    @property
    def cpu_microseconds(self) -> float:
        return self.sample.cpu_seconds / self.sample.steps * 1e6


@dataclass(slots=True)
class Bench:
    """One run of the benchmark: where it works, how long it looks, and what it has read so far."""

    quick: bool = False
    rounds: int = 3
    readings: list[Reading] = field(default_factory=list)
    appends: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    """A2, as often as it was taken."""
    server: Postgres | None = None
    """Set while what is measured on PostgreSQL is."""

    @property
    def seconds(self) -> float:
        """How long one step measurement lasts."""
        return 0.7 if self.quick else 1.2

    def take(self, subject: Subject, load: Load, *, round: int = 0) -> Reading:
        """Run a subject; where the disk was restless meanwhile, run it once more and keep the calmer reading.

        Raises:
            Failed: it did not end well, or its store does not hold every step it reported.
        """
        reading = self.look(subject, load, round=round)
        if reading.unrest > RESTLESS and not self.quick:
            reading = min(reading, self.look(subject, load, round=round), key=lambda one: one.unrest)
        self.readings.append(reading)
        return reading

    def look(self, subject: Subject, load: Load, *, round: int = 0) -> Reading:
        """Run a subject in an empty directory on the disk, the disk's rate taken before and after; keep nothing.

        Raises:
            Failed: as `take`.
        """
        python = subject.python()
        if subject.on_server:
            return self._look_on_server(python, subject, load, round)
        directory = scratch(environment.prepared())
        try:
            before = self._append_rate(directory)
            load = replace(load, directory=directory / "store", variant=subject.variant)
            sample = run(python, subject.module, load)
            after = self._append_rate(directory)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        return Reading(subject.name, load.mode, load.runs, load.payload_bytes, sample, before, after, round)

    def _look_on_server(self, python: Path, subject: Subject, load: Load, round: int) -> Reading:
        assert self.server is not None
        directory = scratch(environment.prepared())
        try:
            with self.server.database() as address:
                before = self.commit_rate()
                load = replace(load, directory=directory / "store", variant=subject.variant, address=address)
                sample = run(python, subject.module, load)
                after = self.commit_rate()
                size = sample.bytes or self.server.bytes(address)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        sample = replace(sample, bytes=size)
        return Reading(subject.name, load.mode, load.runs, load.payload_bytes, sample, before, after, round, "A2")

    def commit_rate(self) -> float:
        """Return A2, measured now."""
        assert self.server is not None
        rate = self.server.commit_rate(0.15 if self.quick else 0.4)
        self.commits.append(rate)
        return rate

    def _append_rate(self, directory: Path) -> float:
        rate = disk.append_rate(directory, 0.1 if self.quick else 0.25)
        self.appends.append(rate)
        return rate


def scratch(parent: Path) -> Path:
    """Return a fresh empty directory."""
    return Path(tempfile.mkdtemp(prefix="work-", dir=parent))


def run(python: Path, module: str, load: Load) -> Sample:
    """Run one subject's process and check that what it did was stored."""
    found: dict[str, Any] = called(python, module, load.arguments())
    sample = Sample(**found)
    wanted = expected(load, sample)
    if sample.stored != wanted:
        raise Failed(f"{module}: {sample.stored} steps in the store, {wanted} were made")
    return sample


def called(python: Path, module: str, arguments: list[str], *, timeout_seconds: float = 180) -> dict[str, object]:
    """Run a module as a process and return the JSON object of its sample line."""
    command = [str(python), "-m", module, *arguments]
    try:
        answer = subprocess.run(
            command, cwd=environment.ROOT, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{module} was not done after {timeout_seconds:.0f} s") from error
    lines = [line for line in answer.stdout.splitlines() if line.startswith(MARKER)]
    if answer.returncode != 0 or not lines:
        last = (answer.stderr.strip() or "no message").splitlines()[-1][:300]
        raise Failed(f"{module} ended with {answer.returncode}: {last}".replace(str(environment.ROOT), "."))
    found: dict[str, object] = json.loads(lines[-1].removeprefix(MARKER))
    return found
