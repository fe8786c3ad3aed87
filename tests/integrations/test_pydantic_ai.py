"""A pydantic-ai agent inside a durable run: what it does are steps, and what it says is what it would say anyway."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    FunctionToolset,
    ModelRetry,
    RunContext,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.exceptions import ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.toolsets import DynamicToolset

import holdfast as hf
from holdfast.integrations.pydantic_ai import HoldfastDurability, current_step, durably
from holdfast.testing import every_crash
from tests.integrations.people import answered
from tests.integrations.pydantic_clerk import told

LIMIT_SECONDS = 20.0
Say = Callable[[list[ModelMessage]], str | Sequence[ToolCallPart]]


def speaks(say: Say, asked: list[int] | None = None) -> FunctionModel:
    """Return a model that says this to what it is asked, as a whole or as a stream."""

    def parts(messages: list[ModelMessage]) -> list[Any]:
        if asked is not None:
            asked.append(len(messages))
        said = say(messages)
        return [TextPart(said)] if isinstance(said, str) else list(said)

    async def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=parts(messages))

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        for index, part in enumerate(parts(messages)):
            if isinstance(part, TextPart):
                for word in part.content.split(" "):
                    yield f"{word} "
            else:
                yield {index: DeltaToolCall(part.tool_name, part.args_as_json_str(), tool_call_id=part.tool_call_id)}

    return FunctionModel(whole, stream_function=stream)


def calls(*names: str) -> list[ToolCallPart]:
    """Return a call of each of these tools, about order 42."""
    return [ToolCallPart(name, {"order": "42"}, tool_call_id=f"call-{name}") for name in names]


def returned(messages: Sequence[ModelMessage]) -> list[str]:
    """Return what the model was told of its calls."""
    return [str(part.content) for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]


def once(*names: str) -> Say:
    """Return what calls these tools beside each other, and then repeats what it was told."""
    return lambda messages: " | ".join(returned(messages)) if len(messages) > 1 else calls(*names)


def ticket_of(agent: Agent[None, Any]) -> hf.Durable[list[Any], [str]]:
    """Return a durable function that lets an agent answer."""

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> list[Any]:
        result = await durably(ctx, agent.run(text))
        return [result.output, told(result.all_messages())]

    return ticket


def answer_of(agent: Agent[None, Any]) -> hf.Durable[Any, [str]]:
    """Return a durable function that returns what an agent answers, without its history."""

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> Any:
        return (await durably(ctx, agent.run(text))).output

    return ticket


def clerk(say: Say, **options: Any) -> Agent[None, Any]:
    """Return an agent with a tool of each effect."""
    agent: Agent[None, Any] = Agent(speaks(say), name="clerk", capabilities=[HoldfastDurability(**options)])

    @agent.tool_plain(metadata={"holdfast": {"effect": "repeat"}})
    async def look(order: str) -> str:
        await asyncio.sleep(0)
        return f"order {order}: broken"

    @agent.tool_plain(metadata={"holdfast": {"effect": "keyed"}})
    def note(order: str) -> str:
        return "noted" if current_step().idempotency_key else ""

    @agent.tool_plain
    def refund(order: str) -> str:
        return f"paid for {order}"

    return agent


async def test_whichever_write_its_worker_dies_around_the_agent_says_the_same() -> None:
    """Tools beside each other: the same answer and history after each crash, and nothing recorded is done again."""
    survived = await every_crash(ticket_of(clerk(once("look", "note"))), "It broke.")
    assert survived.crashes > 8
    assert survived.unbroken.result[0] == "order 42: broken | noted "


async def test_of_a_once_tool_that_died_the_model_is_told_that_nobody_knows() -> None:
    """A payment is never made twice, and the call beside it has its result."""
    unknown: list[str] = []

    def as_told(ended: hf.testing.Ended) -> bool:
        text: str = ended.result
        if ended.doubted:
            unknown.append(text)
            return "The outcome is unknown (the process died" in text and "order 42: broken" in text
        return text == "paid for 42 | order 42: broken "

    await every_crash(answer_of(clerk(once("refund", "look"))), "It broke.", allow_doubt=True, check=as_told)
    assert unknown


async def played(agent: Agent[None, Any]) -> tuple[Any, list[hf.Event]]:
    """Return what an agent answers in a run of its own, and the run's events."""
    ticket = answer_of(agent)
    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        result = await run.result(timeout=LIMIT_SECONDS)
        return result, [event async for event in run.events(follow=False)]


async def test_a_once_tool_that_raises_is_in_doubt_and_a_repeat_tool_that_raises_fails_the_run() -> None:
    """Nobody knows how much of a payment was made; of what changes nothing, the error is the run's."""
    agent = clerk(once("break_once"))
    seen: list[int] = []

    @agent.tool_plain
    def break_once(order: str) -> str:
        seen.append(1)
        raise RuntimeError("the bank hung up")

    answer, _ = await played(agent)
    assert "The outcome is unknown (RuntimeError: the bank hung up" in answer
    assert seen == [1]

    failing = clerk(once("break_always"))

    @failing.tool_plain(metadata={"holdfast": {"effect": "repeat", "retry": {"attempts": 2}}})
    def break_always(order: str) -> str:
        seen.append(2)
        raise RuntimeError("no such order")

    with pytest.raises(hf.RunError, match="RuntimeError: no such order"):
        await played(failing)
    assert seen == [1, 2, 2]


