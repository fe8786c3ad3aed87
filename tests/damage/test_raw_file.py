"""A flipped bit anywhere in the raw file."""

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged, StoreError

_FLIPS: Final = 250
_SEED: Final = 20261115
_RUNS: Final = 4


async def work(text: str) -> str:
    """Return something that fills a page or two."""
    return text * 50


@hf.durable
async def tale(ctx: hf.Context, number: int) -> str:
    """Record a few steps."""
    parts = [await ctx.step(work, f"{number}-{part}") for part in range(6)]
    return str(len("".join(parts)))


async def _write(folder: Path) -> dict[str, tuple[str, str]]:
    """Make a store of ended runs; return each key's run and result."""
    answers: dict[str, tuple[str, str]] = {}
    async with hf.open(f"sqlite:///{folder / 'a.db'}", hf.App(tale)) as runtime:
        for number in range(_RUNS):
            run = await runtime.start(tale, number, key=("tale", number))
            answers[f"tale/{number}"] = (run.id, await run.result(timeout=20))
    return answers


async def ask(path: Path) -> dict[str, tuple[str, str] | str]:
    """Ask the store for every key again; an error of ours is an answer too."""
    answers: dict[str, tuple[str, str] | str] = {}
    try:
        async with hf.open(f"sqlite:///{path}", hf.App(tale)) as runtime:
            found = [finding async for finding in runtime.client.verify()]
            for number in range(_RUNS):
                key = f"tale/{number}"
                try:
                    run = await runtime.start(tale, number, key=("tale", number))
                    answers[key] = (run.id, await run.result(timeout=20))
                except (hf.RunError, Damaged, hf.Conflict, hf.NotFound, StoreError) as error:
                    answers[key] = str(error)
            answers["verify"] = "; ".join(f"{finding.run}: {finding.what}" for finding in found)
    except StoreError as error:
        answers["store"] = str(error)
    return answers


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, tuple[str, str]]]:
    """A closed store's bytes, and what it answers."""
    folder = tmp_path_factory.mktemp("specimen")
    answers = asyncio.run(_write(folder))
    return (folder / "a.db").read_bytes(), answers


@pytest.mark.parametrize("part", range(5))
def test_a_flipped_bit_anywhere_gives_the_same_answers_a_named_run_or_a_refusal(
    specimen: tuple[bytes, dict[str, tuple[str, str]]], tmp_path: Path, part: int
) -> None:
    """Damage is never a wrong answer, a second run for a known key, or a wait without end."""
    whole, expected = specimen
    chance = random.Random(_SEED + part)
    for trial in range(_FLIPS // 5):
        place, bit = chance.randrange(len(whole)), chance.randrange(8)
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        path = tmp_path / f"{trial}.db"
        path.write_bytes(damaged)
        answers = asyncio.run(ask(path))
        story = f"byte {place}, bit {bit}: {answers}"
        if "store" in answers:
            continue
        for key, right in expected.items():
            given = answers[key]
            assert given == right or isinstance(given, str), story
            if isinstance(given, tuple):
                assert given[0] == right[0], f"a second run for {key}; {story}"
        for leftover in tmp_path.glob(f"{trial}.db*"):
            if leftover.is_file():
                leftover.unlink()
