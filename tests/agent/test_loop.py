"""The loop: the model is asked, its calls are answered, and what was said stands in the journal once."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.agent.model import ModelBusy, ModelCut, ModelRefused, Reply
from holdfast.core import entry as e
from holdfast.core.message import ASSISTANT, Message, Text, Usage
from holdfast.testing import MovingClock, ScriptedModel, call
from tests.agent.lines import LIMIT_SECONDS, asked, entries_of, results_of, said_in, steer, told


@hf.tool(effect="repeat")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@hf.tool(effect="repeat")
def fail(why: str) -> str:
    """Fail."""
    raise hf.ToolError(why)


def agent(*lines: Any, **options: Any) -> hf.Agent[str]:
    """Return an agent whose model says these lines."""
    return hf.Agent("clerk", model=ScriptedModel(*lines), **options)


async def answer_of(clerk: hf.Agent[Any], message: str = "hello") -> tuple[Any, hf.Run[Any]]:
    """Return an agent's answer and the run that gave it."""
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, message)
        return await run.result(timeout=LIMIT_SECONDS), run


async def test_the_text_of_the_last_message_is_the_result_and_stands_in_the_journal_once() -> None:
    """An answer is stored where it was said; the ending only names that entry, and every reader finds it."""
    clerk = agent("a long and unmistakable answer")
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "hello")
        assert await run.result(timeout=LIMIT_SECONDS) == "a long and unmistakable answer"
        entries = await entries_of(run)
        assert sum(b"unmistakable" in msgspec.json.encode(entry) for entry in entries) == 1
        assert isinstance(entries[-1], e.RunFinished)
        assert entries[-1].said == 2
        assert (await run.info()).result == "a long and unmistakable answer"
        assert await run.value(entries[-1]) == "a long and unmistakable answer"


async def test_a_parent_is_told_the_text_that_its_child_said() -> None:
    """A result that stands in a child's message reaches the parent as its value."""
    clerk = agent("forty-two")

    @hf.durable
    async def asks(ctx: hf.Context) -> str:
        return await ctx.run(clerk, "what is it?")

    async with hf.testing.open(hf.App(clerk, asks)) as runtime:
        assert await runtime.run(asks) == "forty-two"


async def test_an_answer_too_large_for_its_entry_is_still_the_result() -> None:
    """What stands in a blob is a result of its own, since nothing could be read from the entry."""
    long = "x" * 100_000
    async with hf.testing.open(hf.App(clerk := agent(long))) as runtime:
        assert await runtime.run(clerk, "hello") == long


async def test_calls_are_answered_beside_each_other_and_told_in_their_order() -> None:
    """The model is told every result of its message, in the order of its calls, before it is asked again."""
    clerk = agent(["let me see", call("add", a=1, b=2), call("fail", why="no ink"), call("add", a=3, b=4)], told)
    async with hf.testing.open(hf.App(clerk_with := _with(clerk, add, fail))) as runtime:
        run = await runtime.start(clerk_with, "add")
        assert await run.result(timeout=LIMIT_SECONDS) == "3 | no ink | 7"
        said = await said_in(run)
    assert [result.error for result in results_of(said)] == [False, True, False]
    assert [message.role for message in said] == ["user", "assistant", "tool", "assistant"]


def _with(clerk: hf.Agent[str], *tools: Any, **options: Any) -> hf.Agent[str]:
    return hf.Agent("clerk", model=clerk.model, tools=tools, **options)