async def test_a_call_in_doubt_may_wait_for_a_person_who_gives_its_result() -> None:
    """With `in_doubt="wait"` the run rests, and what somebody found out is what the tool returned."""
    agent = clerk(once("pay"))

    @agent.tool_plain(metadata={"holdfast": {"in_doubt": "wait"}})
    def pay(order: str) -> str:
        raise RuntimeError("the bank hung up")

    ticket = answer_of(agent)
    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in run.events():
                if isinstance(event, hf.events.RunParked):
                    break
        await run.resolve("0/clerk.pay#1", "paid, says the bank", by="ann")
        assert await run.result(timeout=LIMIT_SECONDS) == "paid, says the bank "


async def test_a_busy_model_is_asked_again_by_durable_retries() -> None:
    """Each refusal stands in the journal, and the third answer is the only one that counts."""
    asked: list[int] = []

    def say(messages: list[ModelMessage]) -> str:
        if len(asked) < 3:
            raise ModelHTTPError.for_category(ModelRateLimitError, status_code=429, model_name="clerk", retry_after=3.0)
        return "hello"

    agent: Agent[None, str] = Agent(speaks(say, asked), name="clerk", capabilities=[HoldfastDurability()])
    answer, events = await played(agent)
    assert answer == "hello "
    assert len([event for event in events if isinstance(event, hf.events.StepFailed)]) == 2


