"""Conversations with a harness whose process dies at every point, then by chance again, on both databases."""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos.campaign import Result, Shared, Tick, in_two
from tests.chaos.exchanges import SOUND, Held, check, converse
from tests.chaos.homes import home
from tests.chaos.judge import Broken
from tests.chaos.kills import SEAM
from tests.rigs.server import Server, in_schema

_TIMEOUT_SECONDS: Final = 120.0


def new_killer() -> Killer:
    """Return a server for these trials."""
    preload = ("tests.chaos.exchanges", "structlog", "holdfast.testing.killer", "psycopg")
    return Killer(preload=preload, seam=SEAM, timeout_seconds=_TIMEOUT_SECONDS)


class Hall:
    """A place for one conversation after another: a folder with the provider, and a store there or at an address."""

    def __init__(self, killer: Killer, folder: Path, *, address: str | None = None) -> None:
        self._killer, self._folder, self._address = killer, folder, address

    def unbroken(self, kind: str) -> tuple[int, Held]:
        """Return how many points a process comes to that does not die, and the conversation that it holds."""
        self._clear()
        outcome = self._killer.count(converse, self._store, str(self._provider), kind)
        check(outcome.value, outcome.value, self._provider, "doubting")
        return outcome.points, outcome.value

    def trial(self, kind: str, points: Sequence[int], wanted: Held) -> int:
        """Let a process die at these points, life after life, judge the conversation, and return the deaths.

        Raises:
            Broken: a promise was broken.
            TrialFailed: a life ended otherwise than by finishing or by the death it was given.
        """
        self._clear()
        deaths = 0
        for nth in points:
            outcome = self._killer.run(converse, self._store, str(self._provider), kind, die=AtPoint(nth))
            if not outcome.killed:
                break
            deaths += 1
        else:
            outcome = self._killer.run(converse, self._store, str(self._provider), kind)
        check(outcome.result(), wanted, self._provider, kind)
        return deaths

    @property
    def _store(self) -> str:
        return self._address or f"sqlite:///{self._folder / 'store.db'}"

    @property
    def _provider(self) -> Path:
        return self._folder / "provider"

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        if self._address is not None:
            home(self._address).clear()


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let processes die until `wanted` deaths were died, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    _kill(shared, f"{seed}/sqlite", wanted - wanted // 2, Hall)
    with Server() as server:
        _kill(shared, f"{seed}/postgresql", wanted // 2, partial(_on, server))
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _on(server: Server, killer: Killer, folder: Path) -> Hall:
    return Hall(killer, folder, address=in_schema(server.database(f"hall_{folder.name}"), "hf"))


def _kill(shared: Shared, seed: str, wanted: int, hall_for: Callable[[Killer, Path], Hall]) -> None:
    of_store = f"on_{seed.rpartition('/')[2]}"
    first = shared.draw()

    def work(killer: Killer, folder: Path) -> None:
        hall = hall_for(killer, folder)
        known = {kind: hall.unbroken(kind) for kind in SOUND}
        while shared.count(of_store) < wanted and not shared.hopeless:
            kind, points = _nth(shared.draw() - first, {kind: points for kind, (points, _) in known.items()}, seed)
            try:
                deaths = hall.trial(kind, points, known[kind][1])
            except (Broken, TrialFailed) as error:
                told = ",".join(map(str, points))
                shared.done(0, f"{of_store}, {kind} at {told}: {error}", trials=1, broken=1)
            else:
                shared.done(deaths, trials=1, kills=deaths, during_recovery=max(0, deaths - 1))
                shared.add({of_store: deaths, kind: deaths})

    in_two(work, new_killer)


def _nth(number: int, points: dict[str, int], seed: str) -> tuple[str, tuple[int, ...]]:
    """Return the trial of a number: each point of each kind in its turn, then several deaths by chance."""
    for kind in SOUND:
        if number <= points[kind]:
            return kind, (number,)
        number -= points[kind]
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(SOUND)
    # Fewer than the claims without progress after which a run would rightly be quarantined.
    later = [chance.randint(1, max(4, points[kind] // 3)) for _ in range(chance.choice((1, 1, 2)))]
    return kind, (chance.randint(1, points[kind]), *later)
