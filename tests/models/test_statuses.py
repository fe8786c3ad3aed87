"""What a provider says instead of an answer is one of three things, with when to come back."""

import socket
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.agent.lane import Window
from holdfast.agent.model import ModelBusy, ModelCut, ModelError, ModelRefused
from holdfast.agent.pace import PACE
from holdfast.agent.rate import retry_after, seen_in
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Usage
from holdfast.core.retry import asked_seconds
from holdfast.models import Anthropic, OpenAI
from tests.models.makers import KEY, Make, named
from tests.models.speech import FIFTY, Attempt, attempt
from tests.rigs.provider import Fault, Provider, Turn
from tests.rigs.provider.frame import event

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


async def failed(make: Make, provider: Provider, *faults: Fault) -> Attempt:
    """Ask a new model once, which fails like this."""
    model = make()
    provider.says(named(model), *faults)
    made = await attempt(model)
    assert len(provider.heard[named(model)]) == 1
    assert made.error is not None
    return made


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *((status, ModelRefused) for status in (400, 401, 403, 404, 413, 422, 302)),
        *((status, ModelBusy) for status in (409, 429, 503, 529)),
        *((status, ModelCut) for status in (408, 500, 502, 504)),
    ],
)
async def test_a_status_is_one_of_three_answers(
    make: Make, provider: Provider, status: int, kind: type[ModelError]
) -> None:
    """It is asked once, and the error says the status and the provider's own words."""
    error = (await failed(make, provider, Fault(status=status))).error
    assert type(error) is kind
    assert error.status == status
    assert f"{status}: it says {status}" in str(error)


async def test_a_failure_after_the_generation_was_made_is_charged_as_unknown(make: Make, provider: Provider) -> None:
    """500 may come after the work: the attempt counts as cut, with a usage that nobody knows."""
    error = (await failed(make, provider, Fault(status=500, created=True))).error
    assert isinstance(error, ModelCut)
    assert error.usage == Usage()


async def test_a_quota_that_is_used_up_is_not_waited_for(make: Make, provider: Provider) -> None:
    """OpenAI says 429 to whoever has no money left; to come back does not help."""
    body = b'{"error": {"message": "no money", "type": "insufficient_quota", "code": "insufficient_quota"}}'
    assert isinstance((await failed(make, provider, Fault(status=429, body=body))).error, ModelRefused)


@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'"no"', b"[]", b"\xff\xfe"])
async def test_a_refusal_in_any_form_is_told(make: Make, provider: Provider, body: bytes) -> None:
    """A gateway's page in place of JSON breaks nothing."""
    error = (await failed(make, provider, Fault(status=400, body=body))).error
    assert isinstance(error, ModelRefused)


async def test_nobody_at_the_address_is_busy_and_nothing_was_sent() -> None:
    """A refused connection is asked again: nothing was generated."""
    with socket.create_server(("127.0.0.1", 0)) as once:
        port = once.getsockname()[1]
    for model in (
        OpenAI("m", base_url=f"http://127.0.0.1:{port}"),
        Anthropic("m", key="k", base_url=f"http://127.0.0.1:{port}"),
    ):
        error = (await attempt(model)).error
        assert isinstance(error, ModelBusy)
        assert error.usage is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Sun, 15 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Sun, 15 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"x-ratelimit-reset": "1s"}, 1.0),
        ({"x-ratelimit-reset-requests": "6m0s"}, 300.0),
        ({"x-ratelimit-reset-requests": "1m2.5s"}, 62.5),
        ({"x-ratelimit-reset-tokens": "250ms"}, 0.25),
        ({"x-ratelimit-reset": str(int((NOW + timedelta(seconds=40)).timestamp()))}, 40.0),
        ({"x-ratelimit-reset": str(int((NOW + timedelta(seconds=40)).timestamp() * 1000))}, 40.0),
        ({"anthropic-ratelimit-requests-reset": "2026-11-15T12:00:20Z"}, 20.0),
        ({"retry-after": "86400"}, 300.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"x-ratelimit-reset": "9" * 30}, None),
        ({}, None),
        (
            {
                "x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "2s",
                "x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "8s",
            },
            8.0,
        ),
    ],
)  # fmt: skip
async def test_every_form_of_when_to_come_back_is_understood_and_capped(
    make: Make, provider: Provider, headers: dict[str, str], seconds: float | None
) -> None:
    """Seconds, dates, spans and times since 1970, in the headers of either provider, from a real 429."""
    error = (await failed(make, provider, Fault(status=429, headers=headers))).error
    assert isinstance(error, ModelBusy)
    assert error.retry_after == retry_after(headers)
    assert asked_seconds(error, NOW) == seconds


async def test_what_a_reply_says_of_its_rate_reaches_the_line_of_its_lane(make: Make, provider: Provider) -> None:
    """After a reply that says that nothing is left, the next request waits for as long as it said."""
    model = make()
    headers = {
        "x-ratelimit-limit-requests": "1",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "50s",
    }
    provider.says(named(model), Turn(FIFTY, headers=headers), FIFTY)
    assert PACE.before(model.lane, "first", clock=lambda: 0) is None
    assert (await attempt(model)).error is None
    again_at = PACE.before(model.lane, "second", clock=lambda: 0)
    assert again_at is not None
    assert 45_000_000 < again_at <= 55_000_000
    PACE.leave(model.lane, "second")