async def test_no_more_calls_are_under_way_at_once_than_the_agent_allows() -> None:
    """A message with many calls does not start them all: `tool_limit` bounds what is under way."""
    under_way, most = 0, 0

    @hf.tool(effect="repeat")
    async def slow(n: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(5):
            await asyncio.sleep(0)
        under_way -= 1
        return n

    clerk = _with(agent([call("slow", n=n) for n in range(10)], "done"), slow, tool_limit=3)
    await answer_of(clerk)
    assert most == 3


async def test_a_call_that_cannot_be_made_is_told_and_not_made() -> None:
    """Wrong arguments and unknown names become error results; the tool does not run."""
    ran: list[int] = []

    @hf.tool(effect="once")
    def count(n: int) -> int:
        ran.append(n)
        return n

    lines = [call("count", n="many"), call("cuont", n=1)], told
    answer, _ = await answer_of(_with(agent(*lines), count))
    assert "its arguments are wrong" in answer
    assert "no tool called 'cuont'" in answer
    assert ran == []


async def test_a_tool_that_fails_is_told_to_the_model_and_the_run_goes_on() -> None:
    """A failure of a tool that may be repeated is a result for the model, not the end of the run."""

    @hf.tool(effect="repeat")
    def divide(a: int, b: int) -> float:
        return a / b

    answer, _ = await answer_of(_with(agent(call("divide", a=1, b=0), told), divide))
    assert answer == "ZeroDivisionError: division by zero"


async def test_a_once_tool_that_raises_is_told_as_unknown_and_not_called_again() -> None:
    """Nobody knows what a `once` tool did before it raised: that is what the model is told."""
    called: list[str] = []

    @hf.tool
    def pay(to: str) -> str:
        called.append(to)
        raise OSError("the line went dead")

    answer, _ = await answer_of(_with(agent(call("pay", to="bob"), told), pay))
    assert answer.startswith("The outcome is unknown (OSError: the line went dead)")
    assert called == ["bob"]


async def test_an_agent_is_a_tool_of_another() -> None:
    """A call of an agent is a run of its own, whose answer is told."""
    helper = hf.Agent("helper", model=ScriptedModel("seven"), description="Knows numbers.")
    clerk = _with(agent(call("helper", message="which?"), told), helper)
    async with hf.testing.open(hf.App(clerk, helper)) as runtime:
        assert await runtime.run(clerk, "hello") == "seven"


async def test_a_child_that_fails_is_told_to_the_model() -> None:
    """A failing agent does not take the one that called it along."""
    helper = hf.Agent("helper", model=ScriptedModel(ModelRefused("no such key")))
    clerk = _with(agent(call("helper", message="which?"), told), helper)
    async with hf.testing.open(hf.App(clerk, helper)) as runtime:
        assert "no such key" in await runtime.run(clerk, "hello")


async def test_an_agent_that_finds_no_end_is_stopped_at_its_turn_limit() -> None:
    """The model may be asked so often in one run, and the error says so by its type."""
    clerk = _with(agent(*[call("add", a=1, b=1)] * 9), add, turn_limit=3)
    with pytest.raises(hf.RunError, match="TurnLimit: clerk asked its model 3 times") as caught:
        await answer_of(clerk)
    assert caught.value.error is not None
    assert caught.value.error["code"] == "turn_limit"


async def test_a_busy_model_is_asked_again_when_it_said_and_the_cut_attempt_is_recorded() -> None:
    """A 429 waits as long as it says; what a cut generation took anyway stands in the journal."""
    clerk = agent((ModelBusy("slow down", retry_after=120.0), ModelCut("cut", usage=Usage(input=7)), "here"))
    async with hf.testing.open(hf.App(clerk)) as runtime:
        before = runtime.clock()
        run = await runtime.start(clerk, "hello")
        assert await run.result(timeout=LIMIT_SECONDS) == "here"
        assert runtime.clock() - before >= 120_000_000
        failed = [entry for entry in await entries_of(run) if isinstance(entry, e.StepFailed)]
    assert [entry.error.type for entry in failed] == ["ModelBusy", "ModelCut"]
    assert failed[1].usage is not None
    assert failed[1].usage["input"] == 7


async def test_a_refusing_model_is_not_asked_again() -> None:
    """A wrong key stays wrong: the run fails at once, with the provider's words."""
    model = ScriptedModel(ModelRefused("no such key"))
    with pytest.raises(hf.RunError, match="ModelRefused: no such key"):
        await answer_of(hf.Agent("clerk", model=model))
    assert len(model.requests) == 1


async def test_what_a_generation_took_and_which_model_answered_stand_beside_its_message() -> None:
    """Usage is recorded with the message, as far as it is known, and nothing that is not."""
    reply = Reply(Message(ASSISTANT, (Text("hi"),)), Usage(input=5, output=2, cost=900), model="m-1")
    async with hf.testing.open(hf.App(clerk := agent(reply))) as runtime:
        run = await runtime.start(clerk, "hello")
        await run.result(timeout=LIMIT_SECONDS)
        entry = (await entries_of(run))[1]
    assert isinstance(entry, e.MessageAdded)
    assert entry.model == "m-1"
    assert entry.usage is not None
    assert (entry.usage["input"], entry.usage["output"], entry.usage["cost"]) == (5, 2, 900)
    assert "cached" not in entry.usage


async def test_a_word_to_a_run_is_heard_before_the_model_is_asked_next() -> None:
    """What was posted while a tool ran is the last thing that the model reads, recorded with who said it."""

    @hf.tool(effect="repeat")
    async def work(step: hf.Step[Any]) -> str:
        await steer(runtime._timed, step.run_id, "make it blue")
        return "worked"

    model = ScriptedModel(call("work"), lambda request: request.messages[-1].text)
    clerk = hf.Agent("clerk", model=model, tools=[work])
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "paint")
        assert await run.result(timeout=LIMIT_SECONDS) == "make it blue"
        heard = [entry for entry in await entries_of(run) if isinstance(entry, e.MessageAdded) and entry.post]
    assert [entry.by for entry in heard] == ["ann"]


