"""The rig speaks the providers' formats, as their official SDKs read them."""

from typing import Any

import anthropic
import httpx2
import openai
import pytest

from holdfast.agent.providers import web
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Fault, Provider, Turn

HELLO = "Hello?"


@pytest.fixture
async def openai_sdk(provider: Provider) -> openai.AsyncOpenAI:
    """OpenAI's client, strict about what it reads."""
    return openai.AsyncOpenAI(
        api_key="k", base_url=provider.openai_url, max_retries=0, http_client=await web.client(),
        _strict_response_validation=True,
    )  # fmt: skip


@pytest.fixture
async def anthropic_sdk(provider: Provider) -> anthropic.AsyncAnthropic:
    """Anthropic's client, strict about what it reads."""
    return anthropic.AsyncAnthropic(
        api_key="k", base_url=provider.url, max_retries=0, http_client=await web.client(),
        _strict_response_validation=True,
    )  # fmt: skip


async def test_openai_reads_chat_completions(openai_sdk: openai.AsyncOpenAI, provider: Provider) -> None:
    """Streamed and not, text and calls come whole."""
    provider.says("chat", CALLING, CALLING)
    whole = await openai_sdk.chat.completions.create(model="chat", messages=[{"role": "user", "content": HELLO}])
    async with openai_sdk.chat.completions.stream(
        model="chat", messages=[{"role": "user", "content": HELLO}]
    ) as stream:
        streamed = await stream.get_final_completion()
    for completion in (whole, streamed):
        choice: dict[str, Any] = completion.to_dict()["choices"][0]
        calls = [call["function"]["arguments"] for call in choice["message"]["tool_calls"]]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALLING.text, "tool_calls")
        assert calls == [call.arguments for call in CALLING.calls]


async def test_openai_reads_responses(openai_sdk: openai.AsyncOpenAI, provider: Provider) -> None:
    """Streamed and not, text and calls come whole."""
    provider.says("responding", CALLING, CALLING)
    whole = await openai_sdk.responses.create(model="responding", input=HELLO)
    async with openai_sdk.responses.stream(model="responding", input=HELLO) as stream:
        deltas = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        streamed = await stream.get_final_response()
    assert deltas == list(CALLING.tokens)
    for response in (whole, streamed):
        assert response.output_text == CALLING.text
        assert [item.name for item in response.output if item.type == "function_call"] == ["look", "wait"]


async def test_anthropic_reads_messages(anthropic_sdk: anthropic.AsyncAnthropic, provider: Provider) -> None:
    """Streamed and not, text and calls come whole."""
    provider.says("messages", CALLING, CALLING)
    asked: Any = {"model": "messages", "max_tokens": 9, "messages": [{"role": "user", "content": HELLO}]}
    whole = await anthropic_sdk.messages.create(**asked)
    async with anthropic_sdk.messages.stream(**asked) as stream:
        streamed = await stream.get_final_message()
    for message in (whole, streamed):
        told: Any = message.to_dict()
        assert told["content"][0]["text"] == CALLING.text
        assert [block["input"] for block in told["content"][1:]] == [{"at": "the é sea"}, {}]
        assert (told["stop_reason"], told["usage"]["output_tokens"]) == ("tool_use", CALLING.output_tokens)


async def test_the_sdks_know_the_faults_too(
    openai_sdk: openai.AsyncOpenAI, anthropic_sdk: anthropic.AsyncAnthropic, provider: Provider
) -> None:
    """A busy provider and a broken line are to them what they are to us."""
    busy, cut = Fault(status=429, headers={"retry-after": "1"}), Turn(FIFTY, Fault(cut="fin", after=9))
    provider.says("faulty", busy, busy, cut)
    with pytest.raises(openai.RateLimitError):
        await openai_sdk.responses.create(model="faulty", input=HELLO)
    with pytest.raises(anthropic.RateLimitError):
        await anthropic_sdk.messages.create(model="faulty", max_tokens=9, messages=[{"role": "user", "content": HELLO}])
    with pytest.raises((httpx2.RemoteProtocolError, openai.APIConnectionError)):
        async for _ in await openai_sdk.responses.create(model="faulty", input=HELLO, stream=True):
            pass
