"""Where conversations are held with a worker that dies where it is told to, life after life, and are judged."""

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final, Self

import holdfast as hf
from holdfast.store.clock import system_clock
from holdfast.store.protocol import Store
from holdfast.testing.killer import AtPoint, Killer, Outcome, TrialFailed
from tests.chaos import talking
from tests.chaos.holding import Death, Holder, Talk
from tests.chaos.homes import home, locks
from tests.chaos.judge import Broken
from tests.chaos.kills import SEAM
from tests.chaos.script import TURNS, Prompter
from tests.chaos.talk_judge import check
from tests.chaos.world import read_ledger

_STUCK_SECONDS: Final = 60.0
"""How long a conversation may take before it counts as stuck."""
PRELOAD: Final = ("tests.chaos.talking", "structlog", "holdfast.testing.killer")


def new_killer() -> Killer:
    """Return a server for these trials."""
    return Killer(preload=PRELOAD, seam=SEAM, timeout_seconds=2 * _STUCK_SECONDS)


class Parlour:
    """A place for one conversation after another: a folder, the store in it unless it has an address, and models."""

    def __init__(self, killer: Killer, folder: Path, *, address: str | None = None, twin: str = "") -> None:
        self._killer, self._folder, self._twin = killer, folder, twin
        self._place = address or str(folder / "store")
        self._models = Prompter()

    def __enter__(self) -> Self:
        self._models.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._models.__exit__(*exception)

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        home(self._place).clear()
        self._models.heard.clear()

    def unbroken(self, turns: Sequence[int] = TURNS) -> tuple[int, Talk]:
        """Return how many points a worker comes to that does not die, and the conversation that it holds."""
        points, talk = self._hold((), turns, "unbroken")
        check(talk, talk)
        return points, talk

    def trial(self, deaths: Sequence[AtPoint], wanted: Talk, *, turns: Sequence[int] = TURNS, seed: str = "") -> Talk:
        """Let a worker die these deaths, life after life, in one conversation, and judge that.

        Raises:
            Broken: a promise was broken.
            TrialFailed: a life ended otherwise than by finishing or by the death it was given.
        """
        _, talk = self._hold(deaths, turns, seed)
        check(talk, wanted)
        return talk

    def _hold(self, deaths: Sequence[AtPoint], turns: Sequence[int], seed: str) -> tuple[int, Talk]:
        self._clear()
        points, talk, lock_folder = asyncio.run(self._held(deaths, turns, Random(seed)))
        _, left = home(self._place).look()
        return points, replace(talk, left=(*left, *(f"the lock {lock}" for lock in locks(lock_folder))))

    async def _held(
        self, deaths: Sequence[AtPoint], turns: Sequence[int], chance: Random
    ) -> tuple[int, Talk, str | None]:
        store: Store = await home(self._place).open(system_clock)
        async with hf.open(store, talking.app(), work=False) as runtime:
            holder = Holder(runtime, self._folder / "bell", chance, turns)
            points, died = await self._lives(holder, deaths)
            asked = [(model, heard.body) for model, all_ in self._models.heard.items() for heard in all_]
            talk = await holder.tell(read_ledger(self._folder / "ledger"), asked)
        return points, replace(talk, deaths=tuple(died)), store.lock_folder

    async def _lives(self, holder: Holder, deaths: Sequence[AtPoint]) -> tuple[int, list[Death]]:
        """Hold the conversation with one worker after another; return how many points the last came to."""
        died: list[Death] = []
        points = 0
        holding = asyncio.create_task(asyncio.wait_for(holder.hold(), _STUCK_SECONDS))
        await holder.listening.wait()
        try:
            for death in (*deaths, None):
                outcome = await asyncio.to_thread(self._life, death)
                points = outcome.points
                if not outcome.killed:
                    outcome.result()
                    break
                died.append(await holder.died(outcome.last))
            await holding
        except TimeoutError as error:
            stands = await holder.died("nowhere")
            raise Broken(f"it is stuck after {died}, where the runs under way stand so: {stands.entries}") from error
        finally:
            holding.cancel()
        return points, died

    def _life(self, death: AtPoint | None) -> Outcome:
        args = (self._place, str(self._folder / "ledger"), str(self._folder / "bell"), self._models.openai_url)
        return self._killer.run(talking.serve, *args, self._twin, die=death)


__all__ = ["AtPoint", "Parlour", "TrialFailed", "new_killer"]
