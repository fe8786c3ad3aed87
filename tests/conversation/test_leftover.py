"""A word that a turn left becomes a turn like any other, whatever became of the one that left it."""

from contextlib import nullcontext
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.runtime import Opening

WAIT = 20.0


@hf.durable
async def answer(ctx: hf.Context, message: str) -> str:
    """Answer without a look at what it is told meanwhile."""
    return message.upper()


answer.budget = hf.Budget(steps=5)


def opened(path: Path, *functions: hf.Durable[object, ...], work: bool = True) -> Opening:
    """Open the store of a test, each time as another process would."""
    return hf.open(f"sqlite:///{path / 'store.db'}", hf.App(*functions), work=work)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_turn_made_of_a_left_word_has_the_budget_of_its_code(tmp_path: Path, cancelled: bool) -> None:
    """What a run may spend where nothing is said at its start holds for it too, however the turn before it ended."""
    async with opened(tmp_path, answer, work=False) as runtime:
        chat = runtime.conversation("chat", answer)
        first = await chat.send("first")
        await chat.send("second", key="second", if_busy="steer")
        if cancelled:
            await first.cancel()
    async with opened(tmp_path, answer) as runtime:
        with pytest.raises(hf.RunError) if cancelled else nullcontext():
            await (await runtime.get(first.id)).result(timeout=WAIT)
        left = await runtime.get(key="second")
        assert await left.result(timeout=WAIT) == "SECOND"
        budget = (await left.info()).budget
        assert budget is not None
        assert budget == (await (await runtime.start(answer, "own")).info()).budget


@hf.durable
async def add(ctx: hf.Context, message: int, more: int) -> int:
    """Add what cannot be said in one text."""
    return message + more


async def test_a_word_that_its_code_cannot_take_holds_up_only_the_turn_made_of_it(tmp_path: Path) -> None:
    """The turn that leaves the word ends with its own result, and who said it is told what is wrong."""
    async with opened(tmp_path, add, work=False) as runtime:
        first = await runtime.start(add, 1, 2, conversation="chat")
        chat = runtime.conversation("chat", add)  # type: ignore[arg-type]
        assert (await chat.send("three", key="word", if_busy="steer")).id == first.id
    async with opened(tmp_path, add) as runtime:
        assert await (await runtime.get(first.id)).result(timeout=WAIT) == 3
        with pytest.raises(hf.RunError, match="message"):
            await (await runtime.get(key="word")).result(timeout=WAIT)


async def test_a_word_for_an_agent_is_not_told_to_another_at_work(tmp_path: Path) -> None:
    """It waits for that turn instead, and is answered by whom it was meant for."""
    async with opened(tmp_path, add, answer, work=False) as runtime:
        first = await runtime.start(add, 1, 2, conversation="chat")
        word = await runtime.conversation("chat", answer).send("hello", key="word", if_busy="steer")
        assert word.id != first.id
        again = await runtime.conversation("chat", answer).send("hello", key="word", if_busy="steer")
        assert again.id == word.id
    async with opened(tmp_path, add, answer) as runtime:
        assert await (await runtime.get(word.id)).result(timeout=WAIT) == "HELLO"


async def test_the_key_of_a_word_that_waits_is_refused_another_text(tmp_path: Path) -> None:
    """What is said under a key is said once, and never dropped in silence for something else."""
    async with opened(tmp_path, answer, work=False) as runtime:
        chat = runtime.conversation("chat", answer)
        first = await chat.send("first")
        assert (await chat.send("left", key="word", if_busy="steer")).id == first.id
        assert (await chat.send("left", key="word", if_busy="steer")).id == first.id
        with pytest.raises(hf.Conflict, match="another text"):
            await chat.send("right", key="word", if_busy="steer")
