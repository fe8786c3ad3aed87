"""A fan-out over many items with a bound on how many are under way: what each subject is asked, and what it answers.

A subject is a process that is given an `Order`, applies a trivial step to every item under the bound, and prints a
`Result`. The clock runs from the call that starts the fan-out to its results in hand; importing and opening are
outside. Standard library only: peers run it in environments of their own.
"""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workload import MARKER


@dataclass(frozen=True, slots=True)
class Order:
    """What a subject is asked to do."""

    directory: Path
    items: int
    at_once: int = 16
    variant: str = ""
    address: str = ""
    """An empty database of a PostgreSQL server; empty for a file in `directory`."""

    def arguments(self) -> list[str]:
        """Return the command line that `main` turns back into this order."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in asdict(self).items()]


@dataclass(frozen=True, slots=True)
class Result:
    """What a subject did, and what it cost."""

    seconds: float
    cpu_seconds: float
    most: int
    """How many were under way at once, at most."""
    stored: int
    """How many results the store holds afterwards."""
    peak_mb: float


class Work:
    """The step of every item: it lets the others go on, and counts how many are under way."""

    def __init__(self) -> None:
        self.most = self._under_way = 0

    async def __call__(self, item: int) -> int:
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        await asyncio.sleep(0)
        self._under_way -= 1
        return item * 2


class Clock:
    """Wall and processor time since it was made."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def result(self, work: Work, stored: int = 0) -> Result:
        """Stop."""
        seconds, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return Result(seconds, cpu, work.most, stored, peak_mb())


def peak_mb() -> float:
    """Return the most memory that this process had."""
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def check(results: list[int], items: int) -> None:
    """Stop if the fan-out did not return what it should."""
    if results != [item * 2 for item in range(items)]:
        sys.exit("the results are not those of the items, in order")


def main(subject: Callable[[Order], Awaitable[Result]]) -> None:
    """Be the process of one subject."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--items", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--variant", default="")
    parser.add_argument("--address", default="")
    order = Order(**vars(parser.parse_args()))
    order.directory.mkdir(parents=True, exist_ok=True)

    async def run() -> Result:
        return await subject(order)

    print(MARKER + json.dumps(asdict(asyncio.run(run()))), flush=True)
