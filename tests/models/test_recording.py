"""What a model said once can be played again, to the same request and to no other."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.agent.model import ModelRefused, Request, ToolSpec
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Message, Text
from holdfast.models import OpenAI, Player, Recorder
from tests.models.speech import CALLING, FIFTY, HELLO, attempt
from tests.rigs.provider import Provider


def model(provider: Provider, name: str) -> OpenAI:
    """Return a model that asks the rig."""
    return OpenAI(name, key="not-for-a-file", base_url=provider.openai_url)


async def test_a_recording_plays_the_same_replies_and_pieces(provider: Provider, tmp_path: Path) -> None:
    """A test that ran against a provider runs without it."""
    recorder, path = Recorder(model(provider, "played"), tmp_path / "said.jsonl"), tmp_path / "said.jsonl"
    provider.says("played", FIFTY, CALLING, CALLING)
    other = replace(HELLO, messages=[*HELLO.messages, Message("user", (Text("And?"),))])
    live = [await attempt(recorder), await attempt(recorder), await attempt(recorder, other)]
    player = Player(path)
    played = [await attempt(player), await attempt(player, replace(HELLO, key="another")), await attempt(player, other)]
    assert [made.reply for made in played] == [made.reply for made in live]
    assert [made.pieces for made in played] == [made.pieces for made in live]
    assert (await attempt(player)).reply == live[1].reply
    assert player.name == "openai:played"
    assert "not-for-a-file" not in path.read_text("utf-8") + repr(recorder)


@pytest.mark.parametrize(
    ("asked", "differs"),
    [
        (replace(HELLO, instructions="Be long."), "instructions"),
        (replace(HELLO, messages=[Message("user", (Text("Bye."),))]), "message 1"),
        (replace(HELLO, messages=[*HELLO.messages, *HELLO.messages]), "2 messages instead of 1"),
        (replace(HELLO, tools=[ToolSpec("look", "Look.", {})]), "tools"),
        (replace(HELLO, output={}), "output"),
        (replace(HELLO, settings={"temperature": 0}), "settings"),
    ],
)
async def test_a_request_that_was_not_recorded_is_refused_with_what_differs(
    provider: Provider, tmp_path: Path, asked: Request, differs: str
) -> None:
    """A player never guesses; it says which part of the request is another."""
    await attempt(Recorder(model(provider, "refused"), tmp_path / "said.jsonl"))
    made = await attempt(Player(tmp_path / "said.jsonl"), asked)
    assert isinstance(made.error, ModelRefused)
    assert str(made.error).endswith(f"differs in its {differs}")


def test_a_file_that_is_no_recording_is_refused_with_its_line(tmp_path: Path) -> None:
    """A broken or missing file is told at once, not when it is first asked."""
    with pytest.raises(InvalidInput, match="no recording can be read"):
        Player(tmp_path / "absent")
    (tmp_path / "broken").write_text("{}\n")
    with pytest.raises(InvalidInput, match="line 1"):
        Player(tmp_path / "broken")
