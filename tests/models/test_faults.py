"""Whatever a provider does to a stream, there is a whole message or none."""

from dataclasses import replace

import pytest

from holdfast.agent.model import ModelCut, ModelRefused
from holdfast.agent.providers.openai import OpenAI
from holdfast.agent.providers.sse import Events
from holdfast.core.message import ToolCall
from tests.models.makers import IMPATIENT, PATIENT, Make, named
from tests.models.speech import CALLING, FIFTY, attempt, attempts
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn
from tests.rigs.provider.turn import CUTS, Cut, Flaw


async def test_an_answer_comes_whole_and_its_pieces_are_the_answer(make: Make, provider: Provider) -> None:
    """Nothing goes wrong: text, pieces, usage and stop are those that were said."""
    model = make()
    provider.says(named(model), FIFTY)
    made = await attempt(model)
    assert made.reply is not None
    assert made.said == made.reply.message.text == FIFTY.text
    assert (made.reply.usage.input, made.reply.usage.output, made.reply.stop) == (20, 50, "end")


@pytest.mark.parametrize("cut", CUTS)
async def test_an_answer_that_is_cut_after_any_token_is_no_answer(make: Make, provider: Provider, cut: Cut) -> None:
    """For every k of 50 tokens: a cut, of which watchers saw a beginning of the answer and nothing else."""
    models = [make(IMPATIENT if cut == "stall" else PATIENT) for _ in range(51)]
    for after, model in enumerate(models):
        provider.says(named(model), Turn(FIFTY, Fault(cut=cut, after=after)))
    for after, made in enumerate(await attempts(models)):
        assert isinstance(made.error, ModelCut), (after, made)
        assert made.error.usage is not None
        assert FIFTY.text.startswith(made.said)
        # A reset may overtake what was sent before it, and a busy machine may look like a silent provider.
        assert cut in ("rst", "stall") or made.said == "".join(FIFTY.tokens[:after]), (after, made.error)


@pytest.mark.parametrize("flaw", ["unterminated", "half_call", "half_call_fin"])
async def test_half_a_call_is_no_call(make: Make, provider: Provider, flaw: Flaw) -> None:
    """A stream that ends within a call, in order or not, or that lacks its end, gives no message with calls."""
    model = make()
    provider.says(named(model), Turn(CALLING, Fault(flaw=flaw)))
    made = await attempt(model)
    assert isinstance(made.error, ModelCut)


@pytest.mark.parametrize("flaw", ["doubled", "split_utf8"])
async def test_an_odd_stream_is_read_all_the_same(make: Make, provider: Provider, flaw: Flaw) -> None:
    """An end that is said twice, and characters that the network splits, change nothing."""
    model = make()
    provider.says(named(model), Turn(CALLING, Fault(flaw=flaw)), Turn(FIFTY, Fault(flaw=flaw)))
    calling, fifty = await attempt(model), await attempt(model)
    assert calling.reply is not None
    assert calling.reply.stop == "calls"
    assert [(call.id, call.name, call.arguments) for call in calling.reply.message.calls] == [
        (call.id, call.name, call.arguments) for call in CALLING.calls
    ]
    assert calling.called == "".join(call.arguments for call in CALLING.calls)
    assert fifty.reply is not None
    assert fifty.reply.message.text == FIFTY.text


async def test_a_reply_that_is_not_streamed_is_read_too(provider: Provider) -> None:
    """An endpoint that cannot stream answers in one piece."""
    provider.says("at-once", CALLING)
    made = await attempt(OpenAI("at-once", base_url=provider.openai_url, stream=False))
    assert made.reply is not None
    assert made.said == made.reply.message.text == CALLING.text
    assert [call.arguments for call in made.reply.message.calls] == [call.arguments for call in CALLING.calls]
    assert provider.heard["at-once"][0].json["stream"] is False


@pytest.mark.parametrize("arguments", ["", '{"at": "th'])
async def test_a_length_that_is_used_up_within_a_call_is_no_answer(
    make: Make, provider: Provider, arguments: str
) -> None:
    """Asking again would end there again, so it is refused, by the setting's name; what it took is known."""
    model = make()
    provider.says(named(model), Answer(tokens=["I ", "look."], calls=[Call("c1", "look", arguments)], short=True))
    made = await attempt(model)
    assert isinstance(made.error, ModelRefused), made.reply
    assert "max_tokens" in str(made.error)
    assert made.error.usage is not None
    assert (made.error.usage.input, made.error.usage.output) == (20, 7)


async def test_a_length_that_is_used_up_after_the_calls_keeps_them(make: Make, provider: Provider) -> None:
    """A call that came whole is one, and a text that is short stands."""
    model = make()
    provider.says(named(model), replace(CALLING, short=True), replace(FIFTY, short=True))
    calling, fifty = await attempt(model), await attempt(model)
    assert calling.reply is not None
    assert (len(calling.reply.message.calls), calling.reply.stop) == (2, "length")
    assert fifty.reply is not None
    assert (fifty.reply.message.text, fifty.reply.stop) == (FIFTY.text, "length")


async def test_a_call_for_which_nothing_is_written_has_no_arguments(make: Make, provider: Provider) -> None:
    """A call ends whole without a word of arguments, where the answer itself ended in order."""
    model = make()
    provider.says(named(model), Answer(calls=[Call("c1", "wait", "")]))
    made = await attempt(model)
    assert made.reply is not None
    assert made.reply.message.calls == (ToolCall("c1", "wait", "{}"),)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_their_bytes_are_cut(end: str) -> None:
    """Every way to split a stream in two gives the same events, whichever ends its lines have."""
    text = "event: x\ndata: one é\ndata: two\n\n: a comment\n\ndata:three\n\ndata: not whole".replace(
        "\n", end
    ).encode()
    for place in range(len(text) + 1):
        events = Events()
        assert [*events.feed(text[:place]), *events.feed(text[place:])] == ["one é\ntwo", "three"], place
