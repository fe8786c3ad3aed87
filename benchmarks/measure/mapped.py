"""A fan-out over many items under a bound: its cost per item beside DBOS's queues and Restate, and its memory."""

import shutil
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from benchmarks import environment
from benchmarks.figure import Figure, of
from benchmarks.mapping import Order, Result
from benchmarks.measure.steps import Warn
from benchmarks.server import Postgres
from benchmarks.subject import Bench, Failed, Subject, called, scratch
from tests.rigs.daemon import Failed as NotStarted

ITEMS: Final = 10_000
PEER_ITEMS: Final = 1_000
"""A queue of DBOS does so few of them in a second that more would take an hour."""
QUICK_ITEMS: Final = 200
AT_ONCE: Final = 16
_SECONDS: Final = 900.0

HOLDFAST: Final = Subject("Holdfast", "benchmarks.holdfast_map")
BOUNDED: Final = Subject("Holdfast, at_once=", "benchmarks.holdfast_map", variant="bounded")
ON_SERVER: Final = Subject("Holdfast, PostgreSQL", "benchmarks.holdfast_map", on_server=True)
DBOS: Final = Subject("DBOS", "benchmarks.peers.dbos_map", peer="dbos")
DBOS_ON_SERVER: Final = Subject("DBOS, PostgreSQL", "benchmarks.peers.dbos_map", peer="dbos", on_server=True)
RESTATE: Final = Subject("Restate", "benchmarks.peers.restate_map", peer="restate")
PEERS: Final = (DBOS, DBOS_ON_SERVER, RESTATE)
_AGAINST: Final = {DBOS.name: HOLDFAST, DBOS_ON_SERVER.name: ON_SERVER, RESTATE.name: HOLDFAST}
"""Whom of ours each peer stands beside: the one on the same kind of store."""


def measure(bench: Bench, warn: Warn) -> list[Figure]:
    """Measure all subjects round by round, PostgreSQL where it starts."""
    with ExitStack() as ending:
        server: Postgres | None = None
        try:
            server = ending.enter_context(Postgres.running())
        except NotStarted as failure:
            warn(str(failure).splitlines()[0])
        return _Maps(bench, warn, server).figures()


class _Maps:
    """What was measured so far; a subject that fails is left out from there on."""

    def __init__(self, bench: Bench, warn: Warn, server: Postgres | None) -> None:
        self._bench, self._warn, self._server = bench, warn, server
        self._results: dict[tuple[str, int], list[Result]] = {}
        self._reasons: dict[str, str] = {}

    def figures(self) -> list[Figure]:
        few, many = (QUICK_ITEMS, QUICK_ITEMS * 10) if self._bench.quick else (PEER_ITEMS, ITEMS)
        for _ in range(self._bench.rounds):
            for subject in (HOLDFAST, BOUNDED, ON_SERVER, *PEERS):
                self._take(subject, few)
            self._take(HOLDFAST, many)
            self._take(BOUNDED, many)
        return [
            *(self._cost(subject, few, "seconds") for subject in (HOLDFAST, BOUNDED, ON_SERVER, *PEERS)),
            *(self._cost(subject, few, "cpu_seconds") for subject in (HOLDFAST, BOUNDED, ON_SERVER, *PEERS)),
            *(self._ratio(peer, few) for peer in PEERS),
            *self._flat(few, many),
        ]

    def _take(self, subject: Subject, items: int) -> None:
        if subject.name in self._reasons or (subject.on_server and self._server is None):
            return
        directory = scratch(environment.prepared())
        try:
            with ExitStack() as ending:
                address = ""
                if subject.on_server and self._server is not None:
                    address = ending.enter_context(self._server.database())
                order = Order(directory / "store", items, AT_ONCE, subject.variant, address)
                found: dict[str, Any] = called(
                    subject.python(), subject.module, order.arguments(), timeout_seconds=_SECONDS
                )
            result = Result(**found)
            if result.stored != items or result.most > AT_ONCE:
                raise Failed(f"{result.stored} of {items} items are stored, {result.most} were under way at once")
            self._results.setdefault((subject.name, items), []).append(result)
        except (Failed, environment.NotInstalled) as failure:
            self._reasons[subject.name] = str(failure)
            self._warn(f"a map of {items:,} items by {subject.name}: {failure}")
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _taken(self, subject: Subject, items: int, what: str) -> list[float]:
        """Return a cost of every round, in µs an item."""
        return [getattr(one, what) / items * 1e6 for one in self._results.get((subject.name, items), [])]

    def _cost(self, subject: Subject, items: int, what: str) -> Figure:
        time = "wall" if what == "seconds" else "processor"
        name = f"{subject.name}: {time} time an item, {items:,} items, {AT_ONCE} at once"
        return of(f"map.{subject.name}.{what}", name, self._taken(subject, items, what), "µs")

    def _ratio(self, peer: Subject, items: int) -> Figure:
        """Return our wall time over the peer's, each in its best round."""
        ours = self._taken(_AGAINST[peer.name], items, "seconds")
        theirs = self._taken(peer, items, "seconds")
        name = f"wall time an item, of {peer.name}'s"
        if not ours or not theirs:
            return Figure(f"map.{peer.name}", name, None, "x", self._reasons.get(peer.name, ""))
        note = f"{min(ours):,.0f} µs of {min(theirs):,.0f} µs"
        return Figure(f"map.{peer.name}", name, min(ours) / min(theirs), "x", note)

    def _flat(self, few: int, many: int) -> list[Figure]:
        peaks = [[one.peak_mb for one in self._results.get((HOLDFAST.name, items), [])] for items in (few, many)]
        costs = [self._taken(HOLDFAST, items, "cpu_seconds") for items in (few, many)]
        between = f"{many:,} items, of {few:,}"
        memory, flat = f"peak memory with {between}", f"processor time an item with {between}"
        if not all(peaks):
            return [Figure("map.memory", memory, None, "x"), Figure("map.flat", flat, None, "x")]
        small, large = (median(one) for one in peaks)
        low, high = (min(one) for one in costs)
        return [
            Figure("map.memory", memory, large / small, "x", f"{large:.1f} MB and {small:.1f} MB"),
            Figure("map.flat", flat, high / low, "x", f"{high:,.0f} µs and {low:,.0f} µs"),
        ]
