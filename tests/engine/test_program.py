"""What a program gives to its runs, and what another start of it may do."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast as hf


async def echo(text: str) -> str:
    """Return what it is given."""
    return text


@hf.durable
async def tell(ctx: hf.Context, text: str) -> str:
    """Say what it was told."""
    return await ctx.step(echo, text)


async def test_a_secret_is_taken_out_of_inputs_and_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared secret reaches no row, wherever its holder put it."""
    monkeypatch.setenv("MAIL_TOKEN", "s3cr3t-token")
    async with hf.open(f"sqlite:///{tmp_path / 'a.db'}", hf.App(tell, secrets=["MAIL_TOKEN"])) as runtime:
        run = await runtime.start(tell, "with s3cr3t-token inside", labels={"who": "s3cr3t-token"})
        assert await run.result(timeout=20) == "with [MAIL_TOKEN] inside"
        assert (await run.info()).labels == {"who": "[MAIL_TOKEN]"}
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"s3cr3t-token" not in stored


async def test_an_events_value_is_read_wherever_it_is_stored(tmp_path: Path) -> None:
    """A value too large for its entry is one call away from the event that names it."""
    large = "x" * 100_000
    async with hf.open(f"sqlite:///{tmp_path / 'a.db'}", hf.App(tell)) as runtime:
        run = await runtime.start(tell, large)
        await run.result(timeout=20)
        values = [await run.value(event) async for event in run.events(follow=False)]
    assert values == [{"text": large}, large, large]


def a_tale(words: list[str]) -> "hf.App":
    """Return a program whose function says `words`, under one name and with the same source whatever they are."""

    @hf.durable
    async def tale(ctx: hf.Context) -> str:
        for word in words:
            await ctx.step(echo, word)
        blocked.set()
        if words[-1] != "end":
            await asyncio.get_running_loop().create_future()
        return " ".join(words)

    blocked = asyncio.Event()
    app = hf.App(tale)
    app.blocked = blocked  # type: ignore[attr-defined]
    app.tale = tale  # type: ignore[attr-defined]
    return app


async def test_a_program_started_anew_may_try_a_diverged_run_again(tmp_path: Path) -> None:
    """A digest of one function does not tell what it calls: a mended program must not be refused for the broken one."""
    store = f"sqlite:///{tmp_path / 'a.db'}"
    first, broken, mended = a_tale(["once", "upon"]), a_tale(["twice"]), a_tale(["once", "upon", "end"])
    async with hf.open(store, first) as runtime:
        run = await runtime.start(first.tale, key="tale")  # type: ignore[attr-defined]
        await asyncio.wait_for(first.blocked.wait(), 20)  # type: ignore[attr-defined]
    async with hf.open(store, broken) as runtime:
        with pytest.raises(hf.RunError, match="diverged"):
            await (await runtime.get(run.id)).result(timeout=20)
    async with hf.open(store, mended) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=20) == "once upon end"


def test_holdfast_logs_to_standard_error(tmp_path: Path) -> None:
    """Standard output belongs to the program."""
    code = "from holdfast.engine.log import Log; Log(run='r').warning('said', step='s'); print('mine')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "mine\n"
    assert "said" in done.stderr
