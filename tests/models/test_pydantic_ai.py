"""Models of pydantic-ai behave as all others: whole answers or none, and three ways to fail."""

from collections.abc import Callable
from itertools import count

import pytest
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.agent.model import ModelBusy, ModelCut, ModelRefused, Request, ToolSpec
from holdfast.agent.providers import web
from holdfast.core.message import Message, Text, ToolCall, ToolResult
from holdfast.models import PydanticAI
from tests.models.speech import CALLING, FIFTY, HELLO, attempt
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn
from tests.rigs.provider.turn import CUTS, Cut, Flaw

_names = (f"theirs-{number}" for number in count())


@pytest.fixture(params=["openai", "anthropic"])
async def model(request: pytest.FixtureRequest, provider: Provider) -> Callable[[], tuple[str, PydanticAI]]:
    """Make a model over our own connections, and say by which name the provider knows it."""
    http = await web.client()

    def made(*, stall_seconds: float = 30.0) -> tuple[str, PydanticAI]:
        name = next(_names)
        if request.param == "openai":
            over = OpenAIProvider(base_url=provider.openai_url, api_key="k", http_client=http)
            return name, PydanticAI(OpenAIChatModel(name, provider=over), stall_seconds=stall_seconds)
        by = AnthropicProvider(base_url=provider.url, api_key="k", http_client=http)
        return name, PydanticAI(AnthropicModel(name, provider=by), stall_seconds=stall_seconds)

    return made


Made = Callable[..., tuple[str, PydanticAI]]


async def test_an_answer_with_calls_comes_whole(model: Made, provider: Provider) -> None:
    """Text, calls, pieces and usage are those that were said, and the conversation can go on from them."""
    name, asked = model()
    provider.says(name, CALLING, FIFTY)
    made = await attempt(
        asked, Request("Be brief.", HELLO.messages, tools=[ToolSpec("look", "Look.", {"type": "object"})])
    )
    assert made.reply is not None
    assert made.reply.message.calls == tuple(ToolCall(call.id, call.name, call.arguments) for call in CALLING.calls)
    assert made.said == made.reply.message.text == CALLING.text
    assert (made.reply.usage.input, made.reply.usage.output, made.reply.stop) == (20, 12, "calls")
    results = [Message("tool", (ToolResult(call.id, call.name, "the sea"),)) for call in CALLING.calls]
    more = await attempt(asked, Request("Be brief.", [*HELLO.messages, made.reply.message, *results]))
    assert more.reply is not None
    assert more.reply.message.text == FIFTY.text
    assert provider.heard[name][1].body.count(b"the sea") == 2


@pytest.mark.parametrize("cut", CUTS)
async def test_an_answer_that_is_cut_is_no_answer(model: Made, provider: Provider, cut: Cut) -> None:
    """In its middle and just before its end: a cut, of which watchers saw a beginning.

    Only a stream that lacks nothing but its terminator may pass, whole: the layer below does not tell of it.
    """
    for after in (25, 50):
        name, asked = model(stall_seconds=0.25 if cut == "stall" else 30.0)
        provider.says(name, Turn(FIFTY, Fault(cut=cut, after=after)))
        made = await attempt(asked)
        assert FIFTY.text.startswith(made.said)
        if after == 50 and cut in ("silent", "end") and made.reply is not None:
            assert made.reply.message.text == FIFTY.text
        else:
            assert isinstance(made.error, ModelCut), (after, made)


@pytest.mark.parametrize("flaw", ["half_call", "half_call_fin"])
async def test_half_a_call_is_no_call(model: Made, provider: Provider, flaw: Flaw) -> None:
    """Nothing of half a call reaches a tool by this way either."""
    name, asked = model()
    provider.says(name, Turn(CALLING, Fault(flaw=flaw)))
    assert isinstance((await attempt(asked)).error, ModelCut)


@pytest.mark.parametrize("arguments", ["", '{"at": "th'])
async def test_a_length_that_is_used_up_within_a_call_is_no_answer(
    model: Made, provider: Provider, arguments: str
) -> None:
    """It is refused by this way too, by the setting's name; a call that ended in order may lack a word of arguments."""
    name, asked = model()
    half = Answer(tokens=["I ", "look."], calls=[Call("c1", "look", arguments)], short=True)
    provider.says(name, half, Answer(calls=[Call("c1", "wait", "")]))
    refused, waiting = (await attempt(asked)).error, (await attempt(asked)).reply
    assert isinstance(refused, ModelRefused)
    assert "max_tokens" in str(refused)
    assert waiting is not None
    assert waiting.message.calls == (ToolCall("c1", "wait", "{}"),)


async def test_thoughts_go_back_as_they_came(model: Made, provider: Provider) -> None:
    """What only the provider understands is kept in its own form, and sent to it again."""
    name, asked = model()
    provider.says(name, Answer(tokens=["So."], reasoning=["Hm, ", "well."]), FIFTY)
    made = await attempt(asked)
    assert made.reply is not None
    again = Request("Be brief.", [*HELLO.messages, made.reply.message, Message("user", (Text("Why?"),))])
    assert (await attempt(asked, again)).error is None
    assert b"Hm, well." in provider.heard[name][1].body


async def test_a_refusal_is_told_apart_from_being_busy_and_is_sent_once(model: Made, provider: Provider) -> None:
    """429 asks to come back when the provider said, 400 never; the layer below retries neither."""
    name, asked = model()
    provider.says(name, Fault(status=429, headers={"retry-after": "7"}), Fault(status=400))
    busy, refused = (await attempt(asked)).error, (await attempt(asked)).error
    assert isinstance(busy, ModelBusy)
    assert busy.retry_after == 7
    assert isinstance(refused, ModelRefused)
    assert "it says 400" in str(refused)
    assert len(provider.heard[name]) == 2


async def test_a_model_without_a_provider_answers() -> None:
    """pydantic-ai's own model for tests works too, though it never says why it finished."""
    made = await attempt(PydanticAI(TestModel(custom_output_text="As told.")))
    assert made.reply is not None
    assert made.reply.message.text == made.said == "As told."


async def test_a_name_that_pydantic_ai_does_not_know_is_refused() -> None:
    """Its own words say what is wrong with a name."""
    made = await attempt(PydanticAI("nobody:nothing"))
    assert isinstance(made.error, ModelRefused)
    assert "nobody" in str(made.error)
