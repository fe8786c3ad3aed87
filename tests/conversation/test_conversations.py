"""A conversation is one sequence of turns, whoever sends and whoever answers."""

import asyncio

import pytest

import holdfast as hf
from holdfast.core.errors import ConversationBusy
from holdfast.core.message import Message, ToolResult
from holdfast.store.memory import MemoryStore
from holdfast.testing import ScriptedModel
from holdfast.testing.contract.conversing import end
from holdfast.testing.contract.story import a_worker, row_of
from holdfast.testing.scripted import call
from tests.conversation.conftest import Open

WAIT = 60.0


class Room:
    """What happened in the steps of turns, and a door that one of them may have to wait at."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.heard: list[str] = []
        self.door = asyncio.Event()
        self.entered = asyncio.Event()

    def answerer(self) -> hf.Durable[str, [str]]:
        """Return a turn that says what it was told, in capitals."""

        async def think(message: str) -> str:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.heard.append(message)
            self.entered.set()
            if message == "slow":
                await self.door.wait()
            await asyncio.sleep(0)
            self.inside -= 1
            if message == "fail":
                raise ValueError("cannot")
            return message.upper()

        @hf.durable(name="answer")
        async def answer(ctx: hf.Context, message: str) -> str:
            return await ctx.step(think, message)

        return answer


def texts(messages: list[Message]) -> list[str]:
    """Return what was said, with who said it."""
    return [f"{message.role}: {message.text}" for message in messages]


async def test_two_processes_that_send_at_once_are_answered_one_turn_at_a_time(opened: Open) -> None:
    """Turns are numbered in one sequence, never overlap, and each message is answered once."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as one, opened(answer) as two:
        chats = [one.conversation("chat", answer), two.conversation("chat", answer)]
        runs = await asyncio.gather(*(chats[n % 2].send(f"m{n}", key=f"k{n}") for n in range(12)))
        replies = [await run.result(timeout=WAIT) for run in runs]
        turns = await chats[0].turns()
        assert replies == [f"M{n}" for n in range(12)]
        assert room.most == 1
        assert [turn.turn for turn in turns] == list(range(1, 13))
        said = {str(run.id): f"m{n}" for n, run in enumerate(runs)}
        assert room.heard == [said[turn.id] for turn in turns]


async def test_a_message_with_the_same_key_is_one_turn(opened: Open) -> None:
    """Sent again from another process, it is the run that it was."""
    answer = Room().answerer()
    async with opened(answer) as one, opened(answer, work=False) as two:
        first = await one.conversation("chat", answer).send("hello", key="k")
        again = await two.conversation("chat", answer).send("hello", key="k")
        assert first.id == again.id
        assert await again.result(timeout=WAIT) == "HELLO"
        with pytest.raises(hf.Conflict, match="conversation"):
            await two.conversation("other", answer).send("hello", key="k")
        info = await again.info()
        assert (info.conversation, info.turn) == ("chat", 1)


async def test_a_message_may_be_rejected_while_a_turn_is_under_way(opened: Open) -> None:
    """The store itself says no, and says yes again when the turn has ended."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        slow = await chat.send("slow")
        await asyncio.wait_for(room.entered.wait(), WAIT)
        with pytest.raises(ConversationBusy):
            await chat.send("now", if_busy="reject")
        room.door.set()
        assert await slow.result(timeout=WAIT) == "SLOW"
        assert await (await chat.send("now", if_busy="reject")).result(timeout=WAIT) == "NOW"
        assert len(await chat.turns()) == 2


async def test_a_message_may_end_the_turn_under_way_and_take_its_place(opened: Open) -> None:
    """The interrupted turn is cancelled, the message is answered, and what had waited before it too."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        slow = await chat.send("slow")
        await asyncio.wait_for(room.entered.wait(), WAIT)
        queued = await chat.send("queued")
        urgent = await chat.send("urgent", if_busy="interrupt")
        assert await urgent.result(timeout=WAIT) == "URGENT"
        assert await queued.result(timeout=WAIT) == "QUEUED"
        with pytest.raises(hf.RunError, match="interrupted"):
            await slow.result(timeout=WAIT)


