"""Several worker processes on one file: whoever is killed, every run ends, and nothing is done twice."""

import asyncio
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast as hf
from tests.surface.command import SECONDS, Shell, Started
from tests.surface.fleet import chain

RUNS, KILLS = 200, 4
WAVE = RUNS // KILLS


class Fleet:
    """Workers that serve one store."""

    def __init__(self, shell: Shell) -> None:
        self.folder, self.living = shell.folder, list[Started]()
        self._shell = shell

    def launch(self, count: int) -> None:
        """Start workers at one moment, and wait until all of them serve."""
        started = [self._shell.start("worker", "fleet.py", "--concurrency", "16") for _ in range(count)]
        self.living += started
        for worker in started:
            worker.wait_for("serving chain")

    def replace_victim(self) -> None:
        """Kill the worker that waits for it, and start another."""
        with (self.folder / "victim").open() as pipe:
            victim = int(pipe.readline())
        (place,) = [place for place, worker in enumerate(self.living) if worker.process.pid == victim]
        assert self.living.pop(place).end(signal.SIGKILL).status == -signal.SIGKILL
        self.launch(1)


@pytest.fixture
def fleet(shell: Shell) -> Iterator[Fleet]:
    """No worker yet, and no store either."""
    shutil.copy(Path(__file__).with_name("fleet.py"), shell.folder / "fleet.py")
    os.mkfifo(shell.folder / "victim")
    fleet = Fleet(shell)
    yield fleet
    for worker in fleet.living:
        worker.end(signal.SIGKILL)


async def play(fleet: Fleet, store: Path) -> list[tuple[list[int], int]]:
    """Start every run, kill a worker in each wave of them, and return how the runs ended, and at which attempt."""
    async with hf.open(f"sqlite:///{store}", work=False) as runtime:
        runs: list[hf.Run[list[int]]] = []
        for _ in range(KILLS):
            for place in range(WAVE):
                number = len(runs)
                runs.append(await runtime.start(chain, number, place == WAVE // 2, key=("chain", number)))
            await asyncio.wait_for(asyncio.to_thread(fleet.replace_victim), SECONDS)
        return [(await run.result(timeout=4 * SECONDS), (await run.info()).attempt) for run in runs]


@pytest.mark.slow
def test_workers_that_are_killed_and_replaced_finish_everything_and_repeat_nothing(shell: Shell, fleet: Fleet) -> None:
    """Four open a file that is not there at one moment; the ledger outside the store is the judge."""
    store = shell.folder / "holdfast.db"
    fleet.launch(4)
    ended = asyncio.run(play(fleet, store))
    acts = Counter((shell.folder / "acts.txt").read_text("utf-8").split())
    assert max(acts.values()) == 1
    assert {f"{number}.{place}" for number, (done, _) in enumerate(ended) for place in done} <= set(acts)
    assert len(ended) == RUNS
    assert sum(attempt > 1 for _, attempt in ended) >= KILLS
    rows = shell("ls", "--workers", "--json").values
    assert sorted(row["pid"] for row in rows) == sorted(worker.process.pid for worker in fleet.living)
    assert shell("verify").status == 0
    assert {run["status"] for run in shell("ls", "--json", "--limit", str(RUNS + 1)).values} == {"completed"}
