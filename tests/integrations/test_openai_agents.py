"""A run of the OpenAI Agents SDK inside a durable run: its model and tools are steps, its approvals questions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from agents import (
    Agent,
    LocalShellTool,
    Model,
    ModelProvider,
    ModelResponse,
    OpenAIResponsesModel,
    RunConfig,
    RunContextWrapper,
    SQLiteSession,
    ToolOutputText,
    Usage,
    function_tool,
    handoff,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from openai import AsyncOpenAI
from pydantic import BaseModel

import holdfast as hf
from holdfast.integrations.openai_agents import HoldfastSession, ToolPolicy, current_step, run, session_change
from holdfast.integrations.openai_agents.response import stored
from holdfast.testing import every_crash
from tests.integrations.people import answered
from tests.rigs.provider import Answer, Fault, Provider

LIMIT_SECONDS = 20.0
QUIET = RunConfig(tracing_disabled=True)
REPEATED: dict[str, ToolPolicy] = {"look": {"effect": "repeat"}, "note": {"effect": "keyed"}}
Say = Callable[[list[str]], str | Sequence[Any]]


class Speaker(Model):
    """A model that says something to what it was told of its calls."""

    def __init__(self, say: Say) -> None:
        self._say = say

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        told = [str(item["output"]) for item in input if isinstance(item, dict) and "output" in item]
        said = self._say(told)
        output = [assistant_message(said)] if isinstance(said, str) else list(said)
        usage = Usage(requests=1, input_tokens=20, output_tokens=5, total_tokens=25)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


def calls(*names: str) -> list[Any]:
    """Return a call of each of these tools, about order 42."""
    return [function_call(name, {"order": "42"}, call_id=f"call-{name}") for name in names]


def once(*names: str) -> Say:
    """Return what calls these tools beside each other, and then repeats what it was told."""
    return lambda told: " | ".join(told) if told else calls(*names)


@function_tool
async def look(order: str) -> str:
    """Look an order up."""
    await asyncio.sleep(0)
    return f"order {order}: broken"


@function_tool
def note(order: str) -> str:
    """Note something."""
    return "noted" if current_step().idempotency_key else ""


@function_tool
def refund(order: str) -> str:
    """Pay money back."""
    return f"paid for {order}"


@function_tool(needs_approval=True)
def close(order: str) -> str:
    """Close an order."""
    return f"closed {order}"


@function_tool(needs_approval=True)
def burn(order: str) -> str:
    """Burn an order."""
    return f"burnt {order}"


def clerk(say: Say, **options: Any) -> Agent[Any]:
    """Return an agent with a tool of each kind."""
    return Agent(name="clerk", model=Speaker(say), tools=[look, note, refund, close, burn], **options)


def ticket_of(agent: Agent[Any], **options: Any) -> hf.Durable[list[Any], [str]]:
    """Return a durable function that lets an agent answer: what it says, what was said, and what that took."""

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> list[Any]:
        result = await run(ctx, agent, text, **{"run_config": QUIET, "policies": REPEATED, **options})
        final = result.final_output
        said = final.model_dump() if isinstance(final, BaseModel) else final
        return [said, result.to_input_list(), result.context_wrapper.usage.total_tokens]

    return ticket


async def played(agent: Agent[Any], **options: Any) -> tuple[list[Any], list[hf.Event]]:
    """Return what an agent answers in a run of its own, and the run's events."""
    ticket = ticket_of(agent, **options)
    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        started = await runtime.start(ticket, "It broke.")
        result = await started.result(timeout=LIMIT_SECONDS)
        return result, [event async for event in started.events(follow=False)]


def steps(events: Sequence[hf.Event]) -> list[str]:
    """Return the steps that were completed, in order."""
    return [event.step for event in events if isinstance(event, hf.events.StepCompleted)]


