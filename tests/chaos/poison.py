"""Runs that kill their process beside healthy ones, under a loop that starts `holdfast worker` again and again."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

import holdfast as hf
from holdfast.cli import main
from holdfast.core.ids import RunId
from holdfast.core.status import TERMINAL, Status
from holdfast.testing.killer import Killer, Outcome
from tests.chaos import twins
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.judge import Broken
from tests.chaos.poisons import CAUSE, POISON, app, healthy
from tests.chaos.sites import Site, Sites, file_site, schema_site
from tests.rigs.server import Server

HEALTHY: Final = 200
EACH: Final = 2
"""How many runs of each poison, in full."""
AT_ONCE: Final = 64
_SECONDS: Final = 300.0
"""How long one worker may live: on a busy machine it takes a while to drive suspects one at a time."""
_LOOK_SECONDS: Final = 0.02
_PAGE: Final = 1000


def new_killer() -> Killer:
    """Return a server that forks workers with all they need imported."""
    return Killer(
        preload=("tests.chaos.poison", "holdfast.store.postgres", "structlog"), seam=None, timeout_seconds=_SECONDS
    )


def serve(store: str, cause: str, pid: str, runtime_folder: str, twin: str) -> None:
    """Be `holdfast worker` until told to leave."""
    twins.apply(twin, store)
    os.environ[CAUSE], os.environ["XDG_RUNTIME_DIR"] = cause, runtime_folder
    with open(pid, "w", encoding="ascii") as file:
        file.write(str(os.getpid()))
    words = ["worker", "tests.chaos.poisons:app", "--concurrency", str(AT_ONCE), "--store", store]
    try:
        main(words)
    except SystemExit as left:
        if left.code != 0:
            raise


@dataclass(frozen=True, slots=True)
class Survived:
    """What a loop of workers came to: how many of them died, and how many runs ended beside."""

    deaths: int
    healthy: int
    poison: int


class Loop:
    """Workers on one store, one after the other: whenever one dies, another is started."""

    def __init__(self, killer: Killer, site: Site, *, twin: str = "") -> None:
        self._killer, self._site, self._twin = killer, site, twin
        self._cause, self._pid = site.ledger.with_suffix(".cause"), site.ledger.with_suffix(".pid")
        self.deaths = 0

    def survive(self, count: int, each: int) -> Survived:
        """See so many healthy runs to their ends beside `each` of every poison, then all of them without the cause.

        Raises:
            Broken: a healthy run suffered, or poison was not set aside as it should be.
        """
        self._cause.touch()
        good, bad = asyncio.run(self._start(count, each))
        self._until_all_are({*TERMINAL, Status.QUARANTINED})
        asyncio.run(self._check_set_aside(good, bad))
        self._cause.unlink()
        asyncio.run(self._retry(list(bad)))
        before = self.deaths
        self._until_all_are(TERMINAL)
        asyncio.run(self._check_mended(bad, self.deaths - before))
        return Survived(before, len(good), len(bad))

    async def _start(self, count: int, each: int) -> tuple[Mapping[RunId, int], Mapping[RunId, str]]:
        async with hf.open(self._site.address, app, work=False) as runtime:
            bad: dict[RunId, str] = {}
            good: dict[RunId, int] = {}
            for number in range(max(count, each)):
                if number < count:
                    good[(await runtime.start(healthy, number)).id] = number
                if number < each:
                    bad |= {(await runtime.start(code, number)).id: name for name, (code, _) in POISON.items()}
        return good, bad

    def _until_all_are(self, wanted: Collection[Status]) -> None:
        """Start one worker after the other until every run stands so, and let the last one leave."""
        over, stop = threading.Event(), threading.Event()
        looking = threading.Thread(target=asyncio.run, args=(self._look(wanted, over, stop),))
        looking.start()
        places = (self._site.address, str(self._cause), str(self._pid), str(self._site.ledger.parent), self._twin)
        try:
            while True:
                self._pid.unlink(missing_ok=True)
                outcome = self._killer.run(serve, *places)
                # One that is told to leave before it listens dies of it.
                if over.is_set() and outcome.exit_status in (0, -signal.SIGTERM):
                    return
                self._count(outcome)
        finally:
            stop.set()
            looking.join()

    def _count(self, outcome: Outcome) -> None:
        if outcome.stuck or outcome.exit_status not in (3, -signal.SIGABRT, -signal.SIGSEGV):
            raise Broken(f"a worker ended with {outcome.exit_status}: {outcome.error or outcome.output[-2000:]}")
        self.deaths += 1

    async def _look(self, wanted: Collection[Status], over: threading.Event, stop: threading.Event) -> None:
        """Once all stand as wanted, tell each worker to leave that there is, until told to stop."""
        told: set[int] = set()
        async with hf.open(self._site.address, app, work=False) as runtime:
            while not stop.is_set():
                stand = {} if over.is_set() else await _standing(runtime)
                if over.is_set() or all(status in wanted for status, _ in stand.values()):
                    over.set()
                    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
                        pid = int(self._pid.read_text("ascii"))
                        if pid not in told:
                            os.kill(pid, signal.SIGTERM)
                        told.add(pid)
                await asyncio.sleep(_LOOK_SECONDS)

    async def _check_set_aside(self, good: Mapping[RunId, int], bad: Mapping[RunId, str]) -> None:
        broken: list[str] = []
        async with hf.open(self._site.address, app, work=False) as runtime:
            for run, (status, reason) in (await _standing(runtime)).items():
                wanted = Status.COMPLETED if run in good else Status.QUARANTINED
                where = POISON[bad[run]][1] if run in bad else ""
                if status is not wanted or (run in bad and not reason.endswith(where)):
                    broken.append(f"{bad.get(run, 'healthy')} is {status}: {reason}")
            for run, number in good.items():
                if (result := (await runtime.client.info(run)).result) != number + 1:
                    broken.append(f"healthy {number} came to {result}")
        if broken:
            raise Broken("\n".join(broken))

    async def _retry(self, bad: Sequence[RunId]) -> None:
        async with hf.open(self._site.address, app, work=False) as runtime:
            for run in bad:
                await runtime.client.retry(run, by="ann")

    async def _check_mended(self, bad: Mapping[RunId, str], deaths: int) -> None:
        async with hf.open(self._site.address, app, work=False) as runtime:
            stand = await _standing(runtime)
            broken = [
                f"{bad[run]} is {stand[run]} after its retry" for run in bad if stand[run][0] is not Status.COMPLETED
            ]
            broken += [f"verify found {finding.what}" async for finding in runtime.client.verify()]
        if deaths:
            broken.append(f"{deaths} workers died although the cause was gone")
        if broken:
            raise Broken("\n".join(broken))


async def _standing(runtime: hf.Runtime) -> dict[RunId, tuple[Status, str]]:
    return {RunId(run.id): (run.status, run.reason) for run in await runtime.runs(limit=_PAGE)}


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let `wanted` healthy runs live beside poison, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    with Server() as server, new_killer() as killer:
        places: Sequence[tuple[str, Sites]] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            done = 0
            while done < wanted // 2 and not shared.hopeless:
                with ExitStack() as stack:
                    site = stack.enter_context(sites())
                    try:
                        survived = Loop(killer, site).survive(HEALTHY, EACH)
                    except (Broken, hf.HoldfastError) as error:
                        shared.done(HEALTHY, f"on {kind}: {error!r}", loops=1, broken=1)
                    else:
                        counts = {"healthy": survived.healthy, "quarantined_and_mended": survived.poison}
                        shared.done(HEALTHY, None, loops=1, deaths=survived.deaths, **counts, **{f"on_{kind}": HEALTHY})
                done += HEALTHY
    shared.result.seconds = time.monotonic() - started
    return shared.result