async def test_a_message_that_waits_can_be_taken_back_at_once(opened: Open) -> None:
    """Cancelled before its turn, it ends while the turn before it goes on, and nothing of it is performed."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        slow = await chat.send("slow")
        await asyncio.wait_for(room.entered.wait(), WAIT)
        queued = await chat.send("queued")
        assert await queued.cancel("changed my mind")
        with pytest.raises(hf.RunError, match="changed my mind"):
            await queued.result(timeout=WAIT)
        assert (await slow.info()).status is hf.Status.RUNNING
        room.door.set()
        assert await slow.result(timeout=WAIT) == "SLOW"
        assert room.heard == ["slow"]


async def test_what_a_turn_did_not_hear_is_the_next_turn(opened: Open) -> None:
    """A word to a turn that takes none in is not lost: its key leads to the turn that answers it."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        slow = await chat.send("slow")
        await asyncio.wait_for(room.entered.wait(), WAIT)
        told = [await chat.send(word, key=word, if_busy="steer") for word in ("first", "second", "first")]
        assert {run.id for run in told} == {slow.id}
        room.door.set()
        assert await slow.result(timeout=WAIT) == "SLOW"
        again = await chat.send("first", key="first", if_busy="steer")
        assert await again.result(timeout=WAIT) == "FIRST"
        assert await (await runtime.get(key="second")).result(timeout=WAIT) == "SECOND"
        assert room.heard == ["slow", "first", "second"]


async def test_a_word_whose_key_was_taken_meanwhile_is_answered_all_the_same(opened: Open) -> None:
    """It becomes a turn without a key, and the conversation goes on behind it."""
    answer = Room().answerer()
    async with opened(answer, work=False) as runtime:
        chat = runtime.conversation("chat", answer)
        first = await chat.send("first")
        assert (await chat.send("second", key="k", if_busy="steer")).id == first.id
        other = await runtime.start(answer, "other", key="k")
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        await (await runtime.get(first.id)).result(timeout=WAIT)
        assert await (await chat.send("third")).result(timeout=WAIT) == "THIRD"
        assert texts(await chat.history()) == ["user: first", "user: second", "user: third"]
        assert [(turn.turn, turn.status) for turn in await chat.turns()] == [
            (number, hf.Status.COMPLETED) for number in (1, 2, 3)
        ]  # fmt: skip
        assert (await runtime.get(key="k")).id == other.id


async def test_an_agent_hears_what_it_is_told_while_it_works(opened: Open) -> None:
    """The word stands in the turn where the model heard it, once, and sent again it is not told again."""
    entered, door = asyncio.Event(), asyncio.Event()

    @hf.tool(effect="repeat")
    async def look() -> str:
        """Look around."""
        entered.set()
        await door.wait()
        return "a wall"

    model = ScriptedModel(call("look"), "I turn left.", "Yes.")
    agent = hf.Agent("walker", model=model, tools=[look])
    async with opened(agent) as runtime:
        chat = runtime.conversation("walk", agent)
        run = await chat.send("Go on.")
        await asyncio.wait_for(entered.wait(), WAIT)
        steered = await chat.send("Turn left!", key="left", if_busy="steer", by="ann")
        assert steered.id == run.id
        door.set()
        assert await run.result(timeout=WAIT) == "I turn left."
        assert (await chat.send("Turn left!", key="left", if_busy="steer")).id == run.id
        assert await run.steer("too late") is False
        assert texts(list(model.requests[-1].messages)) == [
            "user: Go on.", "assistant: ", "tool: ", "user: Turn left!"
        ]  # fmt: skip
        assert await (await chat.send("Left?", if_busy="steer")).result(timeout=WAIT) == "Yes."
        assert texts(await chat.history())[-3:] == ["assistant: I turn left.", "user: Left?", "assistant: Yes."]


async def test_a_turn_is_asked_with_what_was_said_before_it(opened: Open) -> None:
    """Each request begins with the bytes of the one before, and what the caller keeps is in none of them."""
    model = ScriptedModel("One.", "Two.", "Three.")
    agent = hf.Agent("counter", model=model)
    async with opened(agent) as runtime:
        chat = runtime.conversation("count", agent)
        await chat.set_metadata({"title": "a secret"})
        for said in ("a", "b", "c"):
            await (await chat.send(said)).result(timeout=WAIT)
        assert await chat.metadata() == {"title": "a secret"}
        asked = [list(request.messages) for request in model.requests]
        assert asked[1] == [*asked[0], *asked[1][1:]]
        assert asked[2] == [*asked[1], *asked[2][3:]]
        assert texts(await chat.history()) == [
            "user: a", "assistant: One.", "user: b", "assistant: Two.", "user: c", "assistant: Three."
        ]  # fmt: skip
        assert not any("secret" in repr(request) for request in model.requests)
    async with opened(work=False) as reader:
        assert texts(await reader.conversation("count", agent).history())[0] == "user: a"


