"""Turns in a provider's stateful API: tools, limits, cancels and endings of every kind, and what the next turn does."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.message import ToolResult
from holdfast.core.transcript import transcript
from holdfast.harness import OpenAIResponses
from tests.agent.lines import LIMIT_SECONDS, asked, entries_of
from tests.harness.conftest import Kept, MakeKept
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Answer, Call, Fault, Provider, Turn

SHORT = Answer(tokens=["So ", "be ", "it."])
QUICK = hf.Retry(attempts=4, first=0.01)


@hf.tool(effect="repeat")
async def look(at: str) -> str:
    """Look."""
    return f"{at} is blue"


@hf.tool(effect="repeat")
async def wait() -> str:
    """Wait."""
    return "waited"


def clerk(harness: Kept, **options: Any) -> hf.Agent[str]:
    """Return an agent with a few tools."""
    return hf.Agent("clerk", harness=harness, tools=[look, wait], retry=QUICK, **options)


async def ended(run: hf.Run[Any]) -> str:
    """Return why a run failed."""
    with pytest.raises(hf.RunError) as failed:
        await run.result(timeout=LIMIT_SECONDS)
    return str(failed.value)


async def created(run: hf.Run[Any]) -> None:
    """Wait until the id of what was created is on disk."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for event in run.events():
            if isinstance(event, e.CursorMoved) and event.step is not None:
                return


def told(provider: Provider, model: str) -> list[Any]:
    """Return what each creation was given as input."""
    return [one.json["input"] for one in provider.heard[model] if one.method == "POST" and one.body]


async def test_a_run_that_is_cancelled_cancels_what_is_generated_for_it(kept: MakeKept, provider: Provider) -> None:
    """Nobody pays for an answer that nobody wants."""
    name, harness = kept()
    provider.says(name, Turn(FIFTY, holds_after=5))
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Hello?")
        await created(run)
        await run.cancel(reason="no more")
        assert "cancelled" in await ended(run)
    assert [one.cancelled for one in provider.made(name)] == [True]