async def test_whichever_write_its_worker_dies_around_the_run_says_the_same() -> None:
    """Tools beside each other: the same answer, items and usage after each crash, and nothing is done again."""
    survived = await every_crash(ticket_of(clerk(once("look", "note"))), "It broke.")
    assert survived.crashes > 8
    assert survived.unbroken.result[0] == "order 42: broken | noted"
    assert survived.unbroken.result[2] == 50


async def test_of_a_once_tool_that_died_the_model_is_told_that_nobody_knows() -> None:
    """A payment is never made twice, and the call beside it has its result."""
    unknown: list[str] = []
    agent = clerk(once("refund", "look"))

    @hf.durable
    async def ticket(ctx: hf.Context, text: str) -> str:
        return str((await run(ctx, agent, text, run_config=QUIET, policies=REPEATED)).final_output)

    def as_told(ended: hf.testing.Ended) -> bool:
        if ended.doubted:
            unknown.append(ended.result)
            return "The outcome is unknown (the process died" in ended.result and "42: broken" in ended.result
        return bool(ended.result == "paid for 42 | order 42: broken")

    await every_crash(ticket, "It broke.", allow_doubt=True, check=as_told)
    assert unknown


async def test_calls_that_need_approval_are_questions_to_people() -> None:
    """Both are asked at once, the run rests meanwhile, and what was refused is told to the model with the reason."""
    ticket = ticket_of(clerk(once("close", "burn", "look")))
    async with hf.testing.open(app=hf.App(ticket)) as runtime:
        started = await runtime.start(ticket, "It broke.")
        events = await answered(runtime, started, lambda question: question.show["tool"] != "burn")
        said, *_ = await started.result(timeout=LIMIT_SECONDS)
    assert said.split(" | ") == ["order 42: broken", "closed 42", "It was not called: a person refused it."]
    asked = [event for event in events if isinstance(event, hf.events.QuestionAsked)]
    assert len(asked) == 2
    assert sorted(steps(events)) == [
        "0/gather#1.3/look#1", "0/gather#3.1/close#1", "0/model#1", "0/model#2",
    ]  # fmt: skip


async def test_whoever_it_is_handed_over_to_is_durable_too() -> None:
    """The tools and the model of another agent are steps, however the handoff and the model are named."""

    class Names(ModelProvider):
        def get_model(self, model_name: str | None) -> Model:
            assert model_name == "by name"
            return Speaker(lambda told: told[1] if len(told) > 1 else calls("look"))

    payer = Agent(name="payer", model="by name", tools=[look])
    seen: list[int] = []

    def handed(context: RunContextWrapper[Any]) -> None:
        seen.append(1)

    first = Agent(
        name="first", handoffs=[handoff(payer, on_handoff=handed)],
        model=Speaker(lambda told: [function_call("transfer_to_payer", {}, call_id="h1")]),
    )  # fmt: skip
    config = RunConfig(tracing_disabled=True, model_provider=Names())
    (said, *_), events = await played(first, run_config=config)
    assert (said, seen) == ("order 42: broken", [1])
    assert steps(events) == ["0/model#1", "0/model#2", "0/look#1", "0/model#3"]


async def test_an_output_of_a_type_is_checked_by_the_sdk() -> None:
    """The answer comes as the type that was asked for, live and replayed."""

    class Verdict(BaseModel):
        broken: bool

    (said, *_), _ = await played(clerk(lambda told: '{"broken": true}', output_type=Verdict))
    assert said == {"broken": True}


async def test_what_would_be_done_twice_is_refused() -> None:
    """Another session, a conversation at the provider, MCP servers and tools that act on this machine."""
    plain = clerk(lambda told: "hello")
    session = SQLiteSession("ann")
    shell = Agent(name="shell", tools=[LocalShellTool(executor=lambda request: "")])
    asked: list[tuple[Agent[Any], dict[str, Any], str]] = [
        (plain, {"session": session}, "session= is a HoldfastSession"),
        (plain, {"conversation_id": "conv_1"}, "conversation_id= keeps the conversation at the provider"),
        (plain, {"policies": {"look": {"effekt": "once"}}}, "what is said of tool 'look' is a dict of effect"),
        (shell, {}, "LocalShellTool of agent 'shell' acts on this machine"),
        (plain.clone(mcp_servers=[object()]), {}, "has mcp_servers, whose tools are not steps"),
    ]
    for agent, options, why in asked:
        with pytest.raises(hf.RunError, match=why):
            await played(agent, **options)
    session.close()


