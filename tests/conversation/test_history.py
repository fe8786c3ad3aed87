"""What was said in a conversation is read whole, once, and no further back than it is asked for."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast as hf
from holdfast.agent.compaction import REQUEST
from holdfast.agent.model import Request
from holdfast.core.ids import RunId
from holdfast.store.history import _KEPT
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Page, RunRow
from holdfast.testing import ScriptedModel
from tests.conversation.conftest import Open
from tests.conversation.test_conversations import WAIT, Room, texts


async def test_a_turn_at_work_says_what_it_has_committed(opened: Open) -> None:
    """Its first drive is as good as any: the message is there, and what only waits is not."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        await chat.send("slow")
        await asyncio.wait_for(room.entered.wait(), WAIT)
        await chat.send("queued")
        assert texts(await chat.history()) == ["user: slow"]
        room.door.set()


async def test_a_retry_that_waits_does_not_yet_stand_in_for_its_turn(opened: Open) -> None:
    """Until it has begun, the words are those of the turn that failed."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        failed = await runtime.conversation("chat", answer).send("fail")
        with pytest.raises(hf.RunError):
            await failed.result(timeout=WAIT)
    async with opened(answer, work=False) as runtime:
        await (await runtime.get(failed.id)).retry()
        assert texts(await runtime.conversation("chat", answer).history()) == ["user: fail"]


class Watched(MemoryStore):
    """A store that notes which journals are read and which turns are asked for, and deletes one just before."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[RunId] = []
        self.asked_after: list[int] = []
        self.doomed: RunId | None = None

    async def turns(self, *args: Any, after: int = 0, **options: Any) -> Sequence[RunRow]:
        self.asked_after.append(after)
        return await super().turns(*args, after=after, **options)

    async def read(self, run: RunId, *args: Any, **options: Any) -> Page:
        self.seen.append(run)
        if run == self.doomed:
            await self.delete([run])
        return await super().read(run, *args, **options)


async def test_a_turn_that_is_deleted_while_it_is_read_says_nothing() -> None:
    """Who reads the others is not told of damage that there is not."""
    store, answer = Watched(), Room().answerer()
    async with hf.open(store, hf.App(answer)) as runtime:
        chat = runtime.conversation("chat", answer)
        runs = [await chat.send(text) for text in ("a", "b")]
        for run in runs:
            await run.result(timeout=WAIT)
        store.doomed = runs[0].id
        assert texts(await chat.history()) == ["user: b"]
        assert await store.get(runs[0].id) is None


async def test_a_turn_tried_again_twice_is_said_once_when_the_middle_one_is_deleted(opened: Open) -> None:
    """The last retry has the words of all that it goes back to, whichever of them is still there."""
    answer = Room().answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        run = await chat.send("fail")
        tries = [run]
        for _ in range(2):
            with pytest.raises(hf.RunError):
                await run.result(timeout=WAIT)
            run = await run.retry()
            tries.append(run)
        with pytest.raises(hf.RunError):
            await run.result(timeout=WAIT)
        assert await runtime.client.delete(tries[1].id)
        assert texts(await chat.history()) == ["user: fail"]


async def test_nothing_is_read_that_a_summary_stands_for() -> None:
    """However long a conversation has been, a turn reads back to the last compaction."""
    summary = "One greeted the other, who spoke of the weather at length; it is fine today, and will be tomorrow."

    def line(request: Request) -> str:
        said = request.messages[-1].text
        if request.messages[-1] == REQUEST:
            return summary
        return "The weather is fine today. " * 80 if said == "a" else said.upper()

    store, agent = Watched(), hf.Agent("talker", model=ScriptedModel(*[line] * 4), compact_after=400)
    async with hf.open(store, hf.App(agent)) as runtime:
        chat = runtime.conversation("chat", agent)
        runs = []
        for text in ("a", "b", "c"):
            runs.append(await chat.send(text))
            await runs[-1].result(timeout=WAIT)
        _KEPT.clear()
        store.seen.clear()
        assert texts(await chat.history())[-3:] == ["assistant: B", "user: c", "assistant: C"]
        assert store.seen == [runs[2].id, runs[1].id]


async def test_a_turn_that_has_ended_is_read_once_by_a_process() -> None:
    """However long a conversation has been, the next turn reads only what is new to its process."""
    answer, store = Room().answerer(), Watched()
    async with hf.open(store, hf.App(answer)) as runtime:
        chat = runtime.conversation("chat", answer)
        for text in ("a", "b", "c"):
            await (await chat.send(text)).result(timeout=WAIT)
        before = await chat.history()
        store.seen.clear()
        assert await chat.history() == before
        assert store.seen == []


async def test_turns_that_are_known_are_not_listed_again() -> None:
    """What a turn costs does not grow with the turns before it: only those behind the known ones are asked for."""
    answer, store = Room().answerer(), Watched()
    async with hf.open(store, hf.App(answer)) as runtime:
        chat = runtime.conversation("chat", answer)
        for text in ("a", "b", "c"):
            await (await chat.send(text)).result(timeout=WAIT)
        await chat.history()
        store.asked_after.clear()
        await (await chat.send("d")).result(timeout=WAIT)
        assert texts(await chat.history())[-2:] == ["user: c", "user: d"]
        assert min(store.asked_after) >= 3


async def test_a_turn_that_is_deleted_is_forgotten_by_who_knew_it(opened: Open) -> None:
    """What a process remembers of a conversation does not outlive what the store has."""
    answer = Room().answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        runs = [await chat.send(text) for text in ("a", "b")]
        for run in runs:
            await run.result(timeout=WAIT)
        assert texts(await chat.history()) == ["user: a", "user: b"]
        assert await runtime.client.delete(runs[0].id)
        assert texts(await chat.history()) == ["user: b"]


async def test_a_turn_that_is_tried_again_says_its_words_once_to_who_knew_the_first(opened: Open) -> None:
    """A retry stands for its turn also where the failed one was read before."""
    answer = Room().answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        run = await chat.send("fail")
        with pytest.raises(hf.RunError):
            await run.result(timeout=WAIT)
        assert texts(await chat.history()) == ["user: fail"]
        again = await run.retry()
        with pytest.raises(hf.RunError):
            await again.result(timeout=WAIT)
        assert texts(await chat.history()) == ["user: fail"]
