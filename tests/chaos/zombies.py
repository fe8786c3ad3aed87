"""Workers that are stopped, declared dead and woken: whatever they were about to do, nothing of it is written."""

import asyncio
import random
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import holdfast as hf
from holdfast.core.ids import RunId
from holdfast.runtime import Runtime
from holdfast.store.protocol import Store
from holdfast.store.value import RunFilter, RunRow
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import SECONDS, Berth, Crew, Hand, Silent
from tests.chaos.hand import own, tale
from tests.chaos.judge import Broken
from tests.chaos.sites import Site, Sites, file_site, make_store, schema_site
from tests.chaos.verdict import Story, entries_of, faults
from tests.rigs.server import Server
from tests.rigs.waiting import wait_until

LEASE_SECONDS: Final = 0.9
"""Shorter ones are hard to see lapse on a loaded machine: looks may be a third of one apart."""
RETURN_SECONDS: Final = 2.0
"""How soon a worker that wakes must have served a new run."""
_FREE_SECONDS: Final = 0.5
_COMMITS: Final = 5
_PLACES: Final = ("commit", "effect-begins", "effect-ends", "pulse", "moment")


@dataclass(frozen=True, slots=True)
class Sleep:
    """Where a worker is stopped, and how; written `commit:3 pay early frozen`.

    An `early` one wakes when another has claimed its run and written nothing yet; others when their run has ended, or
    waits for a person.
    """

    place: str
    nth: int = 1
    effect: str = "pay"
    early: bool = False
    frozen: bool = False

    @classmethod
    def of_seed(cls, seed: int, number: int) -> "Sleep":
        """Return the sleep of a round; every third is the freezer's."""
        chance = random.Random(f"{seed}/{number}")
        place = chance.choice(_PLACES)
        nth = {"commit": chance.randint(1, _COMMITS), "moment": chance.randint(0, 8)}.get(place, 1)
        # At any moment an effect may be about to happen, of which no person could know.
        effect = "pay" if place == "moment" else chance.choice(("pay", "sign"))
        return cls(place, nth, effect, chance.random() < 0.5, number % 3 == 0)

    def __str__(self) -> str:
        marks = [self.effect, *(["early"] if self.early else []), *(["frozen"] if self.frozen else [])]
        return f"{self.place}:{self.nth} {' '.join(marks)}"


