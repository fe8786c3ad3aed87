"""Whoever starts tales and hears how they end; when the store is away it asks again, as a program would."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import holdfast as hf
from holdfast.client.run import Run
from holdfast.core.errors import Conflict, NotFound, StoreUnavailable
from holdfast.runtime import Runtime
from tests.chaos.crew import Crew
from tests.chaos.hand import open_ledger, tale
from tests.chaos.judge import Broken
from tests.chaos.verdict import Story, entries_of, faults

T = TypeVar("T")
PATIENCE_SECONDS: Final = 60.0
"""How long a tale may take, whatever happens meanwhile."""
_AWAY_SECONDS: Final = 0.1


class Caller:
    """Tells tales to a store, and keeps in the ledger what it was told for certain."""

    def __init__(self, crew: Crew, *, at_once: int) -> None:
        self._crew = crew
        self._note = open_ledger(str(crew.berth.ledger), "caller")
        self._room = asyncio.Semaphore(at_once)
        self.asked_again = 0
        """How often a call ended with the news that the store is away."""

    async def tell_all(self, numbers: Sequence[int], effects: Sequence[str]) -> list[Story]:
        """Start tales with these effects in turn, some at once, and return them when all have ended.

        Raises:
            Broken: one did not.
        """
        tales = [(number, effects[place % len(effects)]) for place, number in enumerate(numbers)]
        async with hf.open(self._crew.berth.store, work=False) as runtime:
            try:
                async with asyncio.TaskGroup() as listening:
                    told = [listening.create_task(self._tell(runtime, *each)) for each in tales]
            except ExceptionGroup as several:
                raise Broken(str(several.exceptions[0])) from several
            return [each.result() for each in told]

    async def read_again(self, stories: Sequence[Story]) -> list[Story]:
        """Return tales that have ended as the store has them now.

        Raises:
            Broken: one is gone.
        """
        async with hf.open(self._crew.berth.store, work=False) as runtime:
            try:
                runs = [await self._again(partial(runtime.get, key=("tale", story.number))) for story in stories]
            except NotFound as gone:
                raise Broken(f"a tale that had ended is gone: {gone!r}") from gone
            entries = [await self._again(partial(entries_of, runtime, run.id)) for run in runs]
            return [replace(story, entries=now) for story, now in zip(stories, entries, strict=True)]

    async def _tell(self, runtime: Runtime, number: int, effect: str) -> Story:
        async with self._room:
            try:
                run = await self._again(lambda: runtime.start(tale, number, effect, key=("tale", number)))
                self._note("started", number, run=run.id)
                if effect == "ask":
                    await self._answer(runtime, run, number)
                result = await self._again(lambda: run.result(timeout=PATIENCE_SECONDS))
                same = await self._again(lambda: runtime.get(key=("tale", number)))
                entries = await self._again(lambda: entries_of(runtime, same.id))
            except (hf.HoldfastError, TimeoutError) as error:
                raise Broken(f"tale {number} ({effect}): {error!r}") from error
        if same.id != run.id:
            raise Broken(f"tale {number} was run {run.id}, and is {same.id} now")
        return Story(number, effect, entries, result, ())

    async def _answer(self, runtime: Runtime, run: Run[list[str]], number: int) -> None:
        """Wait until the run asks, and answer by a post."""
        await self._again(lambda: runtime.client.wait(run.id, timeout_seconds=PATIENCE_SECONDS, or_person=True))
        asked = self.asked_again
        try:
            await self._again(lambda: run.resolve("0/ask#1", f"ask {number}", by="ann"))
        except (NotFound, Conflict):
            if self.asked_again == asked:
                raise
            return  # the first answer had arrived, though nobody was told
        self._note("posted", number, step="ask", value=f"ask {number}")

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        give_up = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            try:
                return await call()
            except StoreUnavailable:
                self.asked_again += 1
                if asyncio.get_running_loop().time() > give_up:
                    raise
                await asyncio.sleep(_AWAY_SECONDS)


def judge(crew: Crew, stories: Sequence[Story]) -> None:
    """Hold every tale to the ledger.

    Raises:
        Broken: with what is wrong.
    """
    lines: dict[int, list[object]] = {}
    for line in crew.ledger():
        lines.setdefault(line["number"], []).append(line)
    judged = [replace(story, lines=tuple(lines.get(story.number, ()))) for story in stories]  # type: ignore[arg-type]
    if found := [fault for story in judged for fault in faults(story)]:
        raise Broken("\n".join(found[:20]))


async def check_store(address: str) -> None:
    """Read the whole store.

    Raises:
        Broken: something in it is damaged.
    """
    async with hf.open(address, work=False) as runtime:
        if found := [finding.what async for finding in runtime.client.verify()]:
            raise Broken(f"verify found {found[:5]}")
