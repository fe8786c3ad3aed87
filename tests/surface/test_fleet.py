"""Several worker processes on one store: whoever is killed, every run ends, and nothing is done twice."""

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

    def __init__(self, shell: Shell, store: str) -> None:
        self.folder, self.store, self.living = shell.folder, store, list[Started]()
        self.environment: dict[str, str] = {}
        self._shell = shell

    def launch(self, count: int) -> None:
        """Start workers at one moment, and wait until all of them serve."""
        words = ("worker", "fleet.py", "--concurrency", "16", "--store", self.store)
        started = [self._shell.start(*words, environment=self.environment) for _ in range(count)]
        self.living += started
        for worker in started:
            worker.wait_for("serving chain")

    def victim(self) -> Started:
        """Wait for a worker that waits for its death, and return it."""
        with (self.folder / "victim").open() as pipe:
            number = int(pipe.readline())
        (victim,) = [worker for worker in self.living if worker.process.pid == number]
        return victim

    def replace_victim(self) -> None:
        """Kill the worker that waits for it, and start another."""
        victim = self.victim()
        self.living.remove(victim)
        assert victim.end(signal.SIGKILL).status == -signal.SIGKILL
        self.launch(1)


@pytest.fixture(params=["sqlite", "postgresql"])
def fleet(shell: Shell, request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """No worker yet, and no store either."""
    on_file = request.param == "sqlite"
    store = f"sqlite:///{shell.folder}/holdfast.db" if on_file else request.getfixturevalue("postgres_address")
    shutil.copy(Path(__file__).with_name("fleet.py"), shell.folder / "fleet.py")
    os.mkfifo(shell.folder / "victim")
    fleet = Fleet(shell, store)
    yield fleet
    for worker in fleet.living:
        worker.end(signal.SIGKILL)


async def play(fleet: Fleet) -> list[tuple[list[int], int]]:
    """Start every run, kill a worker in each wave of them, and return how the runs ended, and at which attempt."""
    async with hf.open(fleet.store, work=False) as runtime:
        runs: list[hf.Run[list[int]]] = []
        for _ in range(KILLS):
            for place in range(WAVE):
                number = len(runs)
                runs.append(await runtime.start(chain, number, place == WAVE // 2, key=("chain", number)))
            await asyncio.wait_for(asyncio.to_thread(fleet.replace_victim), SECONDS)
        return [(await run.result(timeout=4 * SECONDS), (await run.info()).attempt) for run in runs]


@pytest.mark.slow
def test_workers_that_are_killed_and_replaced_finish_everything_and_repeat_nothing(shell: Shell, fleet: Fleet) -> None:
    """Four open a store that is not there at one moment; the ledger outside the store is the judge."""
    fleet.launch(4)
    ended = asyncio.run(play(fleet))
    acts = Counter((shell.folder / "acts.txt").read_text("utf-8").split())
    assert max(acts.values()) == 1
    assert {f"{number}.{place}" for number, (done, _) in enumerate(ended) for place in done} <= set(acts)
    assert len(ended) == RUNS
    assert sum(attempt > 1 for _, attempt in ended) >= KILLS
    rows = shell("ls", "--workers", "--json", "--store", fleet.store).values
    assert sorted(row["pid"] for row in rows) == sorted(worker.process.pid for worker in fleet.living)
    assert shell("verify", "--store", fleet.store).status == 0
    listed = shell("ls", "--json", "--limit", str(RUNS + 1), "--store", fleet.store).values
    assert {run["status"] for run in listed} == {"completed"}


async def freeze(fleet: Fleet) -> list[list[int]]:
    """Stop the worker that holds a run until another has ended it; wake it, and leave it alone with one more run."""
    async with hf.open(fleet.store, work=False) as runtime:
        first = await runtime.start(chain, 1, True)
        frozen = await asyncio.wait_for(asyncio.to_thread(fleet.victim), SECONDS)
        frozen.process.send_signal(signal.SIGSTOP)
        done = [await first.result(timeout=SECONDS)]
        frozen.process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(frozen.wait_for, "declared dead as worker")
        (other,) = [worker for worker in fleet.living if worker is not frozen]
        fleet.living.remove(other)
        assert (await asyncio.to_thread(other.end, signal.SIGTERM)).status == 0
        return [*done, await (await runtime.start(chain, 2, False)).result(timeout=SECONDS)]


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["postgresql"], indirect=True)
def test_a_worker_that_was_stopped_is_replaced_and_serves_again_when_it_wakes(shell: Shell, fleet: Fleet) -> None:
    """Its lock is held all the while, but its heart stood still: its run goes on, and it comes back as another."""
    fleet.environment["TEST_LEASE_SECONDS"] = "1.5"
    fleet.launch(2)
    assert asyncio.run(freeze(fleet)) == [[0, 1, 2], [0, 1, 2]]
    acts = Counter((shell.folder / "acts.txt").read_text("utf-8").split())
    assert acts == {f"{number}.{place}": 1 for number in (1, 2) for place in range(3)}