async def test_a_shutdown_cancels_nothing_and_a_cancel_meanwhile_does(
    kept: MakeKept, provider: Provider, tmp_path: Path
) -> None:
    """What goes on at the provider is cancelled by the next process, if the run was cancelled in between."""
    name, harness = kept()
    provider.says(name, Turn(FIFTY, holds_after=5))
    agent, store = clerk(harness), f"sqlite:///{tmp_path / 'store.db'}"
    async with hf.open(store, hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Hello?", key="once")
        await created(run)
    [made] = provider.made(name)
    assert not made.cancelled
    async with hf.open(store, work=False) as outside:
        await (await outside.get(run.id)).cancel(reason="no more")
    async with hf.open(store, hf.App(agent)) as runtime:
        assert "cancelled" in await ended(await runtime.get(run.id))
    assert made.cancelled


async def test_reaching_the_turn_limit_is_no_completion(kept: MakeKept, provider: Provider) -> None:
    """A model that only ever calls is stopped at the limit, and the run says so."""
    name, harness = kept()
    provider.says(name, CALLING, CALLING, CALLING)
    agent = clerk(harness, turn_limit=2)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert "2 times" in await ended(await runtime.start(agent, "Hello?"))
    assert len(provider.made(name)) == 2


async def test_arguments_that_cannot_be_parsed_are_an_error_result_and_the_tool_is_not_run(
    kept: MakeKept, provider: Provider
) -> None:
    """The model is told what is wrong, in the next creation, and goes on."""
    name, harness = kept()
    provider.says(name, Answer(calls=[Call("c1", "look", '{"at": tru}'), Call("c2", "wait")]), SHORT)
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Hello?")
        assert await run.result(timeout=LIMIT_SECONDS) == SHORT.text
        entries = await entries_of(run)
    assert not any(isinstance(entry, e.StepStarted) and "look" in entry.step for entry in entries)
    [broken, fine] = [part for message in transcript(entries) for part in message.parts if isinstance(part, ToolResult)]
    assert (broken.error, fine.error) == (True, False)
    assert broken.text in json.dumps(told(provider, name)[1], ensure_ascii=False).replace('\\"', '"')


async def test_a_length_that_is_used_up_is_a_limit_and_the_next_turn_goes_on_from_there(
    kept: MakeKept, provider: Provider
) -> None:
    """What was said is kept, though the turn failed; half a call is not, and is never answered."""
    name, harness = kept()
    half = Answer(tokens=["So"], calls=[Call("c1", "look", '{"at": "th')], short=True)
    provider.says(name, Answer(tokens=["So ", "be"], short=True), half, SHORT)
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert "stopped before its end" in await ended(await runtime.start(agent, "One.", conversation=name))
        assert "stopped before its end" in await ended(await runtime.start(agent, "Two.", conversation=name))
        run = await runtime.start(agent, "Three.", conversation=name)
        assert await run.result(timeout=LIMIT_SECONDS) == SHORT.text
    first, lost, last = provider.made(name)
    assert (lost.previous, last.previous) == (first.id, first.id)
    assert all(word in str(told(provider, name)[2]) for word in ("Two.", "Three."))
    assert "One." not in str(told(provider, name)[2])


async def test_a_generation_that_failed_fails_its_turn_and_the_next_goes_on_from_the_last_that_did_not(
    kept: MakeKept, provider: Provider
) -> None:
    """What it took is recorded; nothing is made again behind its back."""
    name, harness = kept()
    provider.says(name, SHORT, Answer(fails=True), SHORT)
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        await (await runtime.start(agent, "One.", conversation=name)).result(timeout=LIMIT_SECONDS)
        run = await runtime.start(agent, "Two.", conversation=name)
        assert "it failed" in await ended(run)
        [failed] = [entry for entry in await entries_of(run) if isinstance(entry, e.StepFailed)]
        assert (failed.usage or {}).get("input") == 20
        await (await runtime.start(agent, "Three.", conversation=name)).result(timeout=LIMIT_SECONDS)
    first, _, last = provider.made(name)
    assert last.previous == first.id


async def test_a_call_that_needs_approval_waits_for_a_person(kept: MakeKept, provider: Provider) -> None:
    """The generation is over meanwhile; its result is told behind it once somebody agreed."""

    @hf.tool(effect="repeat", needs_approval=True)
    async def sell(what: str) -> str:
        """Sell."""
        return f"{what} is sold"

    name, harness = kept()
    provider.says(name, Answer(calls=[Call("c1", "sell", '{"what": "boat"}')]), SHORT)
    agent = hf.Agent("seller", harness=harness, tools=[sell])
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Sell the boat.")
        await asked(run)
        [question] = await runtime.questions()
        await runtime.answer(question, True, args={"what": "oar"})
        assert await run.result(timeout=LIMIT_SECONDS) == SHORT.text
    assert "oar is sold" in str(told(provider, name)[1])
    assert provider.made(name)[1].previous == provider.made(name)[0].id


async def test_what_does_not_tell_its_events_again_is_looked_at_until_it_has_ended(
    kept: MakeKept, provider: Provider
) -> None:
    """A look that is refused for the rate, and a stream that is refused for good, cost nothing but patience."""
    name, harness = kept(rest_seconds=0.01)
    later = [Fault(status=429, headers={"retry-after": "0"}), Fault(), Fault(status=400)]
    provider.says(name, Turn(FIFTY, Fault(cut="fin", after_events=3), later=later, pause_seconds=0.002))
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Hello?")
        assert await run.result(timeout=LIMIT_SECONDS) == FIFTY.text
    assert len(provider.made(name)) == 1


async def test_a_provider_that_thinks_for_long_is_not_doubted_and_its_run_rests(
    kept: MakeKept, provider: Provider
) -> None:
    """Before its first event it is waited for; behind it the run rests again and again, and is looked after."""
    name, harness = kept(stall_seconds=0.05, rest_seconds=0.01)
    provider.says(name, Turn(SHORT, pause_seconds=0.15))
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        run = await runtime.start(agent, "Hello?")
        assert await run.result(timeout=LIMIT_SECONDS) == SHORT.text
        entries = await entries_of(run)
    assert len(provider.made(name)) == 1
    assert not any(isinstance(entry, e.StepDoubted) for entry in entries)
    assert {entry.reason for entry in entries if isinstance(entry, e.RunParked)} == {"harness"}


async def test_what_the_provider_has_deleted_fails_its_turn_and_is_not_made_again(
    kept: MakeKept, provider: Provider
) -> None:
    """An id that nobody knows any more is told; a person decides whether to pay for another."""
    name, harness = kept()
    provider.says(name, Turn(FIFTY, Fault(cut="fin", after_events=3), later=[Fault(status=404)]))
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        assert "404" in await ended(await runtime.start(agent, "Hello?"))
    assert len(provider.made(name)) == 1


async def test_a_conversation_that_the_provider_has_forgotten_is_not_begun_anew(
    kept: MakeKept, provider: Provider
) -> None:
    """A turn without its context would be worse than none: it fails, with what the provider says."""
    name, harness = kept()
    provider.says(name, SHORT, SHORT)
    agent = clerk(harness)
    async with hf.testing.open(hf.App(agent)) as runtime:
        await (await runtime.start(agent, "One.", conversation=name)).result(timeout=LIMIT_SECONDS)
        [made] = provider.made(name)
        made.asked = {**made.asked, "store": False}
        assert f"there is no {made.id}" in await ended(await runtime.start(agent, "Two.", conversation=name))
    assert len(provider.made(name)) == 1


async def test_a_provider_that_cannot_be_reached_is_busy_and_nothing_is_doubted() -> None:
    """A refused connection has created nothing: it is tried again as often as it may be, and then told."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        harness = OpenAIResponses("away", key="sk-unseen", base_url=f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        agent = clerk(harness)
        async with hf.testing.open(hf.App(agent)) as runtime:
            run = await runtime.start(agent, "Hello?")
            assert "cannot be reached" in await ended(run)
            entries = await entries_of(run)
    assert sum(isinstance(entry, e.StepFailed) for entry in entries) == QUICK.attempts
    assert not any(isinstance(entry, e.StepDoubted) for entry in entries)
