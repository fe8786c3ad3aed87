"""The rig keeps generations as the providers do, as their official SDKs read them."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from google import genai
from google.genai import _interactions as theirs

from holdfast.agent.providers import web
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Answer, Fault, Provider, Turn

THOUGHTFUL = Answer(tokens=["So ", "be it."], reasoning=["Hm, ", "well."])
_ASKED: Any = {"input": "Hello?", "background": True, "store": True}


@pytest.fixture
async def responses(provider: Provider) -> Any:
    """The responses of OpenAI's client, strict about what it reads."""
    sdk = openai.AsyncOpenAI(
        api_key="k", base_url=provider.openai_url, max_retries=0, http_client=await web.client(),
        _strict_response_validation=True,
    )  # fmt: skip
    return sdk.responses


@pytest.fixture
async def interactions(provider: Provider) -> AsyncIterator[Any]:
    """The interactions of Google's client."""
    options: Any = {"base_url": provider.url, "retry_options": {"attempts": 1}}
    client = genai.Client(api_key="k", http_options=options)
    async with client.aio as sdk:
        yield sdk.interactions
    client.close()


async def test_openai_goes_on_from_a_response_and_streams_the_rest_of_one(responses: Any, provider: Provider) -> None:
    """In the background: an id first, the rest after a sequence number, results of calls, and the chain in order."""
    provider.says("kept", Turn(CALLING, Fault(cut="fin", after_events=4)), THOUGHTFUL)
    seen: list[Any] = []
    with suppress(openai.APIConnectionError):
        async for event in await responses.create(model="kept", stream=True, **_ASKED):
            seen.append(event)
    assert len(seen) == 4
    first = seen[0].response.id
    rest = await responses.retrieve(first, stream=True, starting_after=seen[-1].sequence_number)
    seen += [event async for event in rest]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert (await responses.retrieve(first)).to_dict() == seen[-1].response.to_dict()
    results: Any = [{"type": "function_call_output", "call_id": call.id, "output": "the sea"} for call in CALLING.calls]
    asked = {**_ASKED, "input": results, "previous_response_id": first}
    with pytest.raises(openai.BadRequestError, match="the results are of"):
        await responses.create(model="kept", **{**asked, "input": results[:1]})
    second = await responses.create(model="kept", **asked)
    assert (second.output_text, second.previous_response_id) == (THOUGHTFUL.text, first)
    assert [made.previous for made in provider.made("kept")] == [None, first]


async def test_google_goes_on_from_an_interaction_and_streams_the_rest_of_one(
    interactions: Any, provider: Provider
) -> None:
    """In the background: an id first, the rest after an event's id, results of calls, and the chain in order."""
    provider.says("gemini", Turn(CALLING, Fault(cut="end", after_events=4)), THOUGHTFUL)
    seen = [event async for event in await interactions.create(model="gemini", stream=True, **_ASKED)]
    first = seen[0].interaction.id
    seen += [event async for event in await interactions.get(first, stream=True, last_event_id=seen[-1].event_id)]
    assert [event.event_id for event in seen] == [f"ev_{number}" for number in range(len(seen))]
    assert all(not getattr(event, "is_unknown", False) for event in seen)
    assert (seen[-1].event_type, seen[-1].interaction.status) == ("interaction.completed", "requires_action")
    whole = await interactions.get(first)
    assert whole.output_text == CALLING.text
    assert [step.arguments for step in whole.steps if step.type == "function_call"] == [{"at": "the é sea"}, {}]
    results = [{"type": "function_result", "call_id": call.id, "result": "the sea"} for call in CALLING.calls]
    asked = {**_ASKED, "input": results, "previous_interaction_id": first}
    with pytest.raises(theirs.BadRequestError, match="the results are of"):
        await interactions.create(model="gemini", **{**asked, "input": results[:1]})
    second = await interactions.create(model="gemini", **asked)
    assert (second.output_text, second.previous_interaction_id) == (THOUGHTFUL.text, first)
    assert [made.previous for made in provider.made("gemini")] == [None, first]


@pytest.mark.parametrize("ending", [Answer(tokens=["So"], short=True), Answer(fails=True)])
async def test_both_read_what_ended_otherwise(
    responses: Any, interactions: Any, provider: Provider, ending: Answer
) -> None:
    """Incomplete and failed are told by the last event and by the resource, in both formats."""
    wanted = "incomplete" if ending.short else "failed"
    provider.says("ending", ending, ending)
    events = [event async for event in await responses.create(model="ending", stream=True, **_ASKED)]
    assert (events[-1].type, events[-1].response.status) == (f"response.{wanted}", wanted)
    assert (await responses.retrieve(events[-1].response.id)).status == wanted
    events = [event async for event in await interactions.create(model="ending", stream=True, **_ASKED)]
    assert (events[-1].event_type, events[-1].interaction.status) == ("interaction.completed", wanted)
    assert (await interactions.get(events[-1].interaction.id)).status == wanted


async def test_both_cancel_what_is_under_way(responses: Any, interactions: Any, provider: Provider) -> None:
    """What thinks in the background is in progress until it is cancelled, and stays cancelled."""
    provider.says("slow", Turn(FIFTY, holds_after=5), Turn(FIFTY, holds_after=5))
    response = await responses.create(model="slow", **_ASKED)
    assert response.status == "in_progress"
    assert [(await responses.cancel(response.id)).status, (await responses.retrieve(response.id)).status] == [
        "cancelled",
        "cancelled",
    ]
    interaction = await interactions.create(model="slow", **_ASKED)
    assert interaction.status == "in_progress"
    assert [(await interactions.cancel(interaction.id)).status, (await interactions.get(interaction.id)).status] == [
        "cancelled",
        "cancelled",
    ]


async def test_both_know_the_refusals(responses: Any, interactions: Any, provider: Provider) -> None:
    """Busy, unknown and broken are to them what they are to us, and what failed after its making was made."""
    busy, broken = Fault(status=429, headers={"retry-after": "1"}), Fault(status=500, created=True)
    provider.says("refusing", busy, broken, busy, broken)
    with pytest.raises(openai.RateLimitError):
        await responses.create(model="refusing", **_ASKED)
    with pytest.raises(openai.InternalServerError):
        await responses.create(model="refusing", **_ASKED)
    with pytest.raises(theirs.RateLimitError):
        await interactions.create(model="refusing", **_ASKED)
    with pytest.raises(theirs.InternalServerError):
        await interactions.create(model="refusing", **_ASKED)
    with pytest.raises(openai.NotFoundError):
        await responses.retrieve("resp_absent")
    with pytest.raises(theirs.NotFoundError):
        await interactions.get("v1_absent")
    assert len(provider.made("refusing")) == 2


async def test_without_a_background_nothing_goes_on_unheard(responses: Any, provider: Provider) -> None:
    """A stream that is cut ends its generation, as the providers do it; nobody can listen to the rest."""
    provider.says("fleeting", Turn(FIFTY, Fault(cut="end", after_events=4)))
    events = [event async for event in await responses.create(model="fleeting", stream=True, input="Hello?")]
    with pytest.raises(openai.BadRequestError):
        await responses.retrieve(events[0].response.id, stream=True)
    assert (await responses.retrieve(events[0].response.id)).status == "cancelled"
