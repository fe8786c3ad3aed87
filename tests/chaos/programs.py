"""Generated programs on workers that are killed every few seconds: each comes to what a model of it says."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final

import holdfast as hf
from holdfast.runtime import Runtime
from tests.chaos.actor import FLIGHT_SECONDS, Ledger
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import ROOT
from tests.chaos.judge import Broken
from tests.chaos.sites import Site, Sites, file_site, schema_site
from tests.rigs.server import Server
from tests.simulation import acting
from tests.simulation.guest import Guest
from tests.simulation.judge import Observed, faults
from tests.simulation.plan import Pace, Plan, generate, verbs_of, written

PACE: Final = Pace(blink=0.02, rest=1.3, soon=0.5)
WORKERS: Final = 3
KILL_SECONDS: Final = 2.0
PATIENCE_SECONDS: Final = 120.0
"""How long a program may take, whoever dies meanwhile."""
_AT_ONCE: Final = 40
_BATCH: Final = 250
_LOOK_SECONDS: Final = 0.05
FATAL: Final = (30, 400)
"""Of the workers that die by themselves, around which of their effects."""


@dataclass(frozen=True, slots=True)
class Survived:
    """What came of some programs: how much there was, and what was wrong, by program."""

    runs: int
    verbs: int
    kills: int
    doubts: int
    broken: Sequence[str]


class Actor:
    """One worker's process."""

    def __init__(self, given: Mapping[str, Any], site: Site) -> None:
        with site.ledger.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.actor", json.dumps(given)], cwd=ROOT, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                # Where workers on PostgreSQL keep their locks: they go with the trial.
                env={**os.environ, "XDG_RUNTIME_DIR": str(site.ledger.parent)},
            )  # fmt: skip
        self.serves = threading.Event()
        threading.Thread(target=self._listen, name="actor", daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for _ in lines:
                self.serves.set()

    def kill(self) -> None:
        """End it, and return when it is gone."""
        self.process.kill()
        self.process.wait()


class Troupe:
    """Workers in processes of their own, one of which is killed every few seconds and replaced."""

    def __init__(self, site: Site, seed: str, *, twin: str = "", fatal: tuple[int, int] = FATAL) -> None:
        self._site, self._twin, self._fatal, self._chance = site, twin, fatal, Random(seed)
        self._names = (f"{seed}/actor{number}" for number in itertools.count(1))
        self._actors: list[Actor] = []
        self.kills = 0

    @contextmanager
    def playing(self) -> Iterator[None]:
        """Work until this is left."""
        try:
            for _ in range(WORKERS):
                self._launch()
            # So that the store is made by one of them before anybody else asks for it.
            for actor in self._actors:
                if not actor.serves.wait(PATIENCE_SECONDS):
                    raise Broken(f"a worker does not serve: {actor.process.poll()}")
            yield
        finally:
            for actor in self._actors:
                actor.kill()

    def _launch(self) -> None:
        given = {
            "store": self._site.address, "ledger": str(self._site.ledger), "name": next(self._names),
            "twin": self._twin, "dies_at": self._chance.choice((0, self._chance.randint(*self._fatal))),
        }  # fmt: skip
        self._actors.append(Actor(given, self._site))

    async def lose_workers(self, kill_seconds: float) -> None:
        """Kill one after the other, and replace them and those that died by themselves.

        While only one serves it is left alone: on a slow machine nobody would come to anything.
        """
        while True:
            await asyncio.sleep(kill_seconds)
            fallen = [actor for actor in self._actors if actor.process.poll() is not None]
            serving = [actor for actor in self._actors if actor.serves.is_set() and actor not in fallen]
            if not fallen and len(serving) > 1:
                fallen = [self._chance.choice(serving)]
            for actor in fallen:
                actor.kill()
                self._actors.remove(actor)
                self.kills += 1
                self._launch()


async def survive(
    site: Site,
    seeds: Sequence[str],
    *,
    twin: str = "",
    kill_seconds: float = KILL_SECONDS,
    fatal: tuple[int, int] = FATAL,
) -> Survived:
    """See the programs of these seeds to their ends while workers die, and hold them to the model."""
    plans = [generate(seed, PACE, name=seed.replace("/", "-")) for seed in seeds]
    troupe = Troupe(site, seeds[0], twin=twin, fatal=fatal)
    ledger = Ledger(str(site.ledger), "caller")
    with troupe.playing():
        async with hf.open(site.address, hf.App(*acting.CODES, version="1"), work=False) as runtime:
            late = await _play(runtime, ledger, plans, troupe, kill_seconds)
            observed = await Observed.of(runtime, ledger.lines(), deaths=True)
    broken = [*observed.broken, *late]
    for seed, plan in zip(seeds, plans, strict=True):
        if found := list(faults(plan, observed)):
            broken.append(f"--replay programs:{seed}: " + "\n".join([*found[:5], written(plan)]))
    ended = [run for runs in observed.runs.values() for run in runs]
    doubts = sum(entry.type == "StepDoubted" for run in ended for entry in run.entries)
    return Survived(len(ended), sum(map(verbs_of, plans)), troupe.kills, doubts, broken)


async def _play(
    runtime: Runtime, ledger: Ledger, plans: Sequence[Plan], troupe: Troupe, kill_seconds: float
) -> list[str]:
    """Start all programs, some at once, visit them, and wait until every run has ended; return what did not."""
    guest = Guest(runtime, ledger.note, ledger.lines, look_seconds=_LOOK_SECONDS, flight_seconds=FLIGHT_SECONDS)
    beside = [
        asyncio.create_task(each)
        for each in (guest.attend(), guest.resolve_doubts(), troupe.lose_workers(kill_seconds))
    ]
    room = asyncio.Semaphore(_AT_ONCE)

    async def play(plan: Plan) -> None:
        async with room:
            guest.expect(plan)
            run = await runtime.start(acting.act, plan, 0, {}, key=plan.name)
            await runtime.client.wait(run.id, timeout_seconds=PATIENCE_SECONDS)

    try:
        ended = await asyncio.gather(*map(play, plans), return_exceptions=True)
        late = [repr(each) for each in ended if each is not None]
        late += await _children_end(runtime, beside, PATIENCE_SECONDS)
        if not late:
            await guest.leave()
    finally:
        for task in beside:
            task.cancel()
        await asyncio.wait(beside)
    return late


async def _children_end(runtime: Runtime, beside: Sequence["asyncio.Task[Any]"], seconds: float) -> list[str]:
    give_up = time.monotonic() + seconds
    while True:
        for task in beside:
            if task.done():
                task.result()
        left = [run for status in _OPEN for run in await runtime.runs(status=status, limit=100)]
        if not left or time.monotonic() > give_up:
            return [f"run {run.id} ({run.name}) is {run.status}: {run.reason}" for run in left]
        await asyncio.sleep(_LOOK_SECONDS)


_OPEN: Final = ("queued", "running", "waiting", "paused", "quarantined", "exhausted")


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """See `wanted` programs to their ends, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    with Server() as server:
        places: Sequence[tuple[str, Sites]] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            for first in range(0, wanted // 2, _BATCH):
                seeds = [f"{seed}/{kind}/{number}" for number in range(first, min(first + _BATCH, wanted // 2))]
                if shared.hopeless:
                    break
                with sites() as site:
                    survived = asyncio.run(survive(site, seeds))
                counts = {"runs": survived.runs, "verbs": survived.verbs, "kills": survived.kills}
                shared.done(len(seeds), None, programs=len(seeds), **counts, doubts=survived.doubts)
                shared.add({f"on_{kind}": len(seeds)})
                for broken in survived.broken:
                    shared.done(0, f"on {kind}: {broken}", broken=1)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def replay(seed: str) -> str | None:
    """Run one program alone, on a store of the kind that its seed names; return what it broke, if anything."""
    if "/postgresql/" not in seed:
        with file_site() as site:
            return "\n".join(asyncio.run(survive(site, [seed])).broken) or None
    with Server() as server, schema_site(server) as site:
        return "\n".join(asyncio.run(survive(site, [seed])).broken) or None
