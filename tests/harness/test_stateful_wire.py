"""The formats of Interactions and Responses: what is sent is what the SDKs would send, and events are folded once."""

from typing import Any

import msgspec
import pytest
from google.genai import interactions as google
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from holdfast.agent.harness import Ask, CursorInvalid, Ended, Event, Known, Start, Told
from holdfast.agent.harnesses.interactions import Interactions
from holdfast.agent.harnesses.responses import Responses
from holdfast.agent.harnesses.wire import Wire
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused, TextPiece, ToolSpec
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Text, ToolResult
from holdfast.harness import GeminiInteractions, OpenAIResponses
from tests.harness.conftest import Kept, MakeKept
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Answer, Fault, Provider, Turn
from tests.rigs.provider import interactions as rig_interactions
from tests.rigs.provider import responses as rig_responses
from tests.rigs.provider.generation import Generation, Stateful

IMAGE = Media("image/png", url="data:image/png;base64,AAAA")
MESSAGES = (
    Message("user", (Text("Look."), IMAGE)),
    Message("tool", (ToolResult("c1", "look", "the sea"), ToolResult("c2", "wait", "no", error=True))),
    Message("user", (Text("And?"),)),
)
START = Start(
    instructions="Be brief.",
    tools=[ToolSpec("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})],
    output={"type": "object"},
    settings={"seed": 7, "max_output_tokens": 9, "service_tier": "flex"},
)
ASK = Ask(messages=MESSAGES[2:])
WIRES: list[tuple[Wire, Stateful]] = [
    (Responses(), rig_responses.Responses()),
    (Interactions(), rig_interactions.Interactions()),
]


async def heard(events: Any) -> list[Event]:
    """Return all events until they end or are cut."""
    found: list[Event] = []
    try:
        async for event in events:
            found.append(event)
    except ModelCut:
        pass
    return found


def said(events: list[Event]) -> str:
    """Return what the pieces say."""
    return "".join(one.piece.text for one in events if isinstance(one, Told) and isinstance(one.piece, TextPiece))


def datas(dialect: Stateful, answer: Answer, previous: str | None = None) -> list[str]:
    """Return the data of all events of an answer."""
    frames = dialect.events(Generation("id_1", "m", {}, answer, previous), half_call=False)
    return [frame.bytes.decode().partition("data: ")[2].strip() for frame in frames]


def test_google_takes_what_is_sent() -> None:
    """The SDK's own type of a request reads it, and knows all of it; settings stand where they belong."""
    sent = msgspec.json.decode(Interactions().body("gemini-x", START, MESSAGES, "v1_7"))
    read = google.CreateModelInteraction.model_validate(sent)
    steps: Any = read.input
    assert [step.type for step in steps] == ["user_input", "function_result", "function_result", "user_input"]
    assert [part.type for part in steps[0].content] == ["text", "image"]
    assert (steps[2].is_error, steps[1].call_id) == (True, "c1")
    assert (read.background, read.store, read.stream, read.previous_interaction_id) == (True, True, True, "v1_7")
    assert sent["generation_config"] == {"max_output_tokens": 9, "seed": 7}
    assert (read.service_tier, read.system_instruction) == ("flex", "Be brief.")
    assert read.model_dump(mode="json", by_alias=True, exclude_none=True) == sent


def test_openai_takes_what_is_sent() -> None:
    """The SDK's own type of a request reads it; what it does not know would be refused."""
    start = msgspec.structs.replace(START, settings={"temperature": 0.5, "max_output_tokens": 9})
    sent = msgspec.json.decode(Responses().body("gpt-x", start, MESSAGES, "resp_7"))
    TypeAdapter(ResponseCreateParamsStreaming).validate_python(sent)
    assert [item.get("type", "message") for item in sent["input"]] == [
        "message", "function_call_output", "function_call_output", "message",
    ]  # fmt: skip
    assert (sent["background"], sent["store"], sent["previous_response_id"]) == (True, True, "resp_7")
    assert (sent["temperature"], sent["max_output_tokens"], sent["text"]["format"]["type"]) == (0.5, 9, "json_schema")
    unknown = set(sent) - set(ResponseCreateParamsStreaming.__annotations__)
    assert unknown == set()


@pytest.mark.parametrize(("wire", "dialect"), WIRES)
def test_events_that_come_again_add_nothing(wire: Wire, dialect: Stateful) -> None:
    """A stream may begin anew at any event: what was taken is passed over, at every place."""
    told = datas(dialect, CALLING)
    whole = wire.fold("m", None)
    pieces = [piece for data in told for piece in whole.take(data)]
    for place in range(len(told)):
        fold = wire.fold("m", None)
        first = [piece for data in told[:place] for piece in fold.take(data)]
        assert first + [piece for data in told for piece in fold.take(data)] == pieces
        assert fold.ended() == whole.ended()


@pytest.mark.parametrize(("wire", "dialect"), WIRES)
def test_what_is_looked_up_is_what_was_streamed(wire: Wire, dialect: Stateful) -> None:
    """Message, calls, usage and cursor are the same, whichever way they came."""
    generation = Generation("id_1", "m", {}, Answer(tokens=["So."], reasoning=["Hm."], calls=CALLING.calls), None)
    generation.frames = dialect.events(generation, half_call=False)
    streamed, looked = wire.fold("m", None), wire.fold("m", None)
    for data in datas(dialect, generation.answer):
        list(streamed.take(data))
    generation.grow(3)
    looked.look(msgspec.json.encode(dialect.resource(generation)))
    assert not looked.over
    generation.grow(len(generation.frames))
    looked.look(msgspec.json.encode(dialect.resource(generation)))
    assert (streamed.over, looked.over, streamed.sure) == (True, True, True)
    assert msgspec.structs.replace(streamed.ended(), id="") == looked.ended()
    assert looked.ended().usage.input == 20


@pytest.mark.parametrize(("wire", "dialect"), WIRES)
def test_a_provider_that_ignores_the_previous_generation_is_found_out(wire: Wire, dialect: Stateful) -> None:
    """Some servers take the field and keep nothing: a turn without its context is no completion."""
    fold = wire.fold("m", "id_0")
    generation = Generation("id_1", "m", {}, FIFTY, None)
    generation.frames = dialect.events(generation, half_call=False)
    generation.grow(len(generation.frames))
    resource = {**dialect.resource(generation), f"previous_{wire.word}_id": None}
    fold.look(msgspec.json.encode(resource))
    ended = fold.ended()
    assert (ended.how, ended.cursor) == ("failed", None)
    assert "does not keep conversations" in ended.why


@pytest.mark.parametrize(("wire", "dialect"), WIRES)
def test_events_of_another_generation_are_no_events_of_this_one(wire: Wire, dialect: Stateful) -> None:
    """A proxy that mixes streams up does not mix up answers."""
    fold = wire.fold("m", None)
    list(fold.take(datas(dialect, FIFTY)[0]))
    with pytest.raises(msgspec.ValidationError, match="tells of"):
        list(fold.take(datas(dialect, FIFTY)[0].replace("id_1", "id_2").replace("ev_0", "ev_9").replace(": 0", ": 9")))


async def test_a_session_that_was_cut_asks_for_what_is_behind_the_last_event(
    kept: MakeKept, provider: Provider
) -> None:
    """By its id, and no piece is told twice; the id is the first that is told."""
    name, harness = kept()
    provider.says(name, Turn(FIFTY, Fault(cut="fin", after_events=20), holds_after=25))
    session = await harness.open(Start())
    first = await heard(session.create(ASK))
    assert isinstance(first[0], Known)
    rest = await heard(session.attach(ASK, first[0].handle, first[-1].id))
    assert said(first) + said(rest) == FIFTY.text
    assert said(first)
    asked = provider.heard[name][-1].query
    assert asked.get("starting_after") == first[-1].id or asked.get("last_event_id") == first[-1].id
    again = await heard(session.attach(ASK, first[0].handle, None))
    assert again == [rest[-1]] or (len(again) == 1 and isinstance(again[0], Ended))
    await session.close()


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault(status=429, headers={"retry-after": "7"}), ModelBusy),
        (Fault(status=400), ModelRefused),
        (Fault(status=401), ModelRefused),
        (Fault(status=503), ModelCut),
        (Fault(status=529), ModelCut),
        (Fault(status=408), ModelCut),
        (Fault(status=500, body=b"the key is sk-unseen"), ModelCut),
    ],
)
async def test_only_a_refusal_before_the_creation_says_that_nothing_was_created(
    kept: MakeKept, provider: Provider, fault: Fault, kind: type[ModelError]
) -> None:
    """Whatever may come from a machine in between is no proof; and no error tells the key."""
    name, harness = kept()
    provider.says(name, fault)
    session = await harness.open(Start())
    with pytest.raises(kind) as raised:
        await anext(aiter(session.create(ASK)))
    assert type(raised.value) is kind
    assert "sk-unseen" not in str(raised.value) + repr(harness)
    if fault.headers:
        assert raised.value.retry_after == 7


