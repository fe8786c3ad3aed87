"""Posts that race parks and each other across processes: none is lost, and nobody is shown a deadlock."""

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId
from holdfast.runtime import open_store
from holdfast.store.value import Posted
from holdfast.testing.contract.story import a_post
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import ROOT
from tests.chaos.judge import Broken
from tests.chaos.sites import Site, Sites, file_site, schema_site
from tests.rigs.server import Server

_END_SECONDS: Final = 30.0
_SPINS: Final = 400
_CROSSING: Final = 20
"""For one round of posts that cross, so many that race a park."""
_BATCH: Final = 1000


class Clerk:
    """A process of `tests.chaos.clerk`, and what it says."""

    def __init__(self, site: Site, task: str, times: int, *, seed: int = 0, name: str = "a", twin: str = "") -> None:
        given = {"store": site.address, "task": task, "times": times, "seed": seed, "name": name, "twin": twin}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.clerk", json.dumps(given)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def hear(self, *expected: str) -> Any:
        """Return the next thing that it says.

        Raises:
            Broken: it is none of what was expected.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        said = json.loads(line) if line else {"what": f"ended with {self._process.wait(_END_SECONDS)}"}
        if said["what"] not in expected:
            raise Broken(f"a clerk {said['what']}: {said}")
        return said

    def tell(self, value: Any) -> None:
        """Answer it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def _clerks(*clerks: Clerk) -> Iterator[None]:
    try:
        yield
    finally:
        for clerk in clerks:
            clerk.close()


async def race(site: Site, posts: int, seed: int, *, twin: str = "") -> Counter[str]:
    """Post to a run of another process whenever that is about to park; return how often which came first.

    Raises:
        Broken: a post was lost, or taken twice.
    """
    clerk = Clerk(site, "park", posts, seed=seed, twin=twin)
    with _clerks(clerk):
        said, taken = await _race(site, clerk, posts, random.Random(seed))
    if taken != [f"k{number}" for number in range(1, posts + 1)] or said["left"]:
        raise Broken(f"{len(taken)} of {posts} posts were taken, {said['left']} are left")
    return Counter({"posted_first": said["moved"], "parked_first": said["parked"]})


async def _race(site: Site, clerk: Clerk, posts: int, chance: random.Random) -> tuple[Any, list[str]]:
    """Return what a clerk says in the end, and which posts it took."""
    store = await open_store(site.address)
    try:
        run, taken, sent = RunId((await asyncio.to_thread(clerk.hear, "run"))["run"]), list[str](), 0
        while (said := await asyncio.to_thread(clerk.hear, "took", "done"))["what"] != "done":
            taken += said["keys"]
            if sent == len(taken) and sent < posts:
                for _ in range(chance.randrange(_SPINS)):
                    await asyncio.sleep(0)
                sent += 1
                if await store.post(a_post(run, f"k{sent}")) != Posted("accepted", sent):
                    raise Broken(f"post {sent} was not accepted")
    finally:
        await store.close()
    return said, taken


async def cross(site: Site, rounds: int, seed: int, *, twin: str = "") -> int:
    """Let two processes commit batches that post to each other's runs; return how many posts arrived.

    Raises:
        Broken: a verb raised or refused, or a post was lost.
    """
    clerks = [Clerk(site, "cross", rounds, seed=seed, name=name, twin=twin) for name in ("a", "b")]
    with _clerks(*clerks):
        everybody = [run for clerk in clerks for run in (await asyncio.to_thread(clerk.hear, "runs"))["runs"]]
        for clerk in clerks:
            clerk.tell(everybody)
        sent = [(await asyncio.to_thread(clerk.hear, "sent"))["sent"] for clerk in clerks]
    return await _arrived(site, {run: sorted(key for each in sent for key in each[run]) for run in everybody})


async def _arrived(site: Site, sent: Mapping[RunId, Sequence[str]]) -> int:
    """Return how many posts are in the inboxes, each where it was sent."""
    store, arrived = await open_store(site.address), 0
    try:
        for run, keys in sent.items():
            inbox = await store.inbox(run)
            whole = [post.seq for post in inbox] == list(range(1, len(keys) + 1))
            if not whole or sorted(post.key for post in inbox) != keys:
                raise Broken(f"{len(keys)} posts were accepted by run {run}, and {len(inbox)} are there")
            arrived += len(inbox)
    except Damaged as damaged:
        raise Broken(f"not all that were accepted are there: {damaged}") from damaged
    finally:
        await store.close()
    return arrived


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Let `wanted` posts race a park, half of them on each database, and others each other."""
    shared, started = Shared(tick), time.monotonic()
    with Server() as server:
        places: tuple[tuple[str, Sites], ...] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            for first in range(0, wanted // 2, _BATCH):
                count = min(_BATCH, wanted // 2 - first)
                with sites() as site:
                    try:
                        counts = asyncio.run(race(site, count, seed + first))
                        crossed = asyncio.run(cross(site, max(1, count // _CROSSING), seed + first))
                    except Broken as broken:
                        shared.done(count, f"on {kind}, from {first}: {broken}", broken=1)
                    else:
                        shared.done(count, None, races=count, crossing=crossed, **counts, **{f"on_{kind}": count})
    shared.result.seconds = time.monotonic() - started
    return shared.result
