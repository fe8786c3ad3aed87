"""A fleet that loses a worker every second: every run ends, and nothing is done twice."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import holdfast as hf
from tests.chaos.caller import Caller, check_store, judge
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import Berth, Crew, Silent
from tests.chaos.judge import Broken
from tests.chaos.sites import Site, Sites, file_site, schema_site
from tests.chaos.verdict import Story
from tests.rigs.server import Server

LEASE_SECONDS: Final = 3.0
WORKERS: Final = 4
KILL_SECONDS: Final = 1.0
THINK_SECONDS: Final = 0.1
"""How long each run of a campaign takes, so that some are under way whoever dies; a small part of a worker's life, or
chance alone would kill five workers in a row before one run made any progress, which is what quarantine is for."""
_MOST_EFFECTS: Final = 5
_AT_ONCE: Final = 6


@dataclass(frozen=True, slots=True)
class Survived:
    """What a fleet came to: its tales, and how many workers it lost."""

    stories: Sequence[Story]
    kills: int

    @property
    def doubts(self) -> int:
        """How many effects were cut off by a death, so that nobody knows of them."""
        return sum("in doubt" in story.result for story in self.stories)


class Fleet:
    """Workers on one store that are killed one after the other, half of them between an effect and its record."""

    def __init__(self, site: Site, seed: int, *, twin: str = "", think_seconds: float = 0.0) -> None:
        self._site, self._chance = site, random.Random(seed)
        self._berth = Berth(site.address, site.ledger, LEASE_SECONDS, twin, think_seconds)
        self._kills = 0
        self._names = (f"hand{number}" for number in itertools.count(1))

    def survive(
        self, runs: int, *, first: int = 0, kill_seconds: float = KILL_SECONDS, most: int | None = None
    ) -> Survived:
        """See so many tales to their ends, from the `first` on, while workers die, and judge them.

        With `most` no more than that die, in this and all calls before.

        Raises:
            Broken: a promise was broken.
        """
        with Crew(self._berth) as crew, ThreadPoolExecutor(1) as calling:
            crew.launch(*itertools.islice(self._names, WORKERS))
            told = calling.submit(
                asyncio.run, Caller(crew, at_once=_AT_ONCE).tell_all(range(first, first + runs), ["pay"])
            )
            due = time.monotonic() + kill_seconds
            while not wait([told], timeout=max(0.0, due - time.monotonic())).done:
                due += kill_seconds
                if most is None or self._kills < most:
                    self._kill(crew)
            stories = told.result()
            judge(crew, stories)
        asyncio.run(check_store(self._site.address))
        return Survived(stories, self._kills)

    def _kill(self, crew: Crew) -> None:
        """Kill one of those that serve and start another, unless none has come so far yet."""
        serving = [hand for hand in crew.hands if hand.worker]
        if not serving:
            return
        victim = self._chance.choice(serving)
        self._kills += 1
        if self._kills % 2 == 1:
            victim.halt("effect-ends", self._chance.randint(1, _MOST_EFFECTS))
            # It may not have so much to do any more.
            with suppress(Silent):
                victim.wait_for("at effect-ends", seconds=KILL_SECONDS)
        crew.replace(victim, next(self._names))


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """See `wanted` runs to their ends, half of them on each database."""
    shared, started = Shared(tick), time.monotonic()
    with Server() as server:
        places: Sequence[tuple[str, Sites]] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            with sites() as site:
                try:
                    survived = Fleet(site, seed, think_seconds=THINK_SECONDS).survive(wanted // 2)
                except (Broken, Silent, hf.HoldfastError) as error:
                    shared.done(wanted // 2, f"on {kind}: {error!r}", broken=1)
                    continue
            counts = {"runs": len(survived.stories), "kills": survived.kills, "doubts": survived.doubts}
            shared.done(wanted // 2, None, **counts, **{f"on_{kind}": len(survived.stories)})
    shared.result.seconds = time.monotonic() - started
    return shared.result
