"""Two who send and two who answer race on one conversation and die: one turn at a time, nothing lost, nothing twice."""

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import holdfast as hf
from holdfast.core.ids import TENANT
from holdfast.runtime import Runtime
from holdfast.store.value import RunRow
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.crew import ROOT
from tests.chaos.judge import Broken
from tests.chaos.sites import Site, Sites, file_site, make_store, schema_site
from tests.rigs.server import Server

PATIENCE_SECONDS: Final = 60.0
_MESSAGES: Final = 4
"""How many each sender has for one conversation."""
_WAYS: Final = ("queue", "queue", "steer", "interrupt", "reject")
_AT_ONCE: Final = 6
_BATCH: Final = 100
_KILL_SECONDS: Final = (0.3, 1.2)

Word = tuple[str, str, str]
"""A conversation, what is said in it, and what to do if it is busy."""


class Talker:
    """A process that is started again whenever it is killed, and given what it has not answered."""

    def __init__(self, site: Site, role: str, twin: str) -> None:
        self.role = role
        self._given = json.dumps({"store": site.address, "role": role, "twin": twin, "folder": str(site.ledger.parent)})
        self._around = {**os.environ, "XDG_RUNTIME_DIR": str(site.ledger.parent)}
        self._log = site.ledger.with_suffix(".log")
        self._open: dict[tuple[str, str], tuple[Word, asyncio.Future[str | None]]] = {}
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None] | None = None
        self._serves = False
        """Given twice, a message that was rejected might be accepted after all."""

    async def start(self) -> None:
        """Start it, and give it what the one before left unanswered."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.talker", self._given, cwd=ROOT, env=self._around,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), PATIENCE_SECONDS)
        if line.strip() != b"serving":
            raise Broken(f"a {self.role} does not serve: {self._log.read_text()[-2000:]}")
        self._reading = asyncio.create_task(self._read(self._process.stdout))
        self._serves = True
        for word, _ in list(self._open.values()):
            self._give(word)

    async def kill(self) -> None:
        """Kill it; what it had said before is heard."""
        self._serves = False
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await self._reading

    async def say(self, word: Word) -> str | None:
        """Have something sent, by whoever lives then, and return the run that it went to; None: it was rejected."""
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._open[word[:2]] = (word, answer)
        self._give(word)
        return await asyncio.wait_for(answer, PATIENCE_SECONDS)

    def _give(self, word: Word) -> None:
        conversation, text, if_busy = word
        line = json.dumps({"conversation": conversation, "text": text, "if_busy": if_busy})
        if self._serves and self._process.stdin is not None:
            with suppress(ConnectionError):
                self._process.stdin.write(line.encode() + b"\n")

    async def _read(self, stdout: asyncio.StreamReader) -> None:
        while line := await stdout.readline():
            if line.endswith(b"\n"):
                said = json.loads(line)
                _, answer = self._open.pop((said["conversation"], said["text"]), (None, None))
                if answer is not None and not answer.done():
                    answer.set_result(said["run"])


@asynccontextmanager
async def _troupe(site: Site, twin: str) -> AsyncIterator[list[Talker]]:
    talkers = [Talker(site, role, twin) for role in ("sender", "sender", "worker", "worker")]
    started: list[Talker] = []
    try:
        for talker in talkers:
            await talker.start()
            started.append(talker)
        yield talkers
    finally:
        for talker in started:
            await talker.kill()


async def _killing(talkers: Sequence[Talker], chance: random.Random, counts: Counter[str]) -> None:
    """Kill one of them after the other."""
    while True:
        await asyncio.sleep(chance.uniform(*_KILL_SECONDS))
        victim = chance.choice(talkers)
        await victim.kill()
        counts[f"killed_{victim.role}s"] += 1
        await victim.start()


async def converse(site: Site, rounds: int, seed: int, *, twin: str = "", kill: bool = True) -> Counter[str]:
    """Hold so many conversations, while those who hold them die; return what happened how often.

    Raises:
        Broken: two turns were under way at once, or a message was lost or answered twice.
    """
    chance, counts = random.Random(seed), Counter[str]()
    await make_store(site.address)
    async with _troupe(site, twin) as talkers, hf.open(site.address, work=False) as runtime:
        killing = asyncio.create_task(_killing(talkers, chance, counts)) if kill else None
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(number: int) -> list[str]:
            async with room:
                return await _round(
                    runtime, talkers[:2], f"c{seed}-{number}", random.Random(f"{seed}/{number}"), counts
                )

        try:
            faults = [fault for found in await asyncio.gather(*map(one, range(rounds))) for fault in found]
            if killing is not None and killing.done():
                killing.result()
        except TimeoutError as error:
            raise Broken("a message was not answered in time") from error
        finally:
            if killing is not None:
                killing.cancel()
                with suppress(asyncio.CancelledError):
                    await killing
        faults += _ledger(site)
        faults += [f"verify found {finding.what}" async for finding in runtime.client.verify()]
    if faults:
        raise Broken("\n".join(faults[:20]))
    return counts


async def _round(
    runtime: Runtime, senders: Sequence[Talker], conversation: str, chance: random.Random, counts: Counter[str]
) -> list[str]:
    """Hold one conversation; return what is wrong with it."""
    words = [(conversation, f"m{n}", chance.choice(_WAYS)) for n in range(len(senders) * _MESSAGES)]

    async def say(number: int, word: Word) -> tuple[Word, str | None]:
        await asyncio.sleep(chance.uniform(0, 0.05))
        return word, await senders[number % len(senders)].say(word)

    said = await asyncio.gather(*(say(number, word) for number, word in enumerate(words)))
    accepted = [word for word, run in said if run is not None]
    counts.update(f"said_{way}" for _, _, way in accepted)
    rows = [await _ended(runtime, f"{conversation}/{text}") for _, text, _ in accepted]
    counts["turns"] += len(rows)
    counts["rounds"] += 1
    return [f"{conversation}: {fault}" for fault in await _faults(runtime, conversation, rows)]


async def _ended(runtime: Runtime, key: str) -> RunRow:
    """Return the run that a message is the message of, when it has ended; a word to a turn becomes one."""
    give_up = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        row = await runtime._store.find(TENANT, key)
        if row is not None:
            await runtime.client.wait(row.run, timeout_seconds=PATIENCE_SECONDS)
            ended = await runtime._store.get(row.run)
            assert ended is not None
            return ended
        if asyncio.get_running_loop().time() > give_up:
            raise TimeoutError(f"{key} has no turn")
        await asyncio.sleep(0.02)


async def _faults(runtime: Runtime, conversation: str, rows: Sequence[RunRow]) -> list[str]:
    """Return what is wrong with a conversation that is over: numbers, endings, and whether more was said than asked."""
    turns = await runtime._store.turns(TENANT, conversation)
    talk = await runtime._store.conversation(TENANT, conversation)
    assert talk is not None
    found = []
    if sorted(row.run for row in rows) != sorted(row.run for row in turns):
        found.append(f"{len(rows)} messages were accepted, and {len(turns)} are turns")
    if [row.turn for row in turns] != list(range(1, len(turns) + 1)):
        found.append(f"its turns are numbered {[row.turn for row in turns]}")
    found += [f"turn {row.turn} is {row.status}: {row.reason}" for row in turns if not row.status.terminal]
    found += [f"turn {row.turn} failed: {row.reason}" for row in turns if str(row.status) == "failed"]
    if talk.active is not None:
        found.append("it has an active turn still")
    return found


def _ledger(site: Site) -> list[str]:
    """Return what the ledger tells of: turns that were under way at once, and effects that happened twice."""
    if not site.ledger.exists():
        return []
    lines: list[dict[str, Any]] = [json.loads(line) for line in site.ledger.read_bytes().splitlines()]
    found = [f"{line['conversation']}: two turns at once, at {line['text']}" for line in lines if line["what"] != "did"]
    did = Counter((line["conversation"], line["text"]) for line in lines if line["what"] == "did")
    return found + [f"{key} was done {times} times" for key, times in did.items() if times > 1]


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Hold `wanted` conversations on each database."""
    shared, started, done = Shared(tick), time.monotonic(), 0
    with Server() as server:
        places: tuple[tuple[str, Sites], ...] = (("sqlite", file_site), ("postgresql", partial(schema_site, server)))
        for kind, sites in places:
            for first in range(0, wanted, _BATCH):
                rounds = min(_BATCH, wanted - first)
                before, done = done // len(places), done + rounds
                with sites() as site:
                    try:
                        counts = asyncio.run(converse(site, rounds, seed + first))
                    except (Broken, hf.HoldfastError) as broken:
                        shared.done(0, f"on {kind}, from {first}: {broken}", broken=1)
                    else:
                        shared.add(counts)
                        shared.add({f"on_{kind}": rounds})
                shared.done(done // len(places) - before)
    shared.result.seconds = time.monotonic() - started
    return shared.result
