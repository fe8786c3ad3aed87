"""A disk that is full, read-only or broken under a store."""

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.errors import StoreError, StoreUnavailable
from holdfast.testing.killer import FailAt, Killer

_STEPS: Final = 6
_WRITES: Final = frozenset({"write", "pwrite64", "writev", "pwritev"})
_SYNCS: Final = frozenset({"fsync", "fdatasync"})


def performed(ledger: str, number: int) -> int:
    """Act, and be witnessed outside the store."""
    with open(ledger, "a") as file:
        file.write(f"performed {number}\n")
    return number


def acknowledged(ledger: str, number: int) -> None:
    """Write down that the store said yes."""
    with open(ledger, "a") as file:
        file.write(f"acknowledged {number}\n")
        file.flush()
        os.fsync(file.fileno())


@hf.durable
async def count(ctx: hf.Context, ledger: str) -> list[int]:
    """Record a few numbers, one of them by a `once` step."""
    numbers = []
    for number in range(_STEPS):
        try:
            numbers.append(await ctx.step(performed, ledger, number, effect="once" if number == 3 else "repeat"))
        except hf.InDoubt:
            numbers.append(-number)
        acknowledged(ledger, number)
    return numbers


async def attempt(folder: str, ledger: str) -> str:
    """Run the function once; return how it went, in words."""
    try:
        async with hf.open(f"sqlite:///{folder}/a.db", hf.App(count)) as runtime:
            run = await runtime.start(count, ledger, key="count")
            worker = runtime._worker
            assert worker is not None
            waiting = asyncio.ensure_future(run.result())
            either: set[asyncio.Future[Any]] = {waiting, worker.trouble}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                raise worker.trouble.result()
            return f"result {waiting.result()}"
    except StoreError as error:
        return f"{error.code}: {error}"


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """A fork server that has everything imported."""
    with Killer(preload=["holdfast.store.sqlite", __name__], timeout_seconds=60) as killer:
        yield killer


def _mend_and_check(killer: Killer, folder: Path, ledger: Path, story: str) -> None:
    """The fault is gone: the run goes on, nothing acknowledged is lost, and no `once` step was performed twice."""
    said = killer.run(attempt, str(folder), str(ledger)).result()
    assert said.startswith("result [0, 1, 2, "), f"{story}, then {said}"
    lines = ledger.read_text().splitlines()
    assert lines.count("performed 3") <= 1, f"{story}: the once step was performed twice"
    for number in range(_STEPS):
        if f"acknowledged {number}" in lines:
            after = lines[lines.index(f"acknowledged {number}") :]
            assert f"performed {number}" not in after, f"{story}: {number} was acknowledged and then performed again"


def _faults(killer: Killer, tmp_path: Path, names: frozenset[str], code: int, *, lasting: bool, stride: int) -> int:
    """Let each chosen call fail in turn; return how many trials were hit."""
    hit = 0
    nth = 1
    while True:
        folder, ledger = tmp_path / f"{nth}", tmp_path / f"{nth}.ledger"
        folder.mkdir()
        fail = FailAt(nth, code, names=names, lasting=lasting)
        outcome = killer.run(attempt, str(folder), str(ledger), fail=fail, watch=folder)
        said = outcome.result()
        story = f"call {nth} of {sorted(names)} failed with {errno.errorcode[code]}: {said}"
        if not ledger.exists():
            ledger.touch()
        assert said.startswith(("result [0, 1, 2, ", "store_unavailable", "store_refused")), story
        hit += not said.startswith("result")
        _mend_and_check(killer, folder, ledger, story)
        if said.startswith("result") and nth > outcome.calls:
            return hit
        nth += stride


@pytest.mark.parametrize(("lasting", "stride"), [(False, 2), (True, 5)])
def test_a_failed_sync_loses_nothing_that_was_acknowledged(
    killer: Killer, tmp_path: Path, lasting: bool, stride: int
) -> None:
    """EIO from fsync all along a run: a clear error, and what was acknowledged is there when the disk is mended."""
    assert _faults(killer, tmp_path, _SYNCS, errno.EIO, lasting=lasting, stride=stride) > 2


def test_a_full_disk_is_said_and_loses_nothing(killer: Killer, tmp_path: Path) -> None:
    """ENOSPC at writes all along a run, from there on: it is said, and the run goes on when there is room."""
    assert _faults(killer, tmp_path, _WRITES, errno.ENOSPC, lasting=True, stride=29) > 2


def test_a_failed_write_loses_nothing(killer: Killer, tmp_path: Path) -> None:
    """EIO at single writes all along a run."""
    assert _faults(killer, tmp_path, _WRITES, errno.EIO, lasting=False, stride=23) > 2


def test_a_file_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    """A folder that is not there, and one that is a file: an error of ours that names the place."""
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "nowhere" / "a.db", tmp_path / "file" / "a.db"):
        with pytest.raises(StoreUnavailable, match="cannot be opened"):
            asyncio.run(_open(place))


async def _open(place: Path) -> None:
    async with hf.open(f"sqlite:///{place}"):
        pass
