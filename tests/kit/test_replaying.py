"""Replays of exported runs: what CI says of a change before the runs that are under way have to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import events, testing
from holdfast.client.archive import export_run
from holdfast.core.errors import Damaged, InvalidInput
from holdfast.store.memory import MemoryStore
from holdfast.testing import MovingClock, Replayed, replay
from tests.engine.stage import soon
from tests.kit import programs
from tests.kit.programs import world


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Begin with an untouched world."""
    programs.forget()
    yield
    programs.forget()


@hf.durable
async def delayed(ctx: hf.Context, customer: str) -> str:
    """Be left in the middle."""
    first = await ctx.step(programs.load, customer)
    return await ctx.step(programs.flaky, name=first, retry=hf.Retry(first=3600.0, most=3600.0))


async def exported() -> tuple[list[bytes], list[str]]:
    """Return the lines of an ended run and of one under way, and their ids."""
    store = MemoryStore(clock=MovingClock())
    async with testing.open(store=store) as runtime:
        ended = await runtime.start(programs.simple, "acme")
        await soon(ended.result())
        waiting = await runtime.start(delayed, "acme")
        async for event in waiting.events():
            if isinstance(event, events.RunParked):
                break
        lines = [line for run in (ended, waiting) async for line in export_run(store, run.id)]
    world.clear()
    return lines, [ended.id, waiting.id]


app = hf.App(programs.simple, delayed)


async def test_runs_that_the_code_follows_are_told_with_where_they_were_left(tmp_path: Path) -> None:
    """An archive is a file or its lines; what was open is not performed."""
    lines, (ended, waiting) = await exported()
    (tmp_path / "runs.jsonl").write_bytes(b"".join(lines))
    told = [Replayed(ended, "simple", None), Replayed(waiting, "delayed", "0/Acme#1")]  # type: ignore[arg-type]
    assert replay(app, tmp_path / "runs.jsonl") == told
    assert replay(app, str(tmp_path / "runs.jsonl")) == told
    assert replay(app, lines) == told
    assert not world


async def test_changed_code_is_refused_with_recorded_against_asked() -> None:
    """The build is red before the deploy is."""

    @hf.durable(name="delayed")
    async def changed(ctx: hf.Context, customer: str) -> str:
        return await ctx.step(programs.echo, customer)

    lines, (_, waiting) = await exported()
    with pytest.raises(hf.Diverged, match=r"entry 2 recorded '0/load#1' but the code asked for '0/echo#1'") as refused:
        replay(hf.App(programs.simple, changed), lines)
    assert refused.value.__notes__ == [f"in run {waiting} of delayed", hf.Diverged.hint]


@pytest.mark.parametrize("what", [programs.simple, hf.App(programs.simple)])
async def test_a_run_of_another_function_is_refused(what: Any) -> None:
    """An archive that tests nothing must not pass."""
    lines, _ = await exported()
    with pytest.raises(InvalidInput, match="holds a run of 'delayed'"):
        replay(what, lines)


async def test_a_cut_archive_is_refused() -> None:
    """A file that lost its end proves nothing."""
    lines, _ = await exported()
    with pytest.raises(Damaged):
        replay(app, lines[:-1])
