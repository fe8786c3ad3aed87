"""Posts that race parks, ends, cancels and expiries of runs in another process: what every sender is told is true."""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import holdfast as hf
from holdfast.client.run import Run
from holdfast.core.cursor import START
from holdfast.core.ids import RunId
from holdfast.runtime import Runtime
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import ROOT
from tests.chaos.judge import Broken
from tests.chaos.racer import CODES, MAIL, asks, broken_as, hurries, rests, strolls, works
from tests.chaos.sites import Site, Sites, file_site, schema_site
from tests.rigs.server import Server

PATIENCE_SECONDS: Final = 60.0
_BATCH: Final = 500
_AT_ONCE: Final = 24
_FIRST_SECONDS: Final = 0.02
_EXPIRES_SECONDS: Final = 0.3
_LOOK_SECONDS: Final = 0.02
_STEP: Final = 1.1


@dataclass(frozen=True, slots=True)
class Seen:
    """One round: what its senders were told, how the run ended, what is in its journal and left in its inbox."""

    told: Sequence[bool]
    status: str
    value: Any
    kinds: Counter[str]
    left: Sequence[str]
    rested: bool
    """Whether the run rested, or ended, before the post came."""


class Pace:
    """How long to wait before posting, so that either comes first about as often as the other."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._seconds = chance, _FIRST_SECONDS

    def draw(self) -> float:
        """Return the next wait."""
        return self._chance.uniform(0, 2 * self._seconds)

    def learn(self, *, rested: bool) -> None:
        """Take in which of both came first."""
        self._seconds = min(2.0, max(0.0005, self._seconds * (1 / _STEP if rested else _STEP)))


class Racer:
    """Starts runs, posts to them at the moment that matters, and looks what came of it."""

    def __init__(self, runtime: Runtime, other: Runtime, chance: random.Random) -> None:
        self._runtime, self._other, self._chance = runtime, other, chance
        self._paces = {kind: Pace(chance) for kind in KINDS}

    async def race(self, kind: str, number: int) -> Seen:
        """Play one round.

        Raises:
            TimeoutError: the run has not ended.
        """
        pace = self._paces[kind]
        run, told = await getattr(self, f"_{kind}")(number, pace)
        ending = await self._runtime.client.wait(run.id, timeout_seconds=PATIENCE_SECONDS)
        kinds, rested = await self._journal(run.id, kind)
        if kind in ("cancel_finish", "cancel_cancel", "signal_finish"):
            rested = not any(told)
        if kind == "answer_expiry":
            # It is answered so long before the end of its time, and not so long after its beginning.
            rested = not told[0]
            pace.learn(rested=not rested)
        else:
            pace.learn(rested=rested)
        left = [post.kind for post in await self._runtime._store.inbox(RunId(run.id))]
        value = json.loads(ending.value) if str(ending.status) == "completed" else None
        return Seen(told, str(ending.status), value, kinds, left, rested)

    async def _journal(self, run: str, kind: str) -> tuple[Counter[str], bool]:
        """Return how often which entry is there, and whether the run rested before the post was taken."""
        page = await self._runtime._store.read(RunId(run), START, chunks=False)
        kinds = [entry.kind for entry in page.entries]
        taken = {"signal_park": "SignalReceived", "cancel_park": "CancelReceived"}.get(kind, "RunFinished")
        before = kinds[: kinds.index(taken)] if taken in kinds else kinds
        return Counter(kinds), "RunParked" in before

    # The kinds

    async def _signal_park(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(rests)
        await asyncio.sleep(pace.draw())
        told = [await run.signal(MAIL, number, key="a")]
        if number % 2:
            told.append(await run.signal(MAIL, number, key="a"))
        return run, told

    async def _signal_finish(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(hurries, self._chance.choice((0.0, 0.01)))
        await asyncio.sleep(pace.draw())
        return run, [await run.signal(MAIL, number, key="a")]

    async def _cancel_park(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(rests)
        await asyncio.sleep(pace.draw())
        return run, [await run.cancel("enough")]

    async def _cancel_finish(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(works)
        await asyncio.sleep(pace.draw())
        return run, [await run.cancel("enough")]

    async def _cancel_cancel(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(works)
        same = await self._other.get(run.id)

        async def cancel(which: Run[Any]) -> bool:
            await asyncio.sleep(pace.draw())
            return await which.cancel("enough")

        return run, list(await asyncio.gather(cancel(run), cancel(same)))

    async def _answer_expiry(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(asks, _EXPIRES_SECONDS)
        while not (questions := await run.questions()):
            if (await run.info()).status.terminal:
                return run, [False]  # it had expired before anybody could look
            await asyncio.sleep(_LOOK_SECONDS)
        expires_at = questions[0].expires_at
        assert expires_at is not None
        left = expires_at.timestamp() - self._runtime._store.now() / 1e6
        await asyncio.sleep(max(0.0, left - pace.draw()))
        try:
            await self._runtime.answer(questions[0], True, by="ann")
        except (hf.Conflict, hf.NotFound):
            return run, [False]
        return run, [True]

    async def _resume_pause(self, number: int, pace: Pace) -> tuple[Run[Any], list[bool]]:
        run: Run[Any] = await self._runtime.start(strolls)
        same = await self._other.get(run.id)
        await run.signal(MAIL, number, key="a")
        told = [await run.pause()]
        await asyncio.sleep(pace.draw())
        return run, [*told, await same.resume()]


def faults(kind: str, number: int, seen: Seen) -> Iterator[str]:
    """Say what is wrong with one round."""
    if seen.kinds["RunFinished"] != 1:
        yield f"it has {seen.kinds['RunFinished']} endings"
    wanted = _EXPECTED[kind](number, seen)
    for what, value in wanted.items():
        has = seen.kinds[what] if what in seen.kinds or what[0].isupper() else getattr(seen, what)
        if has != value:
            yield f"{what} is {has}, not {value}, and its senders were told {list(seen.told)}"


def _of_signal_park(number: int, seen: Seen) -> Mapping[str, Any]:
    return {
        "status": "completed", "value": number, "SignalReceived": 1, "left": [], "told": [True] * len(seen.told),
    }  # fmt: skip


def _of_signal_finish(number: int, seen: Seen) -> Mapping[str, Any]:
    taken = seen.value is not None
    rest: Mapping[str, Any] = {"SignalReceived": int(taken), "left": ["signal"] if seen.told[0] and not taken else []}
    return {"status": "completed", **rest, **({"value": number, "told": [True]} if taken else {})}


def _of_cancel(number: int, seen: Seen) -> Mapping[str, Any]:
    counts = any(seen.told)
    return {"status": "cancelled" if counts else "completed", "CancelReceived": int(counts), "left": []}


def _of_cancel_park(number: int, seen: Seen) -> Mapping[str, Any]:
    return {**_of_cancel(number, seen), "told": [True]}


def _of_answer_expiry(number: int, seen: Seen) -> Mapping[str, Any]:
    counts = seen.told[0]
    return {"status": "completed", "value": [counts, not counts], "QuestionAnswered": 1}


def _of_resume_pause(number: int, seen: Seen) -> Mapping[str, Any]:
    return {"status": "completed", "value": number, "SignalReceived": 1}


_EXPECTED: Final[Mapping[str, Callable[[int, Seen], Mapping[str, Any]]]] = {
    "signal_park": _of_signal_park,
    "signal_finish": _of_signal_finish,
    "cancel_park": _of_cancel_park,
    "cancel_finish": _of_cancel,
    "cancel_cancel": _of_cancel,
    "answer_expiry": _of_answer_expiry,
    "resume_pause": _of_resume_pause,
}
KINDS: Final = tuple(_EXPECTED)


@contextmanager
def _worker(site: Site, twin: str) -> Iterator[None]:
    given = json.dumps({"store": site.address, "twin": twin})
    with site.ledger.with_suffix(".log").open("ab") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.racer", given], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=log, env={**os.environ, "XDG_RUNTIME_DIR": str(site.ledger.parent)},
        )  # fmt: skip
    try:
        assert worker.stdout is not None
        if worker.stdout.readline().strip() != "serving":
            raise Broken("the worker does not serve")
        yield
    finally:
        worker.kill()
        worker.communicate()


async def race(site: Site, kinds: Sequence[str], rounds: int, seed: int, *, twin: str = "") -> Counter[str]:
    """Play so many rounds of each kind; return how often which came first.

    Raises:
        Broken: a post was lost or taken twice, a run has no end or two, or a sender was told what is not so.
    """
    counts = Counter[str]()
    with _worker(site, twin), broken_as(twin):
        app = hf.App(*CODES, version="1")
        async with hf.open(site.address, app, work=False) as runtime, hf.open(site.address, app, work=False) as other:
            racer, room = Racer(runtime, other, random.Random(seed)), asyncio.Semaphore(_AT_ONCE)
            broken: list[str] = []

            async def one(kind: str, number: int) -> None:
                async with room:
                    if broken:
                        return
                    try:
                        seen = await racer.race(kind, number)
                    except TimeoutError as error:
                        broken.append(f"{kind} {number}: a post is lost: {error}")
                        return
                broken.extend(f"{kind} {number}: {fault}" for fault in faults(kind, number, seen))
                counts[kind] += 1
                counts[f"{kind}_{'late' if seen.rested else 'first'}"] += 1

            await asyncio.gather(*(one(kind, number) for number in range(rounds) for kind in kinds))
            broken += [f"verify found {finding.what}" async for finding in runtime.client.verify()]
    if broken:
        raise Broken("\n".join(broken[:20]))
    return counts


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Play `wanted` rounds of each kind on each database."""
    shared, started = Shared(tick), time.monotonic()
    done = 0
    with Server() as server:
        places: tuple[tuple[str, Sites], ...] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            for first in range(0, wanted, _BATCH):
                rounds = min(_BATCH, wanted - first)
                before, done = done // len(places), done + rounds
                with sites() as site:
                    try:
                        counts = asyncio.run(race(site, KINDS, rounds, seed + first))
                    except Broken as broken:
                        shared.done(0, f"on {kind}, from {first}: {broken}", broken=1)
                    else:
                        shared.add(counts)
                        shared.add({f"on_{kind}": rounds * len(KINDS)})
                shared.done(done // len(places) - before)
    shared.result.seconds = time.monotonic() - started
    return shared.result
