"""A PostgreSQL that crashes under load and comes back: what it had acknowledged stands, and every caller hears how."""

import asyncio
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import psycopg

import holdfast as hf
from tests.chaos.caller import Caller, check_store, judge
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import Berth, Crew, Silent
from tests.chaos.judge import Broken
from tests.chaos.sites import schema_site
from tests.rigs.server import Server
from tests.rigs.waiting import wait_until

LEASE_SECONDS: Final = 3.0
WORKERS: Final = 3
TALES: Final = 24
_AT_ONCE: Final = 8
"""So that some are started while the server is away."""
_LINES_EACH: Final = 7
"""About how much the ledger tells of one tale."""
_EFFECTS: Final = ("pay", "ask", "pay")
# Commits are acknowledged before they are on disk, and written out as late as the server knows how to.
WEAK: Final = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "1GB"}


class Stage:
    """Workers under load, and the server that they lose."""

    def __init__(self, server: Server, crew: Crew) -> None:
        self._server, self._crew = server, crew
        self._told = 0
        self.asked_again = 0
        """How often callers were told that the store is away, and asked again."""

    def play(self, chance: random.Random) -> None:
        """Crash the server somewhere in the middle of a load of tales, and judge them.

        Raises:
            Broken: a promise was broken.
        """
        caller = Caller(self._crew, at_once=_AT_ONCE)
        numbers = range(self._told, self._told + TALES)
        self._told += TALES
        until = len(self._crew.ledger()) + chance.randint(1, TALES * _LINES_EACH)
        with ThreadPoolExecutor(1) as calling:
            told = calling.submit(asyncio.run, caller.tell_all(numbers, _EFFECTS))
            wait_until(lambda: told.done() or len(self._crew.ledger()) >= until, seconds=60, what="the load")
            self._server.restart("immediate")
            # Some tales had ended before, and stand as they were told.
            judge(self._crew, asyncio.run(caller.read_again(told.result())))
        self.asked_again += caller.asked_again


@contextmanager
def staged(*, weak: bool = False) -> Iterator[Stage]:
    """Give a server with workers on it; a weak one acknowledges what it has not written."""
    with Server(settings=WEAK if weak else None) as server, schema_site(server) as site:
        address = f"{site.address}&durability=weak" if weak else site.address
        with Crew(Berth(address, site.ledger, LEASE_SECONDS)) as crew:
            crew.launch(*(f"hand{number}" for number in range(WORKERS)))
            with psycopg.connect(server.address(), autocommit=True) as connection:
                connection.execute("CHECKPOINT")  # even a weak server has the empty store on disk
            yield Stage(server, crew)
        if not weak:
            asyncio.run(check_store(address))


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Crash a server `wanted` times."""
    shared, started, chance = Shared(tick), time.monotonic(), random.Random(seed)
    restarts = iter(range(wanted))
    while not shared.hopeless and _crash(shared, restarts, chance):
        pass
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _crash(shared: Shared, restarts: Iterator[int], chance: random.Random) -> bool:
    """Crash one server again and again; True when there is more to do, on another one."""
    try:
        with staged() as stage:
            for _ in restarts:
                before = stage.asked_again
                stage.play(chance)
                shared.done(1, None, restarts=1, runs=TALES, asked_again=stage.asked_again - before)
    except (Broken, Silent, TimeoutError, hf.HoldfastError) as error:
        shared.done(1, f"restart {shared.count('restarts')}: {error!r}", broken=1)
        return True
    return False
