"""Watchers that connect again at random while the server and the workers are killed: each sees every event once."""

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx2
from playwright.async_api import Page

import holdfast as hf
from tests.chaos.browsing import Browser, browsing
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.hosts import Hosts, hosted
from tests.chaos.judge import Broken
from tests.chaos.sites import Sites, file_site, schema_site
from tests.chaos.watched import TOKEN
from tests.chaos.watcher import LineReader, Watcher
from tests.rigs.server import Server

CLIENTS: Final = 50
RUNS: Final = 10
STEPS: Final = 20
WORDS: Final = 12
_KILL_SECONDS: Final = (0.2, 0.8)
_REST: Final = 8
"""How often watchers come again before the next of few deaths."""
_ROUND_SECONDS: Final = 180.0
_RECONNECTS_A_KILL: Final = 10
"""So many at most: a campaign goes on until it had as many deaths as that asks for."""
TWINS: Final = {
    "live_only": "came after entry|is number|other words",
    "words_without_id": "is number",
    "address_first": "came after entry|is number",
}
"""Servers that lose or repeat, and what the browser that watches them is told by its judge."""
_TWIN_ROUNDS: Final = 10
"""So many at most: which moment a server dies in is chance."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a round is."""

    clients: int = CLIENTS
    runs: int = RUNS
    steps: int = STEPS
    stays: Sequence[int] = (8, 8, 60)
    """How many messages a watcher reads at most before it leaves, one of these by chance."""
    kills: int | None = None
    """How many processes die, the server first; none said, they are killed by chance until the round is over."""


class Audience:
    """Whoever watches what some hosts serve: readers of lines, and a page of a browser if there is one."""

    def __init__(self, hosts: Hosts, http: httpx2.AsyncClient, page: Page | None, chance: random.Random) -> None:
        self._hosts, self._http, self._page, self._chance = hosts, http, page, chance

    async def play(self, size: Size) -> Sequence[Watcher]:
        """Let clients watch runs to their end while processes are killed; return the watchers.

        Raises:
            Broken: one saw what it may not, or two saw different journals.
        """
        watchers = await self._seat(size)
        over = asyncio.Event()
        killing = asyncio.create_task(self._kill(size.kills, watchers, over))
        watching = [asyncio.create_task(watcher.watch()) for watcher in watchers]
        try:
            async with asyncio.timeout(_ROUND_SECONDS):
                await asyncio.gather(*watching)
        except TimeoutError:
            raise Broken(f"watchers still wait: {[(w.run, w.last) for w in watchers if not w.over]}") from None
        finally:
            for watcher in watching:
                watcher.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            over.set()
            await killing
        journals = {(watcher.run, watcher.seq, watcher.digest.hexdigest()) for watcher in watchers}
        if len(journals) != size.runs:
            raise Broken(f"{size.runs} runs were seen as {len(journals)} journals")
        return watchers

    async def _seat(self, size: Size) -> Sequence[Watcher]:
        """Start the runs, and give each its watchers; the browser is the first of them."""
        input = {"steps": size.steps, "words": WORDS}
        started = [
            (await self._http.post("/v1/runs", json={"name": "teller", "input": input})).json()["id"]
            for _ in range(size.runs)
        ]
        watchers: list[Watcher] = []
        for place in range(size.clients):
            run, chance = started[place % size.runs], random.Random(self._chance.random())
            if place == 0 and self._page is not None:
                watchers.append(Browser(run=run, chance=chance, stays=size.stays, page=self._page))
            else:
                watchers.append(LineReader(run=run, chance=chance, stays=size.stays, http=self._http))
        return watchers

    async def _kill(self, kills: int | None, watchers: Sequence[Watcher], over: asyncio.Event) -> None:
        """Kill processes by chance now and then; or few, once the watchers have come again so often."""
        done = 0
        while not over.is_set() and done != kills:
            if kills is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), self._chance.uniform(*_KILL_SECONDS))
            elif sum(watcher.reconnects for watcher in watchers) < _REST * (done + 1):
                with suppress(TimeoutError):
                    await asyncio.wait_for(over.wait(), 0.01)  # clients tell nobody
                continue
            if not over.is_set():
                place = self._chance.randrange(len(self._hosts)) if kills is None else done % 2
                await asyncio.to_thread(self._hosts.kill, place)
                done += 1