class Stage:
    """Two workers on one store, one round after the other."""

    def __init__(self, crew: Crew, site: Site, store: Store, runtime: Runtime) -> None:
        self._crew, self._site, self._store, self._runtime = crew, site, store, runtime
        self.overtaken = 0
        """How many rounds stopped a worker whose run was not over yet."""
        self.slowest_seconds = 0.0
        """The longest that a worker which woke took to serve again."""

    def play(self, sleep: Sleep, number: int) -> None:
        """Stop whoever drives a new run, let the other take over, wake him, and judge.

        Raises:
            Broken: a promise was broken.
            Silent: something did not happen in time.
        """
        if sleep.place != "moment":
            for hand in self._crew.hands:
                hand.halt("effect-begins" if sleep.place == "pulse" else sleep.place, sleep.nth)
        run: RunId = self._do(self._runtime.start(tale, number, sleep.effect, key=("tale", number))).id
        sleeper = self._held(sleep, number)
        (other,) = [hand for hand in self._crew.hands if hand is not sleeper]
        other.order("go")
        if sleep.early:
            other.halt("commit")
        with self._asleep(sleeper, sleep):
            self._site.orphan(sleeper)
            self._taken_over(run, other, sleep)
            before = self._state(run)
            sleeper.order("go")
        self._returns(sleeper)
        self._unmoved(before, self._state(run))
        other.order("go")
        self._end(run, sleep, number)

    def _do(self, awaitable: Any) -> Any:
        return self._runtime.wait(awaitable)

    def _held(self, sleep: Sleep, number: int) -> Hand:
        """Return the worker that holds the run, at the place where it shall stop."""
        if sleep.place == "moment":
            wait_until(lambda: bool(self._crew.lines_of(number)), seconds=SECONDS, what="a first act")
            (name, *_) = [line["who"] for line in self._crew.lines_of(number)]
            threading.Event().wait(sleep.nth / 1000)
            return next(hand for hand in self._crew.hands if hand.name == name)
        first = "effect-begins" if sleep.place == "pulse" else sleep.place
        sleeper = self._crew.first_at(first)
        if sleep.place == "pulse":
            sleeper.halt("pulse")
            sleeper.wait_for("at pulse")
        return sleeper

    @contextmanager
    def _asleep(self, sleeper: Hand, sleep: Sleep) -> Iterator[None]:
        """Stop it; one that keeps everybody from writing is let go on for a moment, since nothing could be seen."""
        while True:
            with sleeper.standing_still(frozen=sleep.frozen):
                if self._is_free():
                    yield
                    return

    def _is_free(self) -> bool:
        try:
            wait_until(self._site.is_free, seconds=_FREE_SECONDS)
        except TimeoutError:
            return False
        return True

    def _taken_over(self, run: RunId, other: Hand, sleep: Sleep) -> None:
        """Wait until the run is where the sleeper shall meet it."""
        if self._is_over(run):
            return  # before its worker was stopped
        self.overtaken += 1
        if sleep.early:
            # What a worker had sent to the server before it was stopped may end the run yet.
            wait_until(lambda: other.has_said("at commit") or self._is_over(run), seconds=SECONDS, what="a takeover")
            return
        ending = self._do(self._runtime.client.wait(run, timeout_seconds=SECONDS, or_person=True))
        if not ending.reason.startswith("doubt") and not ending.status.terminal:
            raise Broken(f"it is {ending.status}: {ending.reason}")

    def _is_over(self, run: RunId) -> bool:
        row = self._row(run)
        return row.status.terminal or (row.owner is None and row.reason.startswith("doubt"))

    def _row(self, run: RunId) -> RunRow:
        row: RunRow | None = self._do(self._store.get(run))
        assert row is not None
        return row

    def _state(self, run: RunId) -> tuple[RunRow, list[Any]]:
        row = self._row(run)
        return row, self._do(entries_of(self._runtime, run))

    def _returns(self, sleeper: Hand) -> None:
        """See that a worker that woke serves again, in time."""
        woken = time.monotonic()
        served = self._do(self._runtime.start(own(sleeper.name)))
        self._do(served.result(timeout=SECONDS))
        took = time.monotonic() - woken
        self.slowest_seconds = max(self.slowest_seconds, took)
        if took > RETURN_SECONDS:
            raise Broken(f"{sleeper.name} served only {took:.1f} s after it woke")

    def _unmoved(self, before: tuple[RunRow, list[Any]], after: tuple[RunRow, list[Any]]) -> None:
        """Whoever has no lease wrote nothing; a rightful owner that came since has another fence."""
        (row, entries), (now, entries_now) = before, after
        if now.fence == row.fence and [entry.seq for entry in entries_now] != [entry.seq for entry in entries]:
            new = [entry.type for entry in entries_now[len(entries) :]]
            raise Broken(f"a worker without its lease wrote {new} behind entry {row.last_seq}")
        if entries_now[: len(entries)] != entries:
            raise Broken("what was written is another now")

    def _end(self, run: RunId, sleep: Sleep, number: int) -> None:
        """Bring the run to its end, a person's word included, and judge it."""
        handle = self._do(self._runtime.get(run))
        ending = self._do(self._runtime.client.wait(run, timeout_seconds=SECONDS, or_person=True))
        if ending.reason.startswith("doubt"):
            # What it was about to do when it was stopped is done by whoever wakes, a moment later; then a person knows.
            wait_until(lambda: self._happened(sleep.effect, number), what="the effect")
            self._do(handle.resolve(f"0/{sleep.effect}#1", f"{sleep.effect} {number}", by="ann"))
        result = self._do(handle.result(timeout=SECONDS))
        story = Story(
            number, sleep.effect, self._do(entries_of(self._runtime, run)), result, self._crew.lines_of(number)
        )
        if found := list(faults(story)):
            raise Broken("\n".join(found))

    def _happened(self, effect: str, number: int) -> bool:
        return any(line["what"] == effect for line in self._crew.lines_of(number))

    def describe(self) -> str:
        """Return where everybody stands, for whoever must find out why."""
        workers = [(row.worker, row.pulse, row.leases) for row in self._do(self._store.workers())]
        rows = self._do(self._store.list(RunFilter(limit=3)))
        runs = [(row.run, row.name, str(row.status), row.owner, row.fence, row.last_seq, row.stalls) for row in rows]
        said = [(hand.name, hand.worker, hand.said, hand.log()[-1500:]) for hand in self._crew.hands]
        return f"workers {workers}\nlatest runs {runs}\n" + "\n".join(map(str, said))


@contextmanager
def staged(site: Site, *, twin: bool = False) -> Iterator[Stage]:
    """Give a stage with two workers on it; those of the twin commit whatever they like."""
    asyncio.run(make_store(site.address))
    berth = Berth(site.address, site.ledger, LEASE_SECONDS, site.unfence() if twin else "")
    with Crew(berth) as crew, hf.open(site.address, work=False) as runtime:
        crew.launch("a", "b")
        yield Stage(crew, site, runtime._store, runtime)


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Play `wanted` rounds, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()

    def work(kind: str, sites: Sites, rounds: Iterator[int]) -> None:
        while not shared.hopeless:
            # After a failure another store: what it left would spoil the rounds behind it.
            with sites() as site, staged(site) as stage:
                for number in rounds:
                    before = stage.overtaken
                    failure = _failure(stage, Sleep.of_seed(seed, number), number)
                    told = failure and f"on {kind}, {failure}"
                    shared.done(1, told, rounds=1, overtaken=stage.overtaken - before, **{f"on_{kind}": 1})
                    shared.most(slowest_return_ms=int(1000 * stage.slowest_seconds))
                    if failure is not None:
                        break
                else:
                    return

    with Server() as server, ThreadPoolExecutor(2) as threads:
        halves = [
            threads.submit(work, "sqlite", file_site, iter(range(0, wanted, 2))),
            threads.submit(work, "postgresql", partial(schema_site, server), iter(range(1, wanted, 2))),
        ]
        for half in halves:
            half.result()
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _failure(stage: Stage, sleep: Sleep, number: int) -> str | None:
    try:
        stage.play(sleep, number)
    except (Broken, Silent, OSError, hf.HoldfastError) as error:
        where = traceback.extract_tb(error.__traceback__)[1].name
        return f"round {number}, {sleep}, {where}: {error!r}\n{stage.describe()}"
    return None
