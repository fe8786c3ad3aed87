"""A conversation's row that is not what was written: its turns are taken all the same, or `verify` names it."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged
from tests.damage import tamper

SECONDS: Final = 2.0


@hf.durable
async def reply(ctx: hf.Context, message: str) -> str:
    """Answer."""
    return message.upper()


async def _answered(store: str, sent: int) -> bool:
    """Say whether all turns of the conversation come to their answers, in time."""
    async with hf.open(store, hf.App(reply, version="1")) as runtime:
        chat = runtime.conversation("chat", reply)
        with suppress(TimeoutError):
            turns = await chat.turns()
            assert len(turns) == sent
            for turn in turns:
                await (await runtime.get(turn.id)).result(timeout=SECONDS)
            return True
    return False


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("active_run", None), ("active_run", 999_999), ("over", 0), ("over", 2), ("over", 9), ("last_turn", 0),
        ("last_turn", 99), ("reached", 9), ("conversation", "chot"), ("tenant", "nobody"),
    ],
)  # fmt: skip
async def test_a_turn_is_taken_or_its_conversation_is_named(tmp_path: Path, column: str, value: object) -> None:
    """No turn waits for ever in silence, whichever number of the conversation was lost."""
    path = tmp_path / "store.db"
    store = f"sqlite:///{path}"
    async with hf.open(store, hf.App(reply, version="1"), work=False) as runtime:
        chat = runtime.conversation("chat", reply)
        for text in ("a", "b", "c"):
            await chat.send(text)
    tamper.change(path, f"UPDATE hf_conversations SET {column} = ?", [value])
    async with hf.open(store, work=False) as runtime:
        found = [finding async for finding in runtime.client.verify()]
    assert found or await _answered(store, 3)


async def test_a_turn_whose_number_was_changed_holds_up_none_behind_it(tmp_path: Path) -> None:
    """It is set aside, and its wrong number is not taken for how far the conversation has come."""
    path = tmp_path / "store.db"
    store = f"sqlite:///{path}"
    async with hf.open(store, hf.App(reply, version="1"), work=False) as runtime:
        runs = [await runtime.conversation("chat", reply).send(text) for text in ("a", "b", "c")]
    tamper.change(path, "UPDATE hf_runs SET turn = 99 WHERE turn = 1", [])
    async with hf.open(store, hf.App(reply, version="1")) as runtime:
        behind = [await runtime.get(run.id) for run in runs[1:]]
        assert [await run.result(timeout=SECONDS) for run in behind] == ["B", "C"]
        assert (await (await runtime.get(runs[0].id)).info()).status is hf.Status.QUARANTINED


async def test_an_active_turn_that_has_ended_is_named(tmp_path: Path) -> None:
    """A conversation that waits for what is over is not left to wait in silence."""
    path = tmp_path / "store.db"
    store = f"sqlite:///{path}"
    async with hf.open(store, hf.App(reply, version="1")) as runtime:
        run = await runtime.conversation("chat", reply).send("a")
        await run.result(timeout=SECONDS)
    tamper.change(path, "UPDATE hf_conversations SET active_run = (SELECT number FROM hf_runs)", [])
    async with hf.open(store, work=False) as runtime:
        found = [finding async for finding in runtime.client.verify()]
    assert any("'chat'" in str(finding) for finding in found)


async def test_metadata_that_was_changed_is_named_and_holds_nobody_up(tmp_path: Path) -> None:
    """What a caller keeps is checked when it is read, and nothing else of the conversation is touched."""
    path = tmp_path / "store.db"
    store = f"sqlite:///{path}"
    async with hf.open(store, hf.App(reply, version="1"), work=False) as runtime:
        chat = runtime.conversation("chat", reply)
        await chat.set_metadata({"title": "mine"})
        await chat.send("a")
    tamper.change(path, "UPDATE hf_conversations SET metadata = ?", [b'{"title":"yours"}'])
    async with hf.open(store, work=False) as runtime:
        chat = runtime.conversation("chat", reply)
        with pytest.raises(Damaged, match="metadata"):
            await chat.metadata()
    assert await asyncio.wait_for(_answered(store, 1), 30)


async def test_a_turn_whose_last_entry_is_gone_is_not_taken_for_what_was_said(tmp_path: Path) -> None:
    """A journal that was cut short says so, instead of telling a shorter past."""
    path = tmp_path / "store.db"
    store = f"sqlite:///{path}"
    async with hf.open(store, hf.App(reply, version="1")) as runtime:
        await (await runtime.conversation("chat", reply).send("a")).result(timeout=SECONDS)
    tamper.change(path, "DELETE FROM hf_entries WHERE kind = 'RunFinished'", [])
    async with hf.open(store, work=False) as runtime:
        with pytest.raises(Damaged):
            await runtime.conversation("chat", reply).history()
