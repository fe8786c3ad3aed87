"""How soon a new process has every one of many open runs go on, and that it never passes a bound meanwhile."""

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import environment
from benchmarks.figure import Figure
from benchmarks.holdfast_restart import AT_ONCE
from benchmarks.measure.steps import Warn
from benchmarks.server import Postgres
from benchmarks.subject import Bench, Failed, called, scratch
from tests.rigs.daemon import Failed as NotStarted

RUNS: Final = 10_000
FEW: Final = 100
SUSPECTS: Final = 1_000
QUICK_RUNS: Final = 1_000
CONCURRENCY: Final = 64
CONNECTIONS: Final = 8 + 5
"""Of one process: the pool that reads, two that write, and one each to listen, to send hints and to beat."""
_MODULE: Final = "benchmarks.holdfast_restart"
_SEED_SECONDS: Final = 600
_SLEEP_SECONDS: Final = 0.012
"""For each run that is put to sleep: so long the first sleeps until all do."""
_LOOK_SECONDS: Final = 0.02
_KINDS: Final = {
    "driven": "inside a step",
    "asleep": "in sleeps that are over",
    "posted": "with a signal for each",
    "unserved": "half of them of a name that is not served",
    "limited": f"inside a step whose limit lets {AT_ONCE} be under way",
}


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Measure on SQLite and on PostgreSQL."""
    figures = _Restart(bench, warn, "sqlite", None).figures()
    try:
        with Postgres.running() as server:
            return figures + _Restart(bench, warn, "postgres", server).figures()
    except NotStarted as failure:
        warn(str(failure).splitlines()[0])
        return [*figures, Figure("restart.postgres", "restart on PostgreSQL", None, "s", "PostgreSQL did not start")]


class _Connections:
    """Counts how many connections a database has at most, for as long as `with` lasts."""

    def __init__(self, address: str) -> None:
        self._address, self._over = address, threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Connections":
        if self._address:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        if self._address:
            self._thread.join()

    def _look(self) -> None:
        sql = "SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()"
        with psycopg.connect(self._address, autocommit=True) as connection:
            while not self._over.wait(_LOOK_SECONDS):
                [(count,)] = connection.execute(sql).fetchall()
                self.most = max(self.most, int(count))


class _Restart:
    """The figures of one database."""

    def __init__(self, bench: Bench, warn: Warn, where: str, server: Postgres | None) -> None:
        self._bench, self._warn, self._where, self._server = bench, warn, where, server
        self._runs = QUICK_RUNS if bench.quick else RUNS
        self._most_connections = 0

    def figures(self) -> list[Figure]:
        figures: list[Figure] = []
        peaks: dict[int, float] = {}
        for kind, what in _KINDS.items():
            found = self._found(kind, self._runs)
            if found is not None and kind == "driven":
                peaks[self._runs] = found["peak_mb"]
            figures += self._times(kind, what, self._runs, found)
        few = self._found("driven", FEW)
        if few is not None:
            peaks[FEW] = few["peak_mb"]
        figures += self._memory(peaks)
        suspects = min(self._runs, SUSPECTS)
        what = "inside their first step, so one at a time"
        figures += self._times("suspect", what, suspects, self._found("suspect", suspects))
        if self._server is not None:
            name = f"connections of the process at most; {CONNECTIONS} are allowed"
            figures.append(Figure(f"restart.{self._where}.connections", name, float(self._most_connections)))
        return figures

    def _found(self, kind: str, runs: int) -> dict[str, Any] | None:
        try:
            return self._restarted(kind, runs)
        except Failed as failure:
            self._warn(f"restart of {runs:,} runs, {kind}, on {self._where}: {failure}")
            return None

    def _times(self, kind: str, what: str, runs: int, found: dict[str, Any] | None) -> Iterator[Figure]:
        key = f"restart.{self._where}" + ("" if kind == "driven" else f".{kind}")
        name = f"{self._where}, {runs:,} open runs {what}"
        if found is None:
            yield Figure(f"{key}.all", name, None, "s")
            return
        yield Figure(f"{key}.first", f"{name}: open to the first new step", found["first"], "s")
        note = f"{found['cpu']:.1f} s of processor time, {found['most']} under way at most"
        yield Figure(f"{key}.all", f"{name}: open to a new step in each", found["all"], "s", note)

    def _memory(self, peaks: dict[int, float]) -> Iterator[Figure]:
        key, name = f"restart.{self._where}.memory", f"{self._where}, peak memory with {self._runs:,} open, of {FEW}"
        if len(peaks) < 2:
            yield Figure(key, name, None, "x")
            return
        note = f"{peaks[self._runs]:.1f} MB and {peaks[FEW]:.1f} MB"
        yield Figure(key, name, peaks[self._runs] / peaks[FEW], "x", note)

    def _restarted(self, kind: str, runs: int) -> dict[str, Any]:
        with self._address() as address:
            until = time.time() + 10 + runs * _SLEEP_SECONDS if kind == "asleep" else 0.0
            arguments = [f"--kind={kind}", f"--address={address}", f"--runs={runs}", f"--until={until}"]
            _seed([*arguments, "--phase=seed"])
            if kind == "posted":
                _run([*arguments, "--phase=post"], expected=0)
            time.sleep(max(0.0, until - time.time()))
            with _Connections(address if self._server is not None else "") as connections:
                found = called(
                    Path(sys.executable), _MODULE, ["--phase=open", *arguments], timeout_seconds=_SEED_SECONDS
                )
        self._most_connections = max(self._most_connections, connections.most)
        self._check(kind, found, connections.most)
        return found

    def _check(self, kind: str, found: dict[str, Any], connections: int) -> None:
        bound = {"limited": AT_ONCE, "suspect": 1}.get(kind, CONCURRENCY)
        if not found["once_each"]:
            raise Failed("a run made its step twice, or not at all")
        if found["most"] > bound:
            raise Failed(f"{found['most']} steps were under way at once, and {bound} may be")
        if connections > CONNECTIONS:
            raise Failed(f"{connections} connections were open, and {CONNECTIONS} may be")

    @contextmanager
    def _address(self) -> Iterator[str]:
        if self._server is not None:
            with self._server.database() as address:
                yield address
            return
        directory = scratch(environment.prepared())
        try:
            yield f"sqlite:///{directory / 'holdfast.db'}"
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _seed(arguments: list[str]) -> None:
    """Bring the runs to where they wait, and see their worker die by its own hand."""
    _run(arguments, expected=-signal.SIGKILL)


def _run(arguments: list[str], *, expected: int) -> None:
    command = [sys.executable, "-m", _MODULE, *arguments]
    try:
        ended = subprocess.run(
            command, cwd=environment.ROOT, capture_output=True, text=True, timeout=_SEED_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed("the runs were not made in time") from error
    if ended.returncode != expected:
        last = (ended.stderr.strip() or "no message").splitlines()[-1]
        raise Failed(f"what makes the runs ended with {ended.returncode}: {last}")
