"""A process that finds hundreds of runs open drives them within its bounds, each once, and loses none."""

import asyncio
import subprocess
import sys
from collections import Counter
from typing import Final

import holdfast as hf
from tests.chaos.sites import Site
from tests.crash.crowd import SLOTS, functions

_RUNS: Final = 170
"""Of each of the three kinds."""
_AT_ONCE: Final = 32


class Bound:
    """Counts the steps that are under way, and how often each was performed."""

    def __init__(self) -> None:
        self.performed: Counter[int] = Counter()
        self.most = self._under_way = 0

    async def pass_by(self, number: int) -> None:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        self._under_way -= 1
        self.performed[number] += 1


async def test_a_restart_drives_every_open_run_once_and_within_its_bounds(site: Site) -> None:
    """P5 and P8: none is lost or repeated, no more are driven than may be, and what nobody serves here waits."""
    seeding = [sys.executable, "-m", "tests.crash.crowd", site.address, str(_RUNS)]
    died = await asyncio.to_thread(subprocess.run, seeding, capture_output=True, text=True, timeout=100, check=False)
    assert died.returncode == -9, died.stderr
    plain_bound, limit_bound = Bound(), Bound()
    plain, _, _ = functions(lambda: None, plain_bound.pass_by)
    _, limited, _ = functions(lambda: None, limit_bound.pass_by)
    async with hf.open(site.address, hf.App(plain, limited, version="1"), concurrency=_AT_ONCE) as runtime:
        for kind in (plain, limited):
            runs = [await runtime.get(key=(kind.name, number), of=kind) for number in range(_RUNS)]
            results = await asyncio.gather(*(run.result(timeout=100) for run in runs))
            assert results == list(range(_RUNS))
        waiting = [await runtime.get(key=("foreign", number)) for number in range(_RUNS)]
        infos = [await run.info() for run in waiting]
    for bound in (plain_bound, limit_bound):
        assert bound.performed == Counter(range(_RUNS))
    assert plain_bound.most <= _AT_ONCE
    assert limit_bound.most <= SLOTS
    assert not any(info.status.terminal or info.status is hf.Status.QUARANTINED for info in infos)