async def test_a_turn_that_was_cancelled_says_what_it_committed_and_no_call_hangs_loose(opened: Open) -> None:
    """The next turn is sent every call with a result: of one that may have happened, that nobody knows."""
    entered = asyncio.Event()

    @hf.tool
    async def pay() -> str:
        """Pay."""
        entered.set()
        await asyncio.get_running_loop().create_future()
        return "paid"

    model = ScriptedModel([call("pay"), call("gone")], "I do not know.")
    agent = hf.Agent("payer", model=model, tools=[pay])
    async with opened(agent) as runtime:
        chat = runtime.conversation("pay", agent)
        run = await chat.send("Pay it.")
        await asyncio.wait_for(entered.wait(), WAIT)
        await run.cancel()
        with pytest.raises(hf.RunError):
            await run.result(timeout=WAIT)
        assert await (await chat.send("And?")).result(timeout=WAIT) == "I do not know."
        sent = list(model.requests[-1].messages)
        results = [part for message in sent for part in message.parts if isinstance(part, ToolResult)]
        assert [part.id for message in sent for part in message.calls] == [part.id for part in results]
        assert "unknown" in results[0].text
        assert texts(sent)[-1] == "user: And?"


async def test_a_turn_that_was_tried_again_is_said_once(opened: Open) -> None:
    """The retry stands in for the turn that failed, behind what came between."""
    room = Room()
    answer = room.answerer()
    async with opened(answer) as runtime:
        chat = runtime.conversation("chat", answer)
        failed = await chat.send("fail", key="k")
        with pytest.raises(hf.RunError):
            await failed.result(timeout=WAIT)
        await (await chat.send("fine")).result(timeout=WAIT)
        again = await failed.retry()
        with pytest.raises(hf.RunError):
            await again.result(timeout=WAIT)
        assert (await again.info()).turn == 3
        assert texts(await chat.history()) == ["user: fine", "user: fail"]


async def test_a_turn_that_was_set_aside_is_promised_no_try_once_a_later_one_has_gone_on() -> None:
    """It would wait for ever: who asks is told so, and it can still be ended."""
    store, answer = MemoryStore(), Room().answerer()
    async with hf.open(store, hf.App(answer), work=False) as runtime:
        chat = runtime.conversation("chat", answer)
        runs = [await chat.send(text) for text in ("broken", "fine")]
        worker = await a_worker(store)
        for run, status in zip(runs, (hf.Status.QUARANTINED, hf.Status.COMPLETED), strict=True):
            row = await row_of(store, run.id)
            [lease] = await store.claim(worker, {row.name: row.code}, limit=1)
            assert lease.row.run == run.id
            await end(store, lease, status)
        with pytest.raises(hf.Conflict, match="a later one has gone on"):
            await runs[0].retry()
        assert await runs[0].cancel()


async def test_a_run_started_with_a_conversation_is_its_next_turn(opened: Open) -> None:
    """`start` takes the same door as `send`."""
    answer = Room().answerer()
    async with opened(answer) as runtime:
        run = await runtime.start(answer, "hello", conversation="chat")
        assert await run.result(timeout=WAIT) == "HELLO"
        assert [turn.id for turn in await runtime.conversation("chat", answer).turns()] == [run.id]


@pytest.mark.parametrize("wrong", ["", "x" * 600, "a\0b"])
async def test_a_conversation_that_cannot_be_kept_is_refused(wrong: str) -> None:
    """Its id is bounded text, and says so before anything is written."""
    answer = Room().answerer()
    async with hf.open("memory://", hf.App(answer)) as runtime:
        with pytest.raises(hf.HoldfastError, match="conversation"):
            runtime.conversation(wrong, answer)
        chat = runtime.conversation("chat", answer)
        with pytest.raises(hf.HoldfastError, match="if_busy"):
            await chat.send("hello", if_busy="maybe")  # type: ignore[arg-type]
