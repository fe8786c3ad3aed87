"""Where a process that serves every act dies where it is told to, life after life, and is judged at its end."""

import random
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.testing.killer import AtPoint, Killer, Outcome, TrialFailed
from tests.chaos import critic
from tests.chaos.acts import ACTS
from tests.chaos.critic import Book
from tests.chaos.homes import home
from tests.chaos.judge import Broken
from tests.chaos.kills import SEAM
from tests.chaos.looking import worth_dying_at
from tests.chaos.playing import HASTY, PATIENT, Played, play, trace
from tests.chaos.world import read_ledger

_POINTS: Final = {"order": 98, "visit": 105, "stay": 32, "market": 67, "family": 120}
"""About how many points each act comes to; fixed, so that a seed alone makes its trial."""
_STUCK_SECONDS: Final = 90.0
"""How long a life may take before it counts as stuck: five acts on a busy machine take a while."""
PRELOAD: Final = ("tests.chaos.playing", "structlog", "holdfast.testing.killer")


def new_killer() -> Killer:
    """Return a server for these trials."""
    return Killer(preload=PRELOAD, seam=SEAM, timeout_seconds=_STUCK_SECONDS)


@dataclass(frozen=True, slots=True)
class Ended:
    """A cast seen to its end: how often its process died, and where."""

    places: tuple[str, ...]
    played: Played

    @property
    def deaths(self) -> int:
        """How often its process died."""
        return len(self.places)


class Theatre:
    """A place for one trial after another: a folder with the ledger, and the store in it unless it has an address."""

    def __init__(self, killer: Killer, folder: Path, *, address: str | None = None, twin: str = "") -> None:
        self._killer, self._folder, self._twin = killer, folder, twin
        self._place = address or str(folder / "store")
        self._ledger = folder / "ledger"

    def _clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        home(self._place).clear()

    def _life(self, cast: Sequence[str], patience_seconds: float, die: AtPoint | None = None) -> Outcome:
        args = (self._place, str(self._ledger), tuple(cast), self._twin, patience_seconds)
        return self._killer.run(play, *args, die=die)

    def unbroken(self, cast: Sequence[str]) -> tuple[int, Book]:
        """Return how many points there are to die at, and what an unbroken life tells of this cast."""
        self._clear()
        outcome = self._life(cast, HASTY)
        played: Played = outcome.result()
        book = critic.book_of(played)
        critic.check(played, read_ledger(self._ledger), book, deaths=0)
        return outcome.points, book

    def points(self, cast: Sequence[str], count: int) -> list[int]:
        """Return which of so many points of a cast to die at."""
        self._clear()
        args = (self._place, str(self._ledger), tuple(cast), self._twin, HASTY)
        _, points = self._killer.run(trace, *args).result()
        return worth_dying_at(points, count)

    def trial(
        self, cast: Sequence[str], deaths: Sequence[AtPoint], book: Book, *, patience_seconds: float = HASTY
    ) -> Ended:
        """Let a fresh process die these deaths, life after life, then see its cast to its end and judge it.

        Raises:
            Broken: a promise was broken.
            TrialFailed: a life ended otherwise than by finishing or by the death it was given.
        """
        self._clear()
        places: list[str] = []
        for death in deaths:
            outcome = self._life(cast, patience_seconds, death)
            if outcome.killed:
                places.append(outcome.last)
            else:
                outcome.result()
        played: Played = self._life(cast, patience_seconds).result()
        critic.check(played, read_ledger(self._ledger), book, deaths=len(places))
        return Ended(tuple(places), played)

    def book(self) -> Book:
        """Return what an unbroken life tells of every act."""
        return self.unbroken([f"{act}-a" for act in ACTS])[1]


Theatres = tuple[Theatre, Theatre]
"""Two places to die at, one for each core."""


def end_all(theatres: Theatres, trials: Sequence["Trial"], book: Book) -> int:
    """Play every trial, two at a time, and return how many deaths were died; each failure is told with its trial."""

    def work(theatre: Theatre, mine: Sequence[Trial]) -> tuple[int, list[str]]:
        deaths, failures = 0, []
        for trial in mine:
            try:
                deaths += trial.play(theatre, book).deaths
            except (Broken, TrialFailed) as error:
                failures.append(f"{trial}: {error}")
        return deaths, failures

    with ThreadPoolExecutor(2) as threads:
        halves = [threads.submit(work, theatre, trials[half::2]) for half, theatre in enumerate(theatres)]
        played = [half.result() for half in halves]
    failures = [failure for _, failed in played for failure in failed]
    assert not failures, f"{len(failures)} of {len(trials)} trials failed\n" + "\n".join(failures[:3])
    return sum(deaths for deaths, _ in played)


@dataclass(frozen=True, slots=True)
class Trial:
    """Acts at once, and the points that their process dies at, life after life; written `visit-a,order-a:57,3`."""

    cast: tuple[str, ...]
    deaths: tuple[int, ...]
    hasty: bool = True
    """Whether its process parks what waits for others at once; written as a `~` at the end where it does not."""

    @classmethod
    def of_seed(cls, seed: str) -> "Trial":
        """Return the trial that a seed stands for."""
        chance = random.Random(seed)
        count = chance.choice((1, 1, 1, 2, 2, 3, 5))
        cast = tuple(f"{chance.choice(ACTS)}-{letter}" for letter in "abcde"[:count])
        most = sum(_POINTS[name.partition("-")[0]] for name in cast)
        # Some never come: several acts share their commits, and PostgreSQL claims without a point.
        deaths = [chance.randint(1, int(most * chance.choice((0.4, 0.7, 1.0))))]
        # Fewer in all than the claims without progress after which a run would rightly be quarantined.
        for _ in range(chance.choice((0, 1, 2, 3, 3))):
            # A recovery is shorter than what it recovers, so it is mostly killed early.
            deaths.append(chance.randint(1, max(8, int(most * chance.choice((0.1, 0.3, 0.6))))))
        return cls(cast, tuple(deaths), hasty=chance.random() < 0.7)

    @classmethod
    def parse(cls, text: str) -> "Trial":
        """Return the trial of this text.

        Raises:
            ValueError: it is not one.
        """
        cast, _, deaths = text.removesuffix("~").partition(":")
        return cls(tuple(cast.split(",")), tuple(map(int, deaths.split(","))), not text.endswith("~"))

    def __str__(self) -> str:
        return f"{','.join(self.cast)}:{','.join(map(str, self.deaths))}{'' if self.hasty else '~'}"

    def play(self, theatre: Theatre, book: Book) -> Ended:
        """Play it; what is broken is raised."""
        deaths = [AtPoint(nth) for nth in self.deaths]
        return theatre.trial(self.cast, deaths, book, patience_seconds=HASTY if self.hasty else PATIENT)


def every_point(theatre: Theatre, act: str) -> tuple[list[Trial], Book]:
    """Return a trial for each death of an act alone that leaves something else behind, and what it tells unbroken."""
    cast = (f"{act}-a",)
    count, book = theatre.unbroken(cast)
    return [Trial(cast, (nth,)) for nth in theatre.points(cast, count)], book
