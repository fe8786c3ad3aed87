"""What the page about guarantees says of damage holds for whoever reads, not only for whoever drives."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as hf
from holdfast.core.errors import Damaged

READERS: dict[str, Callable[[hf.Client, Any], Awaitable[Any]]] = {
    "events": lambda client, run: _all(client.events(run)),
    "events after an entry": lambda client, run: _all(client.events(run, after="2")),
    "wait": lambda client, run: client.wait(run, timeout_seconds=10),
    "info": lambda client, run: client.info(run),
}


async def _all(events: Any) -> list[Any]:
    return [event async for event in events]


@hf.durable
async def tale(ctx: hf.Context) -> str:
    """Two steps and an ending."""
    return await ctx.step(str, "once", key="begin") + await ctx.step(str, "after", key="end")


def cut(path: Path, where: str) -> None:
    """Take entries away behind Holdfast's back."""
    connection = apsw.Connection(str(path))
    connection.execute(f"DELETE FROM hf_entries WHERE {where}")
    connection.close()


@pytest.mark.parametrize("where", ["seq = 4", "seq >= 3"])
@pytest.mark.parametrize("reader", READERS)
async def test_a_journal_whose_end_was_cut_off_is_refused(tmp_path: Path, reader: str, where: str) -> None:
    """What is left of it is sound by itself, so only the row can tell; a reader must not take it for the whole."""
    address = f"sqlite:///{tmp_path}/runs.db"
    async with hf.open(address, hf.App(tale)) as runtime:
        assert await runtime.run(tale, key="tale") == "onceafter"
    cut(tmp_path / "runs.db", where)
    async with hf.open(address, work=False) as runtime:
        run: Any = await runtime.client.find("tale")
        with pytest.raises(Damaged) as damaged:
            await READERS[reader](runtime.client, run)
        assert damaged.value.run == run
        assert damaged.value.seq is not None
        assert damaged.value.seq >= 3
