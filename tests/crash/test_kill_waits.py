"""Process death around waiting and ending: a program that waits in every way dies around each of its writes."""

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos.homes import home
from tests.chaos.kills import SEAM, TIMEOUT_SECONDS, scratch
from tests.chaos.waiting import Told, play
from tests.chaos.world import read_ledger
from tests.rigs.server import Server, in_schema


class Place:
    """Where one trial after another is played."""

    def __init__(self, killer: Killer, folder: Path, address: str | None = None) -> None:
        self._killer, self._folder = killer, folder
        self._place = address or str(folder / "store")

    def clear(self) -> None:
        """Forget the trial before."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        home(self._place).clear()

    def unbroken(self) -> tuple[int, Sequence[Told]]:
        """Return how many points there are to die at, and what the program tells that does not."""
        self.clear()
        outcome = self._killer.count(play, *self._args)
        return outcome.points, outcome.value

    @property
    def _args(self) -> tuple[str, str]:
        return self._place, str(self._folder / "ledger")

    def trial(self, deaths: Sequence[int]) -> tuple[int, Sequence[Told]]:
        """Die these deaths one after the other, then end; return how many were died, and what is told."""
        self.clear()
        died = sum(self._killer.run(play, *self._args, die=AtPoint(nth)).killed for nth in deaths)
        told: Sequence[Told] = self._killer.run(play, *self._args).result()
        return died, told

    def cleaned(self) -> list[str]:
        """Return what the ledger says of the clean-up, in order."""
        return [line["what"] for line in read_ledger(self._folder / "ledger") if line.get("act") == "cleaned up"]


def new_killer() -> Killer:
    """Return a server for these trials."""
    preload = ("tests.chaos.waiting", "structlog", "holdfast.testing.killer")
    return Killer(preload=preload, seam=SEAM, timeout_seconds=TIMEOUT_SECONDS)


@pytest.fixture(scope="module")
def places() -> Iterator[tuple[Place, Place]]:
    """Two places to die at, one for each core."""
    with scratch() as folder, new_killer() as one, new_killer() as other:
        yield Place(one, folder / "1"), Place(other, folder / "2")


@pytest.fixture(scope="module")
def schemas() -> Iterator[tuple[Place, Place]]:
    """Two places to die at, each with a database of PostgreSQL to itself."""
    with Server() as server, scratch() as folder, new_killer() as one, new_killer() as other:
        addresses = [in_schema(server.database(name), "hf") for name in ("one", "two")]
        yield Place(one, folder / "1", addresses[0]), Place(other, folder / "2", addresses[1])


def told_apart(told: Sequence[Told], unbroken: Sequence[Told]) -> list[str]:
    """Return how what is told after deaths differs from what an unbroken program tells."""
    wrong = []
    for one, sound in zip(told, unbroken, strict=True):
        mine = (one.status, one.reason, one.result, one.facts, one.findings)
        if mine != (sound.status, sound.reason, sound.result, sound.facts, ()):
            wrong.append(f"{mine} instead of {sound}")
        slid = [step for step, _ in one.dues]
        if len(slid) != len(set(slid)):
            wrong.append(f"a time has slid: {one.dues}")
    return wrong


def all_alike(places: tuple[Place, Place], trials: Sequence[Sequence[int]]) -> int:
    """Play every trial, two at a time, and return how many deaths were died; every difference is told."""
    _, unbroken = places[0].unbroken()
    assert [one.status for one in unbroken] == ["completed", "cancelled"]

    def work(place: Place, mine: Sequence[Sequence[int]]) -> tuple[int, list[str]]:
        deaths, wrong = 0, list[str]()
        for trial in mine:
            try:
                died, told = place.trial(trial)
            except TrialFailed as error:
                wrong.append(f"{trial}: {error}")
                continue
            deaths += died
            wrong += [f"{trial}: {difference}" for difference in told_apart(told, unbroken)]
            cleaned = place.cleaned()
            if "did" in cleaned[cleaned.index("ack") :]:
                wrong.append(f"{trial}: the clean-up was repeated after it was recorded")
        return deaths, wrong

    with ThreadPoolExecutor(2) as threads:
        halves = [threads.submit(work, place, trials[half::2]) for half, place in enumerate(places)]
        played = [half.result() for half in halves]
    wrong = [difference for _, differences in played for difference in differences]
    assert not wrong, f"{len(wrong)} of {len(trials)} trials\n" + "\n".join(wrong[:3])
    return sum(deaths for deaths, _ in played)


def test_a_program_that_waits_and_is_cancelled_ends_as_if_unbroken(places: tuple[Place, Place]) -> None:
    """Whichever write it dies around: results and facts are the same, no time slides, no clean-up is repeated."""
    points, _ = places[0].unbroken()
    assert points > 60
    assert all_alike(places, [[nth] for nth in range(1, points + 1)]) >= 0.9 * points


def test_a_recovery_that_dies_is_recovered_from_like_any_other(places: tuple[Place, Place]) -> None:
    """A second death soon after the first, while the run is taken up again."""
    points, _ = places[0].unbroken()
    trials = [[nth, 1 + nth % 9] for nth in range(3, points, 4)]
    assert all_alike(places, trials) >= len(trials)


def test_a_program_that_waits_and_is_cancelled_ends_as_if_unbroken_on_postgresql(schemas: tuple[Place, Place]) -> None:
    """At every third of the points, since a trial takes longer there."""
    points, _ = schemas[0].unbroken()
    assert points > 60
    trials = [[nth] for nth in range(1, points + 1, 3)]
    assert all_alike(schemas, trials) >= 0.9 * len(trials)