async def test_whoever_follows_the_run_sees_the_answer_while_it_comes() -> None:
    """The words of the model are previews of its step: the first is seen before the second is said."""
    seen = asyncio.Event()

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        yield "all is "
        await seen.wait()
        yield "well"

    agent = Agent(FunctionModel(stream_function=stream), name="clerk", capabilities=[HoldfastDurability()])
    ticket = answer_of(agent)
    async with hf.open("memory://", hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in run.events():
                if isinstance(event, hf.events.Chunk):
                    assert (event.step, event.value) == ("0/clerk.model#1", {"kind": "text", "text": "all is "})
                    seen.set()
        assert await run.result(timeout=LIMIT_SECONDS) == "all is well"


async def test_a_handler_of_events_hears_the_model_and_the_tools() -> None:
    """The user's own handler gets what it would get outside of a run."""
    heard: list[str] = []

    async def hear(ctx: RunContext[None], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            heard.append(type(event).__name__)

    await played(clerk(once("look"), event_stream_handler=hear, previews=False))
    assert PartDeltaEvent.__name__ in heard
    assert FunctionToolCallEvent.__name__ in heard


async def test_outside_of_a_run_and_inside_of_a_step_the_agent_is_a_plain_one() -> None:
    """The capability is not there: nothing is recorded, and an agent that a tool asks is part of the tool's step."""
    inner = clerk(once("look"))
    assert (await inner.run("It broke.")).output == "order 42: broken"
    outer = clerk(once("delegate"))

    @outer.tool_plain
    async def delegate(order: str) -> str:
        return (await inner.run(order)).output

    answer, events = await played(outer)
    assert answer == "order 42: broken "
    steps = [event.step for event in events if isinstance(event, hf.events.StepCompleted)]
    assert steps == ["0/clerk.model#1", "0/clerk.delegate#1", "0/clerk.model#2"]


async def test_a_toolset_that_is_made_anew_is_listed_once_however_often_the_run_is_resumed() -> None:
    """What it had when it was asked is recorded before each generation, and its tools are steps."""

    def changing(ctx: RunContext[None]) -> FunctionToolset[None]:
        toolset = FunctionToolset[None](id="inner")

        @toolset.tool_plain(metadata={"holdfast": {"effect": "repeat"}})
        def look_up(order: str) -> str:
            return f"found {order}"

        return toolset

    agent: Agent[None, Any] = Agent(
        speaks(once("look_up")), name="clerk", toolsets=[DynamicToolset(changing, id="changing")],
        capabilities=[HoldfastDurability()],
    )  # fmt: skip
    survived = await every_crash(answer_of(agent), "It broke.")
    assert survived.unbroken.result == "found 42 "
    assert list(survived.unbroken.performed) == [
        "0/clerk.tools.changing#1", "0/clerk.model#1", "0/clerk.look_up#1", "0/clerk.tools.changing#2",
        "0/clerk.model#2",
    ]  # fmt: skip


async def test_what_is_asked_of_the_output_is_asked_by_pydantic_ai_and_recorded() -> None:
    """An answer of the wrong form, and a tool that asks for another try, each lead to another generation."""

    class Verdict(BaseModel):
        broken: bool

    def say(messages: list[ModelMessage]) -> list[ToolCallPart]:
        if len(messages) == 1:
            return calls("ask_again")
        verdict: Any = "who knows" if len(messages) == 3 else True
        return [ToolCallPart("final_result", {"broken": verdict}, f"call-{len(messages)}")]

    agent: Agent[None, Verdict] = Agent(
        speaks(say), name="clerk", output_type=Verdict, capabilities=[HoldfastDurability()]
    )

    @agent.tool_plain
    def ask_again(order: str) -> str:
        raise ModelRetry("which order?")

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> Verdict:
        return (await durably(ctx, agent.run(text))).output

    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        assert await run.result(timeout=LIMIT_SECONDS) == Verdict(broken=True)
        events = [event async for event in run.events(follow=False)]
    assert [event.step for event in events if isinstance(event, hf.events.StepCompleted)] == [
        "0/clerk.model#1", "0/clerk.ask_again#1", "0/clerk.model#2", "0/clerk.model#3",
    ]  # fmt: skip


async def test_approved_calls_are_made_beside_each_other_by_the_next_run_of_the_agent() -> None:
    """The agent stops for approval, a person decides, and the calls that were agreed to are steps like any other."""
    agent: Agent[None, Any] = Agent(
        speaks(once("refund", "close", "burn")), name="clerk", output_type=[str, DeferredToolRequests],
        capabilities=[HoldfastDurability()],
    )  # fmt: skip
    for name in ("refund", "close", "burn"):

        @agent.tool_plain(name=name, requires_approval=True, metadata={"holdfast": {"effect": "repeat"}})
        async def act(order: str) -> str:
            await asyncio.sleep(0)
            return f"done in {current_step().attempt}"

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> str:
        result = await durably(ctx, agent.run(text))
        said: dict[str, Any] = {}
        for call in result.output.approvals:
            yes = await ctx.ask(f"Call {call.tool_name}?", show=call.args)
            said[call.tool_call_id] = ToolApproved() if yes else ToolDenied("no")
        again = agent.run(
            message_history=result.all_messages(), deferred_tool_results=DeferredToolResults(approvals=said)
        )
        return (await durably(ctx, again)).output

    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        events = await answered(runtime, run, lambda question: "burn" not in question.text)
        assert await run.result(timeout=LIMIT_SECONDS) == "done in 1 | done in 1 | no "
    steps = {event.step for event in events if isinstance(event, hf.events.StepCompleted)}
    assert steps >= {"0/gather#1.1/clerk.refund#1", "0/gather#1.2/clerk.close#1"}


async def test_agents_go_on_beside_each_other_in_branches() -> None:
    """Two agents in one run, each with a place of its own in the journal."""
    first, second = clerk(once("look", "note")), clerk(once("note", "look"))

    @hf.durable
    async def both(ctx: hf.Context) -> list[str]:
        said = await ctx.gather(durably(ctx, first.run("one")), durably(ctx, second.run("two")))
        return [each.output for each in said]

    async with hf.testing.open(app=hf.App(both)) as runtime:
        run = await runtime.start(both)
        result = await run.result(timeout=LIMIT_SECONDS)
    assert result == ["order 42: broken | noted ", "noted | order 42: broken "]


async def test_a_cancelled_run_cuts_off_the_tool_that_it_is_in() -> None:
    """The tool is told by a cancellation, in the task that pydantic-ai called it in, and has ended before the run."""
    began, cut = asyncio.Event(), asyncio.Event()
    agent = clerk(once("hang"))

    @agent.tool_plain
    async def hang(order: str) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cut.set()
        return "never"

    ticket = answer_of(agent)
    async with hf.open("memory://", hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        async with asyncio.timeout(LIMIT_SECONDS):
            await began.wait()
            await run.cancel(reason="enough")
            with pytest.raises(hf.RunError, match="cancelled"):
                await run.result()
        assert cut.is_set()


async def test_a_tool_that_takes_too_long_is_cut_off_and_tried_again() -> None:
    """The time of a step is the tool's: the second attempt is made by the same call."""
    attempts: list[int] = []
    agent = clerk(once("slow"))

    @agent.tool_plain(metadata={"holdfast": {"effect": "repeat", "timeout": 1.5, "retry": {"attempts": 2}}})
    async def slow(order: str) -> str:
        attempts.append(current_step().attempt)
        if len(attempts) == 1:
            await asyncio.Event().wait()
        return "at last"

    ticket = answer_of(agent)
    async with hf.open("memory://", hf.App(ticket)) as runtime:
        run = await runtime.start(ticket, "It broke.")
        assert await run.result(timeout=LIMIT_SECONDS) == "at last "
    assert attempts == [1, 2]


async def test_what_is_said_of_a_tool_and_means_nothing_is_refused() -> None:
    """A word that nobody knows would leave a tool with another effect than its author thinks."""
    agent = clerk(once("typo"))

    @agent.tool_plain(metadata={"holdfast": {"efect": "repeat"}})
    def typo(order: str) -> str:
        return ""

    with pytest.raises(hf.RunError, match="what is said of tool 'typo' is a dict of effect"):
        await played(agent)
