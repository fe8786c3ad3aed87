"""An effect of a loop happens once for its key; where nobody knows, that is told and never guessed."""

from typing import Any

import pytest

import holdfast as hf
from holdfast import checkpoint
from holdfast.core.errors import InvalidValue
from holdfast.core.stepkey import explicit_key
from holdfast.store.memory import MemoryStore
from tests.checkpoint.leaving import Place, shut_down

pytestmark = pytest.mark.anyio


class World:
    """What was done to the outside."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def send(self, text: str) -> dict[str, Any]:
        """Do it, from plain code."""
        self.done.append(text)
        return {"sent": text}

    async def send_soon(self, text: str) -> dict[str, Any]:
        """Do it, from async code."""
        return self.send(text)

    def break_down(self, text: str) -> None:
        """Do it, and lose the answer."""
        self.send(text)
        raise ConnectionError("no answer")

    def refuse(self, text: str) -> None:
        """Say that it was not done."""
        raise hf.ToolError(f"no such address: {text}")

    def return_oddly(self, text: str) -> object:
        """Do it, and return what cannot be kept."""
        self.send(text)
        return object()


@pytest.fixture
def world() -> World:
    """Untouched."""
    return World()


async def test_what_came_of_an_effect_is_given_again_and_not_done_again(place: Place, world: World) -> None:
    """In the same process and in the next, of async and of plain code."""
    for attempt in range(2):
        async with shut_down("loop", store=place) as saved:
            assert saved.attempt == attempt + 1
            for _ in range(2):
                assert await saved.effect("call/1", world.send, "a") == {"sent": "a"}
                assert await saved.effect("call 2", world.send_soon, "b") == {"sent": "b"}
    assert world.done == ["a", "b"]


async def test_a_key_that_was_used_with_other_arguments_is_refused(world: World) -> None:
    """A name that two effects share would make one of them silently not happen."""
    async with checkpoint.open("loop", store=MemoryStore()) as saved:
        await saved.effect("send mail", world.send, "a")
        with pytest.raises(hf.Conflict, match="'send mail' was performed with other arguments"):
            await saved.effect("send mail", world.send, "b")
    assert world.done == ["a"]


async def test_an_effect_that_raised_is_in_doubt_until_somebody_says(place: Place, world: World) -> None:
    """Its loop sees the error, the next try is refused, now and after a restart, and a word ends it."""
    async with shut_down("loop", store=place) as saved:
        with pytest.raises(ConnectionError):
            await saved.effect("mail", world.break_down, "a")
        with pytest.raises(hf.InDoubt, match="no answer"):
            await saved.effect("mail", world.break_down, "a")
    [left] = await checkpoint.interrupted(store=place)
    assert dict(left.doubts) == {"mail": "ConnectionError: no answer"}
    async with checkpoint.open("loop", store=place) as saved:
        assert list(saved.doubts) == ["mail"]
        with pytest.raises(hf.InDoubt):
            await saved.effect("mail", world.send, "a")
        await saved.resolve("mail", {"sent": "a"}, by="ann")
        assert await saved.effect("mail", world.send, "a") == {"sent": "a"}
        assert dict(saved.doubts) == {}
        with pytest.raises(hf.Conflict, match="not in doubt"):
            await saved.resolve("mail", 1)
    assert world.done == ["a"]


async def test_one_that_is_known_not_to_have_happened_may_be_tried_again(world: World) -> None:
    """Because somebody says so, or because it said so itself."""
    async with checkpoint.open("loop", store=MemoryStore()) as saved:
        with pytest.raises(ConnectionError):
            await saved.effect("mail", world.break_down, "a")
        await saved.resolve("mail", hf.NOT_DONE)
        assert await saved.effect("mail", world.send, "b") == {"sent": "b"}
        with pytest.raises(hf.ToolError):
            await saved.effect("other", world.refuse, "a")
        assert await saved.effect("other", world.send, "c") == {"sent": "c"}
    assert world.done == ["a", "b", "c"]


async def test_one_whose_result_cannot_be_kept_is_in_doubt(world: World) -> None:
    """It has happened: that must not look as if it had not."""
    async with checkpoint.open("loop", store=MemoryStore()) as saved:
        with pytest.raises(InvalidValue, match="what effect 'mail' returned"):
            await saved.effect("mail", world.return_oddly, "a")
        assert list(saved.doubts) == ["mail"]


async def test_a_persons_word_is_heard_when_it_is_opened_next(file: str, world: World) -> None:
    """`holdfast resolve` ends the doubt of a loop that is not there."""
    async with shut_down("loop", store=file) as saved:
        with pytest.raises(ConnectionError):
            await saved.effect("mail", world.break_down, "a")
    async with hf.open(file, work=False) as runtime:
        run = await runtime.get(saved.run)
        await run.resolve(explicit_key("0", "mail"), {"sent": "seen it"}, by="ann")
    async with checkpoint.open("loop", store=file) as saved:
        assert dict(saved.doubts) == {}
        assert await saved.effect("mail", world.send, "a") == {"sent": "seen it"}
    assert world.done == ["a"]


async def test_what_is_saved_before_an_effect_is_on_disk_when_it_begins(place: Place) -> None:
    """Whoever resumes after a kill in a tool knows what had been said by then."""

    async def look() -> int:
        async with hf.open(place, work=False) as runtime:
            events = [event async for event in (await runtime.get(run)).events(follow=False)]
        before, intent = events[-2:]
        assert isinstance(before, hf.events.CheckpointSaved)
        assert isinstance(intent, hf.events.StepStarted)
        return before.count

    async with checkpoint.open("loop", store=place, every=1000) as saved:
        run = saved.run
        await saved.save([1])
        assert not await saved.save([1, 2, 3])
        assert await saved.effect("look", look) == 3
