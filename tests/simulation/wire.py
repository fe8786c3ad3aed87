"""The store as one simulated process reaches it: verbs and answers take a while, and may get lost."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.store.answer import Answer
from holdfast.store.bell import Bell, Bells
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Commit, Committed, Lease, NewChunk, Posted
from tests.simulation.loop import Process, SeededLoop

_SOON_SECONDS: Final = 0.004
_LATE_SECONDS: Final = 0.2
_LOST_HINTS: Final = 0.1


class OrderedSet(dict[Bell, None]):
    """Bells in the order in which they were hung, so that they are rung in the same order every time."""

    def add(self, bell: Bell) -> None:
        self[bell] = None

    def discard(self, bell: Bell) -> None:
        self.pop(bell, None)


class LossyBells(Bells):
    """Bells that now and then do not ring: a watch is a hint."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._by_topic: Any = defaultdict(OrderedSet)
        self._chance = chance

    def ring(self, run: RunId | None, **options: Any) -> None:
        if self._chance.random() >= _LOST_HINTS:
            # A copy, since a bell that is rung may be taken down.
            super().ring(run, **options)


class Witness:
    """Keeps its own account of who may write what, and holds the store to it."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.owners: dict[RunId, tuple[str, int]] = {}
        self._ended: set[RunId] = set()
        self._accepted: dict[RunId, list[str]] = defaultdict(list)
        self._consumed: set[tuple[RunId, int]] = set()

    def saw(self, verb: str, args: Sequence[Any], options: Any, outcome: Any) -> None:
        """Take in what the store has done."""
        match verb:
            case "claim":
                for lease in outcome:
                    self.owners[lease.row.run] = (lease.worker, lease.fence)
            case "commit" if isinstance(outcome, Committed):
                self._wrote(*args)
            case "void":
                self._freed(args[0], ())
            case "release":
                self._freed(args[0], options.get("keep", ()))
            case "post" if outcome == Posted("accepted", outcome.seq):
                self._posted(args[0].run, args[0].key)

    def _wrote(self, lease: Lease, change: Commit) -> None:
        run = lease.row.run
        if self.owners.get(run) != (lease.worker, lease.fence):
            self.broken.append(f"a worker without a lease wrote {[entry.kind for entry in change.entries]}")
        if run in self._ended:
            self.broken.append(f"a run that had ended wrote {[entry.kind for entry in change.entries]}")
        for seq in change.consumed:
            if (run, seq) in self._consumed:
                self.broken.append(f"post {seq} of run {run} was taken twice")
            self._consumed.add((run, seq))
        for post in change.posts:
            self._accepted[post.run].append(post.key)
        if change.change is not None:
            self.owners.pop(run, None)
            if change.change.status.terminal:
                self._ended.add(run)

    def _freed(self, worker: str, keep: Sequence[RunId]) -> None:
        for run, (owner, _) in list(self.owners.items()):
            if owner == worker and run not in keep:
                del self.owners[run]

    def _posted(self, run: RunId, key: str) -> None:
        if run in self._ended:
            self.broken.append(f"a run that had ended accepted {key}")
        if key in self._accepted[run]:
            self.broken.append(f"run {run} accepted {key} twice")
        self._accepted[run].append(key)


class Wire:
    """Every verb is the inner store's, done when it arrives there, whoever lives by then to hear of it."""

    def __init__(
        self,
        store: MemoryStore,
        loop: SeededLoop,
        process: Process,
        harbour: Process,
        witness: Witness,
        *,
        faults: float,
    ) -> None:
        self._store, self._loop, self._process, self._harbour = store, loop, process, harbour
        self._witness, self._faults = witness, faults
        self._arrival: dict[RunId, float] = defaultdict(float)
        self._return: dict[RunId, float] = defaultdict(float)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._over = False
        self.now, self.id, self.epoch, self.lock_folder = store.now, store.id, store.epoch, store.lock_folder

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        inner = getattr(self._store, verb)

        async def call(*args: Any, **options: Any) -> Any:
            return await self._send(verb, lambda: _finished(inner(*args, **options)), args, options)

        return call

    def cut(self) -> None:
        """Answer nobody any more: all is judged."""
        self._over = True
        for future in self._pending.values():
            if not future.done():
                future.set_exception(StoreUnavailable("the play is over"))

    # What is not simply sent and answered

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Bell:
        return self._store.watch(run, entries=entries)

    def heart(self, worker: Any) -> None:
        return None

    def create_soon(self, new: Any, *, worker: Any) -> None:
        return None

    def commit(self, lease: Lease, change: Commit) -> Any:
        return self._send(
            "commit", lambda: self._store.commit(lease, change).result(), (lease, change), {}, lease.row.run
        )

    def chunks(self, lease: Lease, chunks: Sequence[NewChunk]) -> Any:
        return self._send("chunks", lambda: self._store.chunks(lease, chunks).result(), (lease,), {}, lease.row.run)  # type: ignore[attr-defined]

    async def close(self) -> None:
        return None

    # Sending

    def _send(
        self, verb: str, act: Callable[[], Any], args: Sequence[Any], options: Any, run: RunId | None = None
    ) -> "asyncio.Future[Any]":
        """Send a verb; those of one run arrive and are answered in order."""
        loop = self._loop
        answer = Answer(loop=loop) if run is not None else loop.create_future()
        if self._over:
            answer.set_exception(StoreUnavailable("the play is over"))
            return answer
        number = loop.choices * 1000 + len(self._pending)
        while number in self._pending:
            number += 1
        self._pending[number] = answer
        arrives = loop.time() + self._delay()
        if run is not None:
            arrives = self._arrival[run] = max(arrives, self._arrival[run])

        def arrive() -> None:
            # What was under way when its sender died may or may not still be done.
            if not self._process.lives and loop.chance.random() < 0.5:
                loop.note(f"{verb} of the dead {self._process.name} is lost")
                return
            fault = self._faults and loop.chance.random() < self._faults
            if fault and loop.chance.random() < 0.5:
                return respond(StoreUnavailable("the request was lost"))
            try:
                outcome: Any = act()
                self._witness.saw(verb, args, options, outcome)
            except Exception as error:
                outcome = error
            loop.note(f"{verb} of {self._process.name}: {type(outcome).__name__}")
            respond(StoreUnavailable("the answer was lost") if fault else outcome)

        def respond(outcome: Any) -> None:
            comes = loop.time() + self._delay()
            if run is not None:
                comes = self._return[run] = max(comes, self._return[run])
            loop.call_at(comes, settle, outcome, context=self._harbour.context)

        def settle(outcome: Any) -> None:
            self._pending.pop(number, None)
            if answer.done():
                return
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
                answer.exception()  # nobody may be there to look
            else:
                answer.set_result(outcome)

        loop.call_at(arrives, arrive, context=self._harbour.context)
        return answer

    def _delay(self) -> float:
        chance = self._loop.chance
        kind = chance.random()
        if kind < 0.4:
            return 0.0
        return chance.uniform(0, _SOON_SECONDS if kind < 0.99 else _LATE_SECONDS)


def _finished(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a verb of a store in memory returns: it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stopped:
        return stopped.value
    raise AssertionError("a store in memory waited")