@asynccontextmanager
async def audience(hosts: Hosts, chance: random.Random, *, browser: bool) -> AsyncIterator[Audience]:
    """Give those who watch what these host."""
    http = httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{hosts.port}", headers={"Authorization": f"Bearer {TOKEN}"}, verify=False,
        timeout=_ROUND_SECONDS, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
    )  # fmt: skip
    async with http:
        if browser:
            async with browsing(hosts.port) as page:
                yield Audience(hosts, http, page, chance)
        else:
            yield Audience(hosts, http, None, chance)


async def play(hosts: Hosts, chance: random.Random, size: Size, *, browser: bool = True) -> Sequence[Watcher]:
    """Play one size."""
    async with audience(hosts, chance, browser=browser) as everyone:
        return await everyone.play(size)


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let 50 clients, one of them a browser, connect again `wanted` times, half of them on each store."""
    shared, started, chance = Shared(tick), time.monotonic(), random.Random(seed)
    with Server() as server:
        for name, site in ("sqlite", file_site), ("postgresql", lambda: schema_site(server)):
            _watch_on(shared, name, site, wanted // 2, chance)
            for twin in TWINS:
                _be_caught(shared, site, twin, chance)
    shared.result.seconds = time.monotonic() - started
    return shared.result


def _watch_on(shared: Shared, name: str, site: Sites, wanted: int, chance: random.Random) -> None:
    counted: Counter[str] = Counter()

    def is_short() -> bool:
        return counted["reconnects"] < wanted or counted["kills"] * _RECONNECTS_A_KILL < wanted

    async def go_on(hosts: Hosts) -> None:
        async with audience(hosts, chance, browser=True) as everyone:
            while is_short():
                kills, server_kills = hosts.kills, hosts.server_kills
                counts = _counts(await everyone.play(Size()))
                counts |= {"kills": hosts.kills - kills, "kills_of_the_server": hosts.server_kills - server_kills}
                counted.update(counts)
                shared.done(counts["reconnects"], None, **counts, **{f"on_{name}": counts["reconnects"]})

    while is_short() and not shared.hopeless:
        try:
            with site() as place, hosted(place.address) as hosts:
                asyncio.run(go_on(hosts))
        except (Broken, hf.HoldfastError, httpx2.HTTPError) as error:
            shared.done(0, f"on {name}: {error!r}", broken=1)


def _counts(watchers: Sequence[Watcher]) -> dict[str, int]:
    browsers = [watcher for watcher in watchers if isinstance(watcher, Browser)]
    return {
        "reconnects": sum(watcher.reconnects for watcher in watchers),
        "cut": sum(watcher.cut for watcher in watchers),
        "resets": sum(watcher.resets for watcher in watchers),
        "runs": len({watcher.run for watcher in watchers}),
        "entries": sum(watcher.seq for watcher in watchers),
        "words": sum(watcher.words for watcher in watchers),
        "browser_left": sum(browser.left for browser in browsers),
        "browser_cut": sum(browser.cut for browser in browsers),
        "browser_by_itself": sum(browser.by_itself for browser in browsers),
        "browser_entries": sum(browser.seq for browser in browsers),
        "browser_words": sum(browser.words for browser in browsers),
    }


def _be_caught(shared: Shared, site: Sites, twin: str, chance: random.Random) -> None:
    """Let the browser alone watch a twin, which must not go by."""
    said = ""
    with site() as place, hosted(place.address, workers=1, twin=twin) as hosts:
        for _ in range(_TWIN_ROUNDS):
            try:
                asyncio.run(play(hosts, chance, Size(clients=1, runs=1, steps=2 * STEPS)))
            except Broken as error:
                said = str(error)
                break
    caught = re.search(TWINS[twin], said) is not None
    shared.done(0, None if caught else f"{twin}: not caught ({said})", twins_played=1, twins_caught=int(caught))
