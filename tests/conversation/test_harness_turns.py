"""Turns of one conversation that several send at once are taken one at a time, whatever the harness does."""

import asyncio
from pathlib import Path

import holdfast as hf
from holdfast.harness import Ask
from holdfast.testing import ScriptedHarness, ScriptedProvider
from tests.conversation.conftest import Open

SECONDS = 30.0
_EACH = 4


def told(ask: Ask) -> str:
    """Say what the harness was told."""
    return " | ".join(message.text for message in ask.messages)


async def test_turns_that_two_processes_send_at_once_make_one_chain(opened: Open, tmp_path: Path) -> None:
    """Each turn begins from the cursor that the one before it committed; none goes on beside another."""

    def clerk() -> hf.Agent[str]:
        return hf.Agent("clerk", harness=ScriptedHarness(told, provider=ScriptedProvider(tmp_path)))

    one, two = clerk(), clerk()
    async with opened(one) as first, opened(two) as second, asyncio.timeout(SECONDS):
        sends = [
            runtime.conversation("chat", agent).send(f"{name} {number}")
            for number in range(_EACH)
            for runtime, agent, name in ((first, one, "a"), (second, two, "b"))
        ]
        runs = await asyncio.gather(*sends)
        said = await asyncio.gather(*(run.result(timeout=SECONDS) for run in runs))
        history = await first.conversation("chat", one).history()
    provider = ScriptedProvider(tmp_path)
    ids = [one.id for one in provider.created]
    assert [one.parent for one in provider.created] == [None, *ids[:-1]]
    assert sorted(said) == sorted(f"{name} {number}" for number in range(_EACH) for name in "ab")
    assert [message.text for message in history[::2]] == [message.text for message in history[1::2]]