@pytest.mark.parametrize("cursor", [{"session": "s1"}, {"response": 7}, {"interaction": ""}, "resp_1", 4])
async def test_a_cursor_of_somebody_else_is_refused(kept: MakeKept, cursor: Any) -> None:
    """Nothing is begun anew in the place of what cannot be read."""
    _, harness = kept()
    with pytest.raises(CursorInvalid):
        await harness.open(Start(cursor=cursor))


@pytest.mark.parametrize("made", [OpenAIResponses, GeminiInteractions])
async def test_what_means_nothing_is_refused_where_it_is_written(
    made: type[Kept], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without a name, a doubt without a policy, a key that no header carries; and no key at all when opened."""
    with pytest.raises(InvalidInput):
        made("")
    with pytest.raises(InvalidInput, match="in_doubt"):
        made("m", in_doubt="perhaps")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="key"):
        made("m", key="two\nlines")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ModelRefused, match="has no key: set"):
        await made("m").open(Start())


@pytest.mark.parametrize(
    ("start", "message"),
    [(Start(), Message("user", (Media("image/png"),))), (Start(settings={"seed": object()}), MESSAGES[2])],
)
async def test_what_cannot_be_sent_is_refused_and_not_doubted(
    kept: MakeKept, provider: Provider, start: Start, message: Message
) -> None:
    """Media without an address, or a setting that is no data: nothing went out, so that nothing may have happened."""
    name, harness = kept()
    session = await harness.open(start)
    with pytest.raises(ModelRefused, match="cannot be asked"):
        await anext(aiter(session.create(Ask(messages=[message]))))
    assert provider.heard[name] == []
