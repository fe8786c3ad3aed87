"""Trials that die: a program is killed where it is told to, taken up again, killed again, and judged at its end."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.testing.killer import AtCall, AtPoint, Killer, Outcome, TrialFailed
from tests.chaos import judge
from tests.chaos.homes import home
from tests.chaos.program import Report, play
from tests.chaos.world import read_ledger

SEAM: Final = "holdfast.store.point:reached"
PRELOAD: Final = ("tests.chaos.program", "structlog", "holdfast.testing.killer")
TIMEOUT_SECONDS: Final = 20.0

Death = AtCall | AtPoint


def new_killer() -> Killer:
    """Return a server for the trials of these campaigns."""
    return Killer(preload=PRELOAD, seam=SEAM, timeout_seconds=TIMEOUT_SECONDS)


@dataclass(frozen=True, slots=True)
class Ended:
    """A program seen to its end: how often it died, where, and what it left."""

    deaths: int
    places: tuple[str, ...]
    report: Report


def orders(count: int) -> tuple[str, ...]:
    """Return the names of so many orders."""
    return tuple(f"{letter}-order" for letter in "abcdefgh"[:count])


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder in memory where there is one: a kill takes nothing back, so no disk is needed."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class Stage:
    """A place for one trial after another: a folder with the ledger, and the store in it unless it has an address."""

    def __init__(self, killer: Killer, folder: Path, *, twin: str = "", address: str | None = None) -> None:
        self._killer, self._folder, self._twin = killer, folder, twin
        self.store, self.ledger = folder / "store", folder / "ledger"
        self._place = address or str(self.store)

    def clear(self) -> None:
        """Forget the trial before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self.store.mkdir(parents=True)
        home(self._place).clear()

    def play(self, names: Sequence[str], die: Death | None = None, *, code: str = "first") -> Outcome:
        """Run a release of the program once, to its end or its death."""
        watch = self.store if isinstance(die, AtCall) else None
        args = (self._place, str(self.ledger), tuple(names), self._twin, code)
        return self._killer.run(play, *args, die=die, watch=watch)

    def count(self, names: Sequence[str]) -> tuple[int, int]:
        """Return how many points and how many file calls an undisturbed run comes to."""
        self.clear()
        outcome = self._killer.count(play, self._place, str(self.ledger), tuple(names), self._twin, watch=self.store)
        return outcome.points, outcome.calls

    def trial(self, names: Sequence[str], deaths: Sequence[Death]) -> Ended:
        """Let a fresh program die these deaths one after the other, then see it to its end and judge it.

        Raises:
            Broken: a promise was broken.
            TrialFailed: the program ended otherwise than by finishing or by the death it was given.
        """
        self.clear()
        places = [place for death in deaths if (place := self._die(names, death)) is not None]
        return self._end(names, places)

    def deploy(self, names: Sequence[str], death: Death, code: str) -> Ended:
        """Let a program die, take it up with a later release, then with its own, and judge it.

        Raises:
            Broken: the later release did something, although what was recorded is not what it asks for.
        """
        self.clear()
        places = [place for place in [self._die(names, death)] if place is not None]
        before = len(read_ledger(self.ledger))
        report: Report = self.play(names, code=code).result()
        judge.check_refused(report, read_ledger(self.ledger)[before:])
        return self._end(names, [*places, "deploy"])

    def _die(self, names: Sequence[str], death: Death) -> str | None:
        """Return where it died; None if it ended before it came there."""
        outcome = self.play(names, death)
        if outcome.killed:
            return outcome.last
        outcome.result()
        return None

    def _end(self, names: Sequence[str], places: Sequence[str]) -> Ended:
        report: Report = self.play(names).result()
        judge.check(report, read_ledger(self.ledger), deaths=len(places))
        return Ended(len(places), tuple(places), report)


Stages = tuple[Stage, Stage]
"""Two places to die at, one for each core."""


def end_all(stages: Stages, names: Sequence[str], trials: Sequence[Sequence[Death]]) -> int:
    """Play every trial, two at a time, and return how many deaths were died; each failure is told with its deaths."""

    def play(stage: Stage, mine: Sequence[Sequence[Death]]) -> tuple[int, list[str]]:
        deaths, failures = 0, []
        for each in mine:
            try:
                deaths += stage.trial(names, each).deaths
            except (judge.Broken, TrialFailed) as error:
                failures.append(f"{each}: {error}")
        return deaths, failures

    with ThreadPoolExecutor(2) as threads:
        halves = [threads.submit(play, stage, trials[half::2]) for half, stage in enumerate(stages)]
        played = [half.result() for half in halves]
    failures = [failure for _, failed in played for failure in failed]
    assert not failures, f"{len(failures)} of {len(trials)} trials failed\n" + "\n".join(failures[:3])
    return sum(deaths for deaths, _ in played)


__all__ = [
    "AtCall", "AtPoint", "Death", "Ended", "Stage", "Stages", "TrialFailed", "end_all", "new_killer", "orders",
    "scratch",
]  # fmt: skip
