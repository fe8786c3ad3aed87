"""Thousands of resumed runs that meet a provider of few requests a second: it is asked for no more than it allows."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import holdfast as hf
from holdfast.agent.agent import Agent
from holdfast.agent.lane import Lane
from holdfast.agent.model import ModelBusy, Reply, Request, Say
from holdfast.agent.providers.openai import OpenAI
from holdfast.core.status import Status
from holdfast.store.sqlite import SqliteStore
from tests.chaos.campaign import Result, Shared, Tick
from tests.chaos.kills import scratch
from tests.rigs.provider.metered import Elsewhere, Metered, most_in_a_second

RATE: Final = 20
MOST: Final = 24
"""How many may come in any second after the first."""
_TWIN_RUNS: Final = 300
_LEARNING_SECONDS: Final = 1.0
_PAGE: Final = 500
_LOOK_SECONDS: Final = 0.25
_RETRY: Final = hf.Retry(attempts=8, first=1.0, factor=2.0, most=60.0)


class Down:
    """A provider that is away."""

    name = lane = "down"

    async def ask(self, request: Request, say: Say) -> Reply:
        """Be away for now."""
        raise ModelBusy("away", retry_after=0.0)


@dataclass(frozen=True)
class Told:
    """How runs that were resumed all at once ended, and what their provider saw."""

    completed: int
    failed: int
    requests: int
    refused: int
    refused_late: int
    """How many were refused that came after the first second."""
    most: int
    seconds: float

    def wrong(self, runs: int) -> str | None:
        """Return what is not as promised."""
        if self.failed or self.completed != runs:
            return f"{self.completed} of {runs} completed, {self.failed} failed"
        return f"{self.most} requests in one second, of a provider of {RATE}" if self.most > MOST else None


async def resume_all(
    path: Path, provider: Metered | Elsewhere, runs: int, tick: Tick, *, concurrency: int = 64
) -> Told:
    """Leave so many runs behind while their provider is away, then take all of them up at once."""
    await _leave(f"sqlite:///{path}", runs)
    model = OpenAI("small", base_url=provider.openai_url, stream=False)
    agent = Agent("asker", model=model, retry=_RETRY)
    begun, store = time.monotonic(), await SqliteStore.open(str(path), clock=_later)
    async with hf.open(store, hf.App(agent), concurrency=concurrency) as runtime:
        await _until_settled(runtime, provider, runs, tick)
        completed, failed = [await _count(runtime, status) for status in (Status.COMPLETED, Status.FAILED)]
    arrived, refused = provider.arrived, provider.refused
    late = [place for place in refused if arrived[place] >= arrived[0] + _LEARNING_SECONDS]
    return Told(
        completed, failed, len(arrived), len(refused), len(late),
        most_in_a_second(arrived, after=_LEARNING_SECONDS), time.monotonic() - begun,
    )  # fmt: skip


async def _leave(address: str, runs: int) -> None:
    """Start runs whose first attempt fails, and let the process end before the second."""
    agent = Agent("asker", model=Down(), retry=hf.Retry(attempts=8, first=3600.0, most=3600.0))
    async with hf.open(address, hf.App(agent)) as runtime:
        handles = [await runtime.start(agent, f"number {number}") for number in range(runs)]
        for handle in handles:
            async for event in handle.events():
                if isinstance(event, hf.events.RunParked):
                    break


def _later() -> int:
    """Return the time when the hour has passed, and all runs are due at once."""
    return time.time_ns() // 1000 + 2 * 3_600_000_000


async def _until_settled(runtime: hf.Runtime, provider: Metered | Elsewhere, runs: int, tick: Tick) -> None:
    seen = 0
    async with asyncio.timeout(120 + 3 * runs / RATE):
        while not await _is_settled(runtime):
            now = min(runs, provider.accepted)
            tick(now - seen)
            seen = now
            await asyncio.sleep(_LOOK_SECONDS)
    tick(runs - seen)


async def _is_settled(runtime: hf.Runtime) -> bool:
    for status in (Status.QUEUED, Status.RUNNING, Status.WAITING):
        if await runtime.client.runs(status=status, limit=1):
            return False
    return True


async def _count(runtime: hf.Runtime, status: Status) -> int:
    count, before = 0, None
    while page := await runtime.client.runs(status=status, limit=_PAGE, before=before):
        count, before = count + len(page), page[-1].id
    return count


@contextmanager
def deaf() -> Iterator[None]:
    """Be the twin: a limiter that ignores what it learnt."""
    see: Any = Lane.see
    Lane.see = lambda self, seen, now: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Lane.see = see  # type: ignore[method-assign]


def _play(folder: Path, runs: int, tick: Tick) -> Told:
    folder.mkdir(parents=True, exist_ok=True)
    with Elsewhere(RATE) as provider:
        return asyncio.run(resume_all(folder / "store.db", provider, runs, tick))


def campaign(seed: int, wanted: int, tick: Tick) -> Result:
    """Resume `wanted` runs at once, and fewer of them by the twin, which must be caught."""
    shared, started = Shared(tick), time.monotonic()
    with scratch() as folder:
        told = _play(folder / "sound", wanted, lambda steps: shared.done(steps))
        shared.done(
            0, told.wrong(wanted), runs=wanted, completed=told.completed, failed=told.failed, requests=told.requests,
            refused=told.refused, refused_late=told.refused_late, seconds_taken=round(told.seconds),
        )  # fmt: skip
        shared.most(most_in_a_second=told.most)
        with deaf():
            twin = _play(folder / "twin", min(wanted, _TWIN_RUNS), lambda steps: None)
        caught = twin.wrong(min(wanted, _TWIN_RUNS))
        missed = None if caught is not None else "a limiter that ignores what it learnt was not caught"
        shared.done(0, missed, twins_played=1, twins_caught=int(caught is not None))
    shared.result.seconds = time.monotonic() - started
    return shared.result
