"""One interleaving of several workers, outsiders, deaths and delays, all of which its seed decides."""

import asyncio
import gc
import secrets
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final, cast
from unittest import mock

import uuid_utils

from holdfast.client import local
from holdfast.core import limits
from holdfast.engine import drive
from holdfast.engine.app import App
from holdfast.engine.log import SILENT
from holdfast.engine.presence import Presence
from holdfast.engine.surroundings import Surroundings
from holdfast.engine.worker import Worker
from holdfast.runtime import Runtime
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from tests.simulation import acting
from tests.simulation.guest import Guest, Line
from tests.simulation.judge import Broken, Observed, judge
from tests.simulation.loop import Idle, Process, SeededLoop
from tests.simulation.plan import Pace, Plan, generate, written
from tests.simulation.wire import LossyBells, Wire, Witness

PACE: Final = Pace(blink=0.05, rest=1.5, soon=1.0)
LEASE_SECONDS: Final = 3.0
_STILL_SECONDS: Final = 6.0
"""The longest that a process is frozen; what it left under way is not tried again before."""
_VERIFY_SECONDS: Final = _STILL_SECONDS + LEASE_SECONDS
_PATIENCE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1
_MOST_VERBS: Final = 20
_MOST_TROUBLES: Final = 4
_SLACK_SECONDS: Final = 2.0
"""A second, and what looks and answers of the living may take."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a seed stands for: programs, workers, and what happens to them."""

    plans: Sequence[Plan]
    workers: int
    troubles: Sequence[tuple[int, str]]
    """After so many turns a worker is killed, or frozen."""
    fatal: Mapping[int, str]
    """The same right after the nth effect, before it is recorded."""
    faults: float

    @classmethod
    def of_seed(cls, seed: str) -> "Scene":
        chance = Random(f"{seed}/scene")
        runs = chance.choice((1, 1, 2, 2, 3))
        verbs = max(3, chance.choice((5, 10, _MOST_VERBS)) // runs)
        plans = [generate(f"{seed}/{run}", PACE, verbs=verbs, name=f"p{run}") for run in range(runs)]
        # Fewer troubles than the claims without progress after which a run would rightly be quarantined.
        troubles: list[tuple[int, str]] = []
        fatal: dict[int, str] = {}
        for _ in range(chance.randint(0, _MOST_TROUBLES)):
            what = chance.choice(("kill", "kill", "freeze"))
            if chance.random() < 0.4:
                fatal[chance.randint(1, verbs)] = what
            else:
                troubles.append((chance.randint(10, 120 * verbs), what))
        return cls(plans, chance.randint(1, 3), sorted(troubles), fatal, chance.choice((0.0, 0.0, 0.002)))


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a seed: its trace, and how much was tried."""

    digest: str
    choices: int
    kills: int
    freezes: int
    runs: int
    virtual_seconds: float
    heard: Sequence[str]


class _Inline:
    """Plain functions, called in their turn."""

    async def call(self, work: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return work()


class _QuietPresence(Presence):
    """A presence without a thread: this loop cannot stand still, and its time is not the machine's."""

    async def join(self, about: Any) -> None:
        await self._store.register(self.id, lock=None, about=about)


class Play:
    """One seed, from its first choice to its verdict."""

    def __init__(
        self, seed: str, *, store: type[MemoryStore] = MemoryStore, wire: type[Wire] = Wire, listening: bool = False
    ) -> None:
        self.seed, self.scene, self._made_of = seed, Scene.of_seed(seed), wire
        self._loop = loop = SeededLoop(seed)
        loop.listening = listening
        self._store = store(clock=loop.micros)
        self._store._bells = LossyBells(loop.chance)
        self._witness = Witness()
        self._harbour = loop.process("store")
        self._town = loop.process("guest")
        self._crew: list[Process] = []
        self._wires: list[Wire] = []
        self._owners: dict[str, Process] = {}
        self._ledger: list[Line] = []
        self._troubles = list(self.scene.troubles)
        self._effects = 0
        self._doomed: dict[Process, str] = {}
        self.kills = self.freezes = 0

    def run(self) -> Played:
        """Play to the end.

        Raises:
            Broken: a promise was broken; the words tell how to play it again.
        """
        loop = self._loop
        loop.on_turn = self._trouble
        # The collector runs when it likes, and would close what the dead have left.
        gc.disable()
        try:
            with _seeded(loop, self.seed):
                acting.enter(acting.World(self._note, self._happened, _VERIFY_SECONDS))
                try:
                    observed = loop.run_until_complete(loop.start(self._town, self._live()))
                    judge(self.scene.plans, observed)
                except (Broken, Idle, TimeoutError) as error:
                    raise Broken(self._story(error)) from error
                finally:
                    for wire in self._wires:
                        wire.cut()
                    loop.bury()
        finally:
            gc.enable()
        runs = len(self._store._rows)
        return Played(loop.digest, loop.choices, self.kills, self.freezes, runs, loop.time(), loop.heard)

    def _story(self, error: Exception) -> str:
        plans = "\n".join(written(plan) for plan in self.scene.plans)
        return f"seed {self.seed} after {self._loop.choices} turns and {self._loop.time():.1f} s: {error}\n{plans}"

    @property
    def heard(self) -> Sequence[str]:
        """What was traced so far."""
        return self._loop.heard

    # The world

    def _note(self, what: str, **facts: Any) -> None:
        process = self._loop.current()
        held = self._witness.owners.get(facts.get("run", ""))
        mine = held is not None and self._owners.get(held[0]) is process
        if what == "did":
            self._effects += 1
            if self._effects in self.scene.fatal:
                self._doomed[process] = self.scene.fatal[self._effects]
        self._ledger.append({"what": what, **facts, "who": process.name, "held": mine})
        self._loop.note(f"{process.name} {what} {facts.get('place', '')}")

    def _happened(self, place: str) -> bool:
        return any(line["what"] == "did" and line["place"] == place for line in self._ledger)

    def _wire(self, process: Process, *, faults: float = 0.0) -> Wire:
        wire = self._made_of(self._store, self._loop, process, self._harbour, self._witness, faults=faults)
        self._wires.append(wire)
        return wire

    def _launch(self) -> None:
        process = self._loop.process(f"worker{len(self._crew) + 1}")
        self._crew.append(process)
        _ = self._loop.start(process, self._work(process))

    async def _work(self, process: Process) -> None:
        wire = cast(Store, self._wire(process, faults=self.scene.faults))
        around = Surroundings(log=SILENT)
        around.threads = cast(Any, _Inline())
        while True:
            worker = Worker(wire, App(*acting.CODES, version="1"), around, concurrency=8)
            worker._presence = _QuietPresence(wire, SILENT, worker._declared_dead)
            worker._contender._clock = self._loop.time
            self._owners[worker.id] = process
            try:
                await worker.start()
                break
            except Exception:
                await asyncio.sleep(0.1)  # the store did not answer
        while True:
            # It may have been declared dead, and gone on under another name.
            self._owners[worker.id] = process
            await asyncio.sleep(_LOOK_SECONDS)

    def _trouble(self, process: Process) -> None:
        """Kill or freeze whoever is about to go on, when its time has come."""
        if process not in self._crew:
            return
        what = self._doomed.pop(process, "")
        if not what and self._troubles and self._loop.choices >= self._troubles[0][0]:
            _, what = self._troubles.pop(0)
        if not what:
            return
        if what == "kill":
            self.kills += 1
            self._loop.kill(process)
            self._loop.call_later(self._loop.chance.uniform(0, 1), self._launch, context=self._town.context)
        else:
            self.freezes += 1
            self._loop.freeze(process, self._loop.chance.uniform(0, _STILL_SECONDS))

    # Living

    async def _live(self) -> Observed:
        runtime = Runtime(cast(Store, self._wire(self._town)), App(*acting.CODES, version="1"), concurrency=1)
        guest = Guest(
            runtime, self._note, lambda: self._ledger, look_seconds=_LOOK_SECONDS, flight_seconds=_VERIFY_SECONDS
        )
        for _ in range(self.scene.workers):
            self._launch()
        beside = [
            self._loop.create_task(each) for each in (guest.attend(), guest.resolve_doubts(), self._watch_leases())
        ]
        for plan in self.scene.plans:
            guest.expect(plan)
            await asyncio.sleep(self._loop.chance.choice((0.0, 0.3)))
            await runtime.start(acting.act, plan, 0, {}, key=plan.name)
        await self._ended(beside)
        await guest.leave()
        for task in beside:
            task.cancel()
        return await Observed.of(
            runtime,
            self._ledger,
            deaths=bool(self.kills or self.freezes or self.scene.faults),
            broken=self._witness.broken,
        )

    async def _ended(self, beside: Sequence["asyncio.Task[Any]"]) -> None:
        give_up = self._loop.time() + _PATIENCE_SECONDS
        while open_rows := [row for row in self._store._rows.values() if not row.status.terminal]:
            for task in beside:
                if task.done():
                    task.result()
            if self._witness.broken:
                raise Broken("\n".join(self._witness.broken))
            if self._loop.time() > give_up:
                stuck = [
                    f"{row.name} {row.run} {row.status}: {row.reason}, owner {row.owner}, "
                    f"inbox {row.inbox_seq}, seen {row.seen_seq}"
                    for row in open_rows
                ]
                raise Broken("stuck: " + "\n".join(stuck))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _watch_leases(self) -> None:
        """Nothing is owned by the dead for longer than a lease and a second, while somebody lives who looks."""
        while not self.scene.faults:
            await asyncio.sleep(_LOOK_SECONDS)
            now = self._loop.time()
            looking = [p.steady_since for p in self._crew if p.lives and p.frozen_until <= now]
            for row in self._store._rows.values():
                owner = self._owners.get(row.owner or "")
                if owner is None or owner.dead_since is None or not looking:
                    continue
                if now - max(owner.dead_since, min(looking)) > LEASE_SECONDS + _SLACK_SECONDS:
                    raise Broken(f"run {row.run} is still owned by {owner.name}, dead since {owner.dead_since:.1f}")


@contextmanager
def _seeded(loop: SeededLoop, seed: str) -> Iterator[None]:
    """Let all that is drawn and made by chance in the engine come from the seed."""
    chance = Random(f"{seed}/ids")

    def uuid7() -> uuid.UUID:
        stamp = loop.micros() // 1000
        bits = (stamp << 80) | (0x7 << 76) | (chance.getrandbits(12) << 64) | (0b10 << 62) | chance.getrandbits(62)
        return uuid.UUID(int=bits)

    with (
        mock.patch.object(uuid_utils, "uuid7", uuid7),
        mock.patch.object(secrets, "token_hex", lambda size: chance.randbytes(size).hex()),
        mock.patch.object(local, "uuid4", uuid7),
        mock.patch.object(drive, "random", chance),
        mock.patch.dict(vars(limits), {"LEASE_SECONDS": LEASE_SECONDS}),
    ):
        yield