def test_headers_of_both_providers_say_the_same() -> None:
    """Limit, remaining and reset of requests and tokens, whatever they are called."""
    openai = {
        "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "9000", "x-ratelimit-remaining-tokens": "8000", "x-ratelimit-reset-tokens": "10s",
    }  # fmt: skip
    anthropic = {
        "anthropic-ratelimit-requests-limit": "60", "anthropic-ratelimit-requests-remaining": "59",
        "anthropic-ratelimit-requests-reset": "2026-11-15T12:00:01Z", "anthropic-ratelimit-tokens-limit": "9000",
        "anthropic-ratelimit-tokens-remaining": "8000", "anthropic-ratelimit-tokens-reset": "2026-11-15T12:00:10Z",
    }  # fmt: skip
    seen = seen_in(openai, busy=False, now=NOW)
    assert (seen.requests, seen.tokens) == (Window(60, 59, 1.0), Window(9000, 8000, 10.0))
    assert seen_in(anthropic, busy=False, now=NOW) == seen


async def test_a_key_is_in_no_error_and_no_name(make: Make, provider: Provider) -> None:
    """Not even where the provider repeats it to whoever sent a wrong one."""
    model = make()
    body = f'{{"error": {{"message": "wrong key: {KEY}", "type": "authentication_error"}}}}'.encode()
    provider.says(named(model), Fault(status=401, body=body))
    error = (await attempt(model)).error
    assert isinstance(error, ModelRefused)
    assert "wrong key: [key]" in str(error)
    assert not any(KEY in text for text in (str(error), repr(error), repr(model), model.name, model.lane))


async def test_a_key_is_in_no_error_that_comes_in_a_stream(make: Make, provider: Provider) -> None:
    """A provider that repeats it there is left out as well, wherever its words are cut off."""
    model = make()
    said = event({"type": "error", "error": {"type": "api_error", "message": f"{'x' * 1990} {KEY}"}}, name="error")
    provider.says(named(model), Turn(FIFTY, Fault(cut="error", body=said)))
    error = (await attempt(model)).error
    assert isinstance(error, ModelCut)
    assert str(error).endswith("x [key]")


@pytest.mark.parametrize("wrong", [f"{KEY}\nand", f"{KEY}\x7f", f"{KEY}é"])
async def test_a_key_that_no_header_can_carry_is_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch, provider: Provider, wrong: str
) -> None:
    """When it is given, and when it is found; and a header's value is kept back in the same way."""
    for made, variable in ((OpenAI, "OPENAI_API_KEY"), (Anthropic, "ANTHROPIC_API_KEY")):
        for options in ({"key": wrong}, {"headers": {"x-key": wrong}}, {"headers": {wrong: "x"}}):
            with pytest.raises(InvalidInput) as refused:
                made("m", **options)
            assert KEY not in str(refused.value)
        monkeypatch.setenv(variable, wrong)
        error = (await attempt(made("m", base_url=provider.url))).error
        assert isinstance(error, ModelRefused)
        assert variable in str(error)
        assert KEY not in str(error)


async def test_a_header_that_is_refused_on_its_way_is_not_told(provider: Provider) -> None:
    """What the network's own check repeats of it is left out: here a value that begins with a space."""
    for model in (
        OpenAI("m", base_url=provider.openai_url, headers={"x-key": f" {KEY}"}),
        Anthropic("m", key="k", base_url=provider.url, headers={"x-key": f" {KEY}"}),
    ):
        error = (await attempt(model)).error
        assert isinstance(error, ModelRefused)
        assert "what HTTP cannot carry" in str(error)
        assert KEY not in str(error)


async def test_a_model_without_a_key_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent to a provider that wants a key."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for model, variable in ((OpenAI("m"), "OPENAI_API_KEY"), (Anthropic("m"), "ANTHROPIC_API_KEY")):
        error = (await attempt(model)).error
        assert isinstance(error, ModelRefused)
        assert variable in str(error)


async def test_a_provider_that_takes_a_request_and_says_nothing_is_cut() -> None:
    """Not even a status comes: after its patience the attempt is lost, since the request may have been answered."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        asked = (
            OpenAI("m", base_url=address, first_seconds=0.1),
            Anthropic("m", key="k", base_url=address, stall_seconds=0.1),
        )
        for model in asked:
            error = (await attempt(model)).error
            assert isinstance(error, ModelCut)
            assert "silent" in str(error)


def test_a_password_in_an_address_is_told_to_nobody() -> None:
    """Neither a name nor a lane shows more of an address than where it is."""
    for model in (OpenAI("m", base_url="http://me:hush@host:1/v1"), Anthropic("m", base_url="http://me:hush@host:1")):
        assert "hush" not in repr(model) + model.lane
        assert "host:1" in model.lane
