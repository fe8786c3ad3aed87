"""What is sent: the same bytes for the same request, over connections that are used again."""

import asyncio
import json
import os
from itertools import pairwise

import msgspec
import pytest
from msgspec import Raw

from holdfast.agent.model import Request, ToolSpec
from holdfast.agent.providers import web
from holdfast.core.message import Media, Message, Text, ToolCall, ToolResult
from holdfast.models import OpenAI
from tests.models.makers import KEY, Asked, Make, maker, named
from tests.models.speech import CALLING, FIFTY, HELLO, attempt, attempts
from tests.rigs.provider import Answer, Provider

LOOK = ToolSpec("look", "Look at it.", {"type": "object", "properties": {"at": {"type": "string"}}})
SAID = Message("assistant", (Text("I look."), ToolCall("c1", "look", '{"at": "é"}'), ToolCall("c2", "look", "{oops")))
RESULTS = [
    Message("tool", (ToolResult("c1", "look", "the sea"),)),
    Message("tool", (ToolResult("c2", "look", "no such place", error=True),)),
]
LONG = Request(
    "Be brief.",
    [*HELLO.messages, SAID, *RESULTS, Message("user", (Text("And?"),))],
    tools=[LOOK],
    output={"type": "object"},
    settings={"temperature": 0.5, "max_tokens": 100},
)


async def sent(model: Asked, provider: Provider, request: Request) -> bytes:
    """Return the body of a request as the provider heard it."""
    await attempt(model, request)
    return provider.heard[named(model)][-1].body


async def test_the_same_request_has_the_same_bytes_whoever_builds_it(make: Make, provider: Provider) -> None:
    """A request that went through a journal, with settings in another order, is the same on the wire."""
    model = make()
    copied = msgspec.json.decode(msgspec.json.encode(LONG), type=Request)
    turned = msgspec.structs.replace(copied, settings={"max_tokens": 100, "temperature": 0.5}, key="another")
    bodies = [await sent(model, provider, request) for request in (LONG, copied, turned)]
    assert bodies[0] == bodies[1] == bodies[2]


async def test_a_conversation_that_goes_on_begins_with_the_same_bytes(make: Make, provider: Provider) -> None:
    """What was sent before is a prefix of what is sent now, so that a provider's cache is hit."""
    model = make()
    bodies = [
        await sent(model, provider, msgspec.structs.replace(LONG, messages=LONG.messages[:length]))
        for length in (1, 2, 4, 5)
    ]
    heads = [body[: body.index(b'"messages":')] for body in bodies]
    assert len(set(heads)) == 1
    told = [json.loads(body)["messages"] for body in bodies]
    for before, after in pairwise(told):
        assert after[: len(before)] == before


async def test_calls_and_results_reach_the_provider_in_its_form(make: Make, provider: Provider) -> None:
    """Every call has its result, and what the model wrote wrongly can still be sent."""
    model = make()
    await attempt(model, LONG)
    asked = provider.heard[named(model)][-1].json
    if isinstance(model, OpenAI):
        assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
        assert [call["function"]["arguments"] for call in asked["messages"][2]["tool_calls"]] == [
            '{"at": "é"}',
            "{oops",
        ]
        assert [message["tool_call_id"] for message in asked["messages"][3:5]] == ["c1", "c2"]
        assert asked["response_format"]["json_schema"]["schema"] == {"type": "object"}
        assert asked["tools"][0]["function"]["parameters"] == LOOK.schema
    else:
        assert asked["system"] == "Be brief."
        assert [block.get("input") for block in asked["messages"][1]["content"]] == [
            None,
            {"at": "é"},
            {"written": "{oops"},
        ]
        assert [block["tool_use_id"] for block in asked["messages"][2]["content"]] == ["c1", "c2"]
        assert asked["messages"][2]["content"][1]["is_error"] is True
        assert asked["output_config"]["format"]["schema"] == {"type": "object"}
        assert asked["tools"][0]["input_schema"] == LOOK.schema
    assert (asked["temperature"], asked["max_tokens"]) == (0.5, 100)


async def test_an_image_is_sent_by_its_address(make: Make, provider: Provider) -> None:
    """Media goes where its address says, or within it."""
    model = make()
    for url in ("https://example.test/a.png", "data:image/png;base64,AAAA"):
        await attempt(model, Request("", [Message("user", (Text("See:"), Media("image/png", url=url)))]))
        content = provider.heard[named(model)][-1].json["messages"][-1]["content"]
        assert url.removeprefix("data:image/png;base64,") in json.dumps(content[1])


async def test_what_only_the_provider_understands_goes_back_to_it_alone(provider: Provider) -> None:
    """Signed thoughts are kept verbatim and sent again to Anthropic, and to nobody else."""
    model = maker("anthropic", provider)()
    provider.says(named(model), Answer(tokens=["So."], reasoning=["Hm, ", "well."], calls=CALLING.calls))
    made = await attempt(model)
    assert made.reply is not None
    assert [part.__class__.__name__ for part in made.reply.message.parts] == [
        "Reasoning",
        "Text",
        "ToolCall",
        "ToolCall",
    ]
    again = msgspec.structs.replace(LONG, messages=[*HELLO.messages, made.reply.message])
    await attempt(model, again)
    blocks = provider.heard[named(model)][-1].json["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "Hm, well.", "signature": "c2lnbmVk"}
    assert blocks[2]["input"] == {"at": "the é sea"}
    other = maker("openai", provider)()
    assert b"Hm" not in await sent(other, provider, again)


async def test_a_native_message_of_an_endpoint_goes_back_verbatim(provider: Provider) -> None:
    """An endpoint's own form, where it has more than ours, is what it is sent; that of another host is not."""
    own = Raw(b'{"role":"assistant","content":"So.","reasoning_details":[{"signature":"x"}]}')
    said = Message("assistant", (Text("So."),), native=own, provider="openai@127.0.0.1")
    model = maker("openai", provider)()
    assert bytes(own) in await sent(model, provider, Request("", [*HELLO.messages, said]))
    foreign = msgspec.structs.replace(said, provider="openai@elsewhere.test")
    assert b"signature" not in await sent(model, provider, Request("", [*HELLO.messages, foreign]))


async def test_connections_are_used_again(make: Make, provider: Provider) -> None:
    """Ten answers one after the other need one connection."""
    model = make()
    provider.says(named(model), *[FIFTY] * 10)
    for _ in range(10):
        assert (await attempt(model)).error is None
    assert len({heard.connection for heard in provider.heard[named(model)]}) == 1


def test_connections_belong_to_their_loop_and_end_with_it(make: Make) -> None:
    """Each event loop has its own client, shared by all models, and none is left open when the loop is closed."""
    model = make()

    async def use() -> object:
        await attempts([model, model])
        assert await web.client() is await web.client()
        return await web.client()

    first, second = asyncio.run(use()), asyncio.run(use())
    assert first is not second
    assert all(getattr(client, "is_closed", False) for client in (first, second))


async def test_key_and_address_come_from_the_environment(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given is read when it is needed."""
    model = OpenAI("of-the-environment")
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", KEY)
    monkeypatch.setitem(os.environ, "OPENAI_BASE_URL", provider.openai_url)
    assert (await attempt(model, msgspec.structs.replace(HELLO, key="once-1"))).error is None
    [heard] = provider.heard["of-the-environment"]
    assert heard.headers["authorization"] == f"Bearer {KEY}"
    assert heard.headers["idempotency-key"] == "once-1"