async def test_a_busy_provider_is_asked_again_by_durable_retries(provider: Provider) -> None:
    """Each refusal stands in the journal, and one generation is charged, asked for as a stream or as a whole."""
    async with AsyncOpenAI(base_url=provider.openai_url, api_key="none", max_retries=0) as client:
        agent = Agent(name="clerk", model=OpenAIResponsesModel("clerk", client))
        for previews in (False, True):
            provider.says("clerk", Fault(status=429), Answer(tokens=("all ", "is ", "well")))
            (said, _, tokens), events = await played(agent, previews=previews)
            assert (said, tokens) == ("all is well", 23)
            assert [type(event) for event in events if "Step" in type(event).__name__] == [
                hf.events.StepFailed, hf.events.StepCompleted,
            ]  # fmt: skip
    assert len(provider.made("clerk")) == 2


async def test_with_previews_whoever_follows_the_run_sees_the_answer_while_it_comes() -> None:
    """The words of the model are previews of its step: they are seen before the answer has come to its end."""
    seen = asyncio.Event()

    class Slow(ScriptedModel):
        async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
            async for event in super().stream_response(*args, **options):
                yield event
                if event.type == "response.output_text.delta":
                    await seen.wait()

    ticket = ticket_of(Agent(name="clerk", model=Slow([[assistant_message("all is well")]])), previews=True)
    async with hf.open("memory://", hf.App(ticket)) as runtime:
        started = await runtime.start(ticket, "It broke.")
        async with asyncio.timeout(LIMIT_SECONDS):
            async for event in started.events():
                if isinstance(event, hf.events.Chunk):
                    assert (event.step, event.value["kind"]) == ("0/model#1", "text")
                    seen.set()
        assert (await started.result(timeout=LIMIT_SECONDS))[0] == "all is well"
    assert seen.is_set()


def test_what_a_tool_returns_is_kept_as_its_model_is_told() -> None:
    """Data as it is, the SDK's own outputs as data, anything else as the text that the SDK would make of it."""

    class Order:
        def __str__(self) -> str:
            return "order 42"

    assert stored({"a": [1, None, "x"]}) == {"a": [1, None, "x"]}
    assert stored(ToolOutputText(text="hello")) == {"type": "text", "text": "hello"}
    assert stored([ToolOutputText(text="hello")]) == [{"type": "text", "text": "hello"}]
    assert stored((1, 2)) == "(1, 2)"
    assert stored(Order()) == "order 42"
    assert stored(float("nan")) == "nan"


async def test_a_run_keeps_no_copy_of_what_it_read_in_its_session() -> None:
    """A conversation costs its own bytes, however many runs go on with it: a run records how far it has read."""
    ticket = ticket_of(clerk(once("look")))

    @hf.durable
    async def chat(ctx: hf.Context, text: str) -> int:
        result = await run(ctx, clerk(once("look")), text, session=HoldfastSession("ann", runtime), run_config=QUIET)
        return len(result.to_input_list())

    async with hf.testing.open(app=hf.App(ticket, chat, session_change)) as runtime:
        await HoldfastSession("ann", runtime).add_items([{"role": "user", "content": "x" * 100_000}])
        started = await runtime.start(chat, "It broke.")
        assert await started.result(timeout=LIMIT_SECONDS) == 5
        events = [event async for event in started.events(follow=False)]
    assert sum(len(bytes(getattr(event, "raw", b""))) for event in events) < 10_000