async def test_a_word_that_comes_while_the_last_answer_is_written_is_answered_too() -> None:
    """A run does not end over the head of somebody who was told that the run would hear it."""

    known: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def late(request: Any) -> str:
        await steer(runtime._timed, await known, "wait, in blue")
        return "painted red"

    model = ScriptedModel(late, lambda request: f"heard: {request.messages[-1].text}")
    clerk = hf.Agent("clerk", model=model)
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "paint")
        known.set_result(run.id)
        assert await run.result(timeout=LIMIT_SECONDS) == "heard: wait, in blue"
        roles = [message.role for message in await said_in(run)]
    assert roles == ["user", "assistant", "user", "assistant"]


async def test_an_agent_called_inside_another_function_is_refused_with_what_to_write() -> None:
    """Two loops in one journal could not be told apart: the turn is a run of its own."""
    clerk = agent("hi")

    @hf.durable
    async def inline(ctx: hf.Context) -> str:
        return await clerk(ctx, "hello")

    async with hf.testing.open(hf.App(clerk, inline)) as runtime:
        with pytest.raises(hf.RunError, match=r"use ctx\.run\(clerk, message\)"):
            await runtime.run(inline)


async def test_the_transcript_of_a_cancelled_turn_leaves_no_call_without_an_answer() -> None:
    """The next turn sends what was said in this one: a call without a result would be refused by every provider."""

    @hf.tool(needs_approval=True)
    def pay(to: str) -> str:
        return to

    clerk = _with(agent([call("pay", to="bob"), call("add", a=1, b=2)], "done"), pay, add)
    async with hf.testing.open(hf.App(clerk), clock=MovingClock(), jumps=False) as runtime:
        run = await runtime.start(clerk, "pay")
        await asked(run)
        await run.cancel()
        with pytest.raises(hf.RunError):
            await run.result(timeout=LIMIT_SECONDS)
        said = await said_in(run)
    texts = {result.name: result.text for result in results_of(said)}
    assert texts == {"pay": "It was not run: the turn ended before it.", "add": "3"}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: hf.Agent("a", model=3), "model= is a model"),  # type: ignore[call-overload]
        (lambda: hf.Agent("a", model="x:y", turn_limit=0), "turn_limit="),
        (lambda: hf.Agent("a", model="x:y", tools="abc"), "tools= is a list"),
        (lambda: hf.Agent("a", model="x:y", tools=[add, add, hf.tool(name="add")(lambda: 1)]), "two tools"),
        (lambda: hf.Agent("a", model="x:y", on_change="x"), "on_change="),  # type: ignore[call-overload]
        (lambda: hf.Agent("a", model="x:y", instructions=3), "instructions="),  # type: ignore[call-overload]
    ],
)
def test_what_means_nothing_is_refused_where_the_agent_is_made(wrong: Callable[[], Any], said: str) -> None:
    """A slip is told where it stands, not when a run is under way."""
    with pytest.raises(hf.HoldfastError, match=said):
        wrong()


def test_the_version_of_an_agent_follows_what_its_model_is_told() -> None:
    """Another instruction or tool is another version; the same ones are the same, in any process."""
    one = _with(agent("a"), add, instructions="be kind")
    same = _with(agent("b"), add, instructions="be kind")
    assert one.code == same.code
    assert one.code != _with(agent("a"), add, instructions="be quick").code
    assert one.code != _with(agent("a"), add, fail, instructions="be kind").code
