"""A process that parks on a run's inbox, or posts to everybody's, by the store's own verbs; run it as a program."""

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from typing import Any, Final

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.status import Status
from holdfast.runtime import open_store
from holdfast.store.postgres import rich, writer
from holdfast.store.protocol import Store
from holdfast.store.value import Committed, InboxMoved, Posted, RowChange
from holdfast.testing.contract.story import SERVES, Pen, a_lease, a_post, a_worker
from tests.chaos import twins

_WAKE_SECONDS: Final = 5.0
"""How long a post may take to wake the run that it was sent to."""
_LOOK_SECONDS: Final = 0.02
_SPINS: Final = 400
RUNS: Final = 6
POSTS_EACH: Final = 3


def say(what: str, **facts: Any) -> None:
    """Tell whoever plays the trial."""
    print(json.dumps({"what": what, **facts}), flush=True)


class Parker:
    """Takes every post from a run's inbox and parks again, while somebody else posts the next."""

    def __init__(self, store: Store, worker: WorkerId, pen: Pen, chance: random.Random, *, blind: bool) -> None:
        self._store, self._worker, self._pen, self._chance, self._blind = store, worker, pen, chance, blind
        self._run = pen.lease.row.run
        self._seen = 0
        self.moved = self.parked = 0
        """How often a post came before the park, and how often after it."""

    async def take(self, posts: int) -> None:
        """Take so many posts."""
        taken = 0
        while taken < posts:
            waiting = await self._store.inbox(self._run)
            taken += len(waiting)
            self._seen = max([self._seen, *(post.seq for post in waiting)])
            say("took", keys=[post.key for post in waiting])
            # Whoever heard that posts the next one now: sometimes before the park, sometimes after.
            for _ in range(self._chance.randrange(_SPINS)):
                await asyncio.sleep(0)
            if await self._park([post.seq for post in waiting]) and taken < posts:
                await self._wake()

    async def _park(self, consumed: Sequence[int]) -> bool:
        pen = self._pen
        before = pen.seq, pen.head
        seen = None if self._blind else self._seen
        change = RowChange(status=Status.WAITING, reason="signal", seen_seq=seen)
        outcome = await self._store.commit(pen.lease, pen.next("parked", consumed=consumed, change=change, inbox=seen))
        if isinstance(outcome, Committed):
            self.parked += 1
            return True
        assert isinstance(outcome, InboxMoved), outcome
        self.moved += 1
        pen.seq, pen.head = before
        # What was read is taken, although the run goes on.
        if consumed:
            assert isinstance(await self._store.commit(pen.lease, pen.next("took", consumed=consumed)), Committed)
        return False

    async def _wake(self) -> None:
        bell = self._store.watch(None)
        give_up = asyncio.get_running_loop().time() + _WAKE_SECONDS
        try:
            while not (leases := await self._store.claim(self._worker, SERVES, limit=1, runs=[self._run])):
                if asyncio.get_running_loop().time() > give_up:
                    say("lost", inbox=[post.key for post in await self._store.inbox(self._run)])
                    sys.exit(0)
                await bell.wait(_LOOK_SECONDS)
        finally:
            bell.close()
        self._pen.lease = leases[0]


async def park(store: Store, posts: int, seed: int, twin: str) -> None:
    """Make a run and take so many posts from its inbox."""
    worker = await a_worker(store)
    pen = Pen(store, await a_lease(store, worker))
    say("run", run=pen.lease.row.run)
    parker = Parker(store, worker, pen, random.Random(seed), blind=twin == "blind")
    await parker.take(posts)
    say("done", moved=parker.moved, parked=parker.parked, left=len(await store.inbox(pen.lease.row.run)))


async def cross(store: Store, rounds: int, seed: int, name: str) -> None:
    """Make runs, hear of somebody else's, and let all of ours post to all of both at one time, again and again."""
    chance, worker = random.Random(f"{seed}/{name}"), await a_worker(store)
    pens = [Pen(store, await a_lease(store, worker)) for _ in range(RUNS)]
    say("runs", runs=[pen.lease.row.run for pen in pens])
    everybody: list[RunId] = json.loads(await asyncio.to_thread(sys.stdin.readline))
    sent: dict[RunId, list[str]] = {run: [] for run in everybody}
    for number in range(rounds):
        commits = []
        for place, pen in enumerate(pens):
            key, targets = f"{name}-{number}-{place}", chance.sample(everybody, POSTS_EACH)
            for run in targets:
                sent[run].append(key)
            posts = [a_post(run, key) for run in targets]
            commits.append(store.commit(pen.lease, pen.next("sent", posts=posts)))
        key, run = f"{name}-{number}-plain", chance.choice(everybody)
        sent[run].append(key)
        posted, *outcomes = await asyncio.gather(store.post(a_post(run, key)), *commits)
        fine = isinstance(posted, Posted) and posted.outcome == "accepted"
        if not fine or any(not isinstance(outcome, Committed) for outcome in outcomes):
            say("refused", outcomes=[repr(outcome) for outcome in (posted, *outcomes)])
            return
    say("sent", sent=sent)


def _disorder(name: str) -> None:
    """Lock the runs of a commit in another order than the other clerk does, and try nothing again."""
    if name == "b":
        vars(rich)["_LOCK_ALL"] = rich._LOCK_ALL.replace("ORDER BY number", "ORDER BY number DESC")
    vars(writer)["is_worth_another_try"] = lambda connection, error: False


async def main() -> None:
    """Do as the JSON argument says; whatever a verb raises is told, since no caller may be shown a deadlock."""
    given = json.loads(sys.argv[1])
    match given["twin"]:
        case "blind":
            pass  # what is broken is how it parks
        case "disorder":
            _disorder(given["name"])
        case twin:
            twins.apply(twin, given["store"])
    store = await open_store(given["store"])
    try:
        if given["task"] == "park":
            await park(store, given["times"], given["seed"], given["twin"])
        else:
            await cross(store, given["times"], given["seed"], given["name"])
    except HoldfastError as error:
        say("raised", error=repr(error))
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
