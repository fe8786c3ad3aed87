"""Where trials are played in this process: a store in memory, and lives that end where they are told to."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, Self, cast

from holdfast.core.ids import RunId
from holdfast.engine.app import App
from holdfast.engine.function import Durable
from holdfast.runtime import Runtime
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.testing.clock import MovingClock
from holdfast.testing.life import Ended, Lived, Stuck, live, look, recorded_steps, witnessed
from holdfast.testing.mortal import MortalLoop, MortalStore
from holdfast.testing.outside import Outside

KEY: Final = "every-crash"
Played = tuple[Ended, Sequence[Lived]]


async def create(store: Store, what: Durable[Any, ...], args: Sequence[Any], app: App) -> RunId:
    """Write the run that every trial begins with, so that all have the same id, keys and chance."""
    run = await Runtime(store, app, concurrency=1).start(what, *args, key=KEY)
    return run.id


class MemoryStage:
    """Trials of one program, one after the other."""

    def __init__(
        self, what: Durable[Any, ...], args: Sequence[Any], app: App, others: Outside, *, seconds: float
    ) -> None:
        self._app, self._others, self._seconds = app, others, seconds
        self._origin = MemoryStore(clock=MovingClock())
        self._run = asyncio.run(create(self._origin, what, args, app))
        self._loops: list[MortalLoop] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()

    def clear(self) -> None:
        """Let go of what the trial before left."""
        while self._loops:
            self._loops.pop().bury()

    def trial(self, nth: int | None) -> Played:
        """Let the program die at its nth place, if there is one, and go on to its end."""
        clock = MovingClock()
        store, lives, crash = self._origin.twin(clock=clock), list[Lived](), None
        while True:
            self._loops.append(loop := MortalLoop())
            mortal = MortalStore(store, loop, nth)
            lives.append(Lived())
            ended: list[Ended] = []
            with witnessed(lives[-1]):
                loop.live(self._live(mortal, clock, lives, crash, ended))
            if mortal.died is None:
                return ended[0], lives
            # Another clock, since whoever listened to this one is dead.
            clock = MovingClock(clock())
            store, nth, crash = store.twin(clock=clock), None, mortal.died

    async def _live(
        self, mortal: MortalStore, clock: MovingClock, lives: list[Lived], crash: str | None, ended: list[Ended]
    ) -> None:
        store = cast(Store, mortal)
        for dead in await store.workers():
            await store.void(dead.worker, why="it died")
        lives[-1].recorded += [step async for step in recorded_steps(store)]
        stuck = None
        try:
            others = Outside(self._others.signals, self._others.answers)
            await live(store, self._app, self._run, clock, others, seconds=self._seconds)
        except Stuck as error:
            stuck = str(error)
        found = await look(store, self._run, lives, crash)
        ended.append(found if stuck is None else replace(found, reason=stuck))
