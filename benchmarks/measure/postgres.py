"""Steps on PostgreSQL beside the server's own rate of commits and beside the peers, then several processes."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import environment
from benchmarks.figure import Figure, of
from benchmarks.measure import fleet
from benchmarks.measure.steps import PAYLOAD_BYTES, PEERS_AT_ONCE, Rounds, Warn
from benchmarks.server import Postgres
from benchmarks.subject import HOLDFAST_POSTGRES, SERVER_PEERS, Bench, Failed, Subject
from benchmarks.workload import Load
from tests.rigs.daemon import Failed as NotStarted

AT_ONCE: Final = (1, 64, 256)
CELLS: Final = (
    *((HOLDFAST_POSTGRES, runs) for runs in AT_ONCE),
    *((peer, runs) for runs in (1, PEERS_AT_ONCE) for peer in SERVER_PEERS),
)
_ELSEWHERE: Final = ("Restate", "Temporal")
"""Peers that bring a server of their own and keep nothing in PostgreSQL."""
_ON_POSTGRES: Final = tuple(peer for peer in SERVER_PEERS if peer.name not in _ELSEWHERE)


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Measure everything that needs the server, on one server."""
    try:
        with Postgres.running() as server:
            bench.server = server
            return [*_Steps(bench, warn).figures(), *fleet.measure(bench, warn)]
    except NotStarted as failure:
        warn(str(failure).splitlines()[0])
        return [Figure("postgres.commits", "A2, commits of one row a second", None, "/s", "PostgreSQL did not start")]
    finally:
        bench.server = None


class _Steps:
    """The cells, taken once a round; a subject that fails is left out from there on, and the reason kept."""

    def __init__(self, bench: Bench, warn: Warn) -> None:
        self._bench, self._warn = bench, warn
        self._rounds: Rounds = defaultdict(dict)
        self._latencies: list[float] = []
        self._reasons: dict[str, str] = {}

    def figures(self) -> list[Figure]:
        for number in range(self._bench.rounds):
            for subject, runs in CELLS:
                self._take(subject, runs, number)
            self._take_once(number)
        figures = [of("postgres.commits", "A2, commits of one row a second", self._bench.commits, "/s")]
        figures += [figure for runs in AT_ONCE for figure in self._of_runs(runs)]
        figures.append(of("postgres.once", "a one-step run on PostgreSQL", self._latencies, "ms"))
        return [*figures, *self._missing()]

    def _take(self, subject: Subject, runs: int, number: int) -> None:
        if subject.name in self._reasons:
            return
        load = Load(Path(), runs=runs, seconds=self._bench.seconds, payload_bytes=PAYLOAD_BYTES)
        try:
            self._rounds[subject.name, runs][number] = self._bench.take(subject, load, round=number)
        except (Failed, environment.NotInstalled) as failure:
            self._reasons[subject.name] = str(failure)
            self._warn(f"{subject.name} with {runs} at once: {failure}")

    def _take_once(self, number: int) -> None:
        load = Load(Path(), mode="once", seconds=self._bench.seconds, payload_bytes=PAYLOAD_BYTES)
        try:
            reading = self._bench.take(HOLDFAST_POSTGRES, load, round=number)
        except Failed as failure:
            self._warn(str(failure))
        else:
            self._latencies.append(median(reading.sample.latencies) * 1000)

    def _of_runs(self, runs: int) -> Iterator[Figure]:
        mine = list(self._rounds[HOLDFAST_POSTGRES.name, runs].values())
        many = "one run alone" if runs == 1 else f"{runs} runs at once"
        key = f"postgres.{runs}"
        yield of(f"{key}.rate", f"steps a second on PostgreSQL, {many}", [one.rate for one in mine], "/s")
        yield of(f"{key}.commits", f"PostgreSQL, {many}, in A2", [one.in_appends for one in mine], "A2")
        yield of(f"{key}.cpu", f"processor time a step, {many}", [one.cpu_microseconds for one in mine], "µs")
        if runs in (1, PEERS_AT_ONCE):
            yield self._against(f"{key}.best_peer", f"{many}, of the best peer on PostgreSQL", runs, _ON_POSTGRES)
            yield self._against(f"{key}.any_peer", f"{many}, of the best peer on any server", runs, SERVER_PEERS)

    def _against(self, key: str, name: str, runs: int, peers: Sequence[Subject]) -> Figure:
        """Return Holdfast's best round over the best round of any peer that could be measured, and say whose it was."""
        mine = [one.rate for one in self._rounds[HOLDFAST_POSTGRES.name, runs].values()]
        theirs = [(one.rate, peer.name) for peer in peers for one in self._rounds[peer.name, runs].values()]
        if not mine or not theirs:
            return of(key, name, [], "x")
        rate, best = max(theirs)
        missing = [peer.name for peer in peers if not self._rounds[peer.name, runs]]
        note = f"{best} at {rate:,.0f}/s" + (f"; without {', '.join(missing)}" if missing else "")
        return Figure(key, name, max(mine) / rate, "x", note)

    def _missing(self) -> Iterator[Figure]:
        for name, reason in self._reasons.items():
            yield Figure(f"postgres.missing.{name}", name, None, "", reason)
