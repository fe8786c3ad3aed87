"""Turns that a harness takes: begun once, found again, and their cursor moved with what they said."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast as hf
from holdfast.core import entry as e
from holdfast.core.transcript import transcript
from holdfast.testing import call, every_crash
from holdfast.testing.scripted_harness import ScriptedHarness, ScriptedProvider
from tests.agent.lines import LIMIT_SECONDS, entries_of


@hf.tool(effect="repeat")
async def look(order: str) -> str:
    """Look an order up."""
    return f"order {order}: broken"


def told(ask: Any) -> str:
    """Say what the harness was told last."""
    return " | ".join(str(part.text) for message in ask.messages for part in message.parts)


SCRIPT = ([call("look", order="42"), call("look", order="43")], told, "and again")


async def test_a_turn_of_a_harness_is_a_run_with_tools_and_a_cursor() -> None:
    """Calls are answered and told in the next exchange, which goes on behind the one before."""
    harness = ScriptedHarness(*SCRIPT)
    clerk = hf.Agent("clerk", harness=harness, tools=[look], instructions="Be kind.")
    async with hf.testing.open(hf.App(clerk)) as runtime:
        run = await runtime.start(clerk, "it broke")
        assert await run.result(timeout=LIMIT_SECONDS) == "order 42: broken | order 43: broken"
        entries = await entries_of(run)
    assert [entry.type for entry in entries if entry.type == "CursorMoved"]
    assert [one.parent for one in harness.provider.created] == [None, "ex-1"]
    assert harness.starts[0].instructions == "Be kind."


async def test_wherever_a_worker_dies_each_exchange_whose_id_was_known_is_created_once() -> None:
    """A death before the id is a doubt that is shown, and another creation behind the same exchange; no chain forks."""
    providers: list[ScriptedProvider] = []
    harness = ScriptedHarness(*SCRIPT)
    clerk = hf.Agent("clerk", harness=harness, tools=[look])
    seen: list[Any] = []

    def setup() -> None:
        harness.provider = ScriptedProvider()
        providers.append(harness.provider)

    def same(ended: hf.testing.Ended) -> bool:
        seen.append(msgspec.to_builtins(transcript(ended.entries)))
        doubts = [entry for entry in ended.entries if isinstance(entry, e.StepDoubted)]
        assert len(harness.provider.created) <= 2 + len(doubts)
        assert harness.provider.forks == []
        return bool(seen[-1] == seen[0])

    survived = await every_crash(clerk, "it broke", setup=setup, check=same, allow_doubt=True)
    assert survived.crashes > 10


async def test_a_conversation_goes_on_from_its_cursor_in_another_process(tmp_path: Path) -> None:
    """The next turn is behind the last exchange of the one before, and only what is new is told."""
    store = f"sqlite:///{tmp_path / 'store.db'}"
    provider = ScriptedProvider(tmp_path / "provider")
    for word in ("one", "two", "three"):
        harness = ScriptedHarness(told, provider=ScriptedProvider(tmp_path / "provider"))
        clerk = hf.Agent("clerk", harness=harness)
        async with hf.testing.open(hf.App(clerk), store=store) as runtime:
            run = await runtime.start(clerk, word, conversation="chat")
            assert await run.result(timeout=LIMIT_SECONDS) == word
    assert [one.parent for one in provider.created] == [None, "ex-1", "ex-2"]


async def test_a_conversation_bound_to_one_harness_refuses_every_other_before_anything_is_done(tmp_path: Path) -> None:
    """Neither another harness nor a model goes on with what only the first one remembers."""
    first, other = ScriptedHarness("one"), ScriptedHarness("two", name="other")
    clerk, stranger = hf.Agent("clerk", harness=first), hf.Agent("stranger", harness=other)
    native = hf.Agent("native", model=hf.testing.ScriptedModel("three"))
    async with hf.testing.open(hf.App(clerk, stranger, native)) as runtime:
        await (await runtime.start(clerk, "hello", conversation="chat")).result(timeout=LIMIT_SECONDS)
        for agent in (stranger, native):
            run = await runtime.start(agent, "hello", conversation="chat")
            with pytest.raises(hf.RunError, match="is bound to harness 'scripted'"):
                await run.result(timeout=LIMIT_SECONDS)
        await (await runtime.start(native, "hello", conversation="plain")).result(timeout=LIMIT_SECONDS)
        run = await runtime.start(clerk, "hello", conversation="plain")
        with pytest.raises(hf.RunError, match="is bound to a model, and no harness"):
            await run.result(timeout=LIMIT_SECONDS)
    assert other.provider.created == []
    assert len(first.provider.created) == 1
