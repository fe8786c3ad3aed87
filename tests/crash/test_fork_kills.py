"""Process death around forks: a run that fails, is retried and is forked dies around every write of that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.killer import AtPoint, Killer
from tests.chaos.family import notes
from tests.chaos.forks import Told, look, play
from tests.chaos.homes import home
from tests.chaos.kills import SEAM, TIMEOUT_SECONDS, scratch
from tests.chaos.looking import worth_dying_at
from tests.rigs.server import Server, in_schema

Stages = tuple[tuple[Killer, Path, str], ...]
"""Two places to die at, one for each core: who kills there, a folder, and where the store lives."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stages(request: pytest.FixtureRequest) -> Iterator[Stages]:
    """Two places on each database."""
    preload = ("tests.chaos.forks", "structlog", "holdfast.testing.killer")
    with (
        scratch() as folder,
        Killer(preload=preload, seam=SEAM, timeout_seconds=TIMEOUT_SECONDS) as one,
        Killer(preload=preload, seam=SEAM, timeout_seconds=TIMEOUT_SECONDS) as other,
    ):
        places = [str(folder / "1" / "store"), str(folder / "2" / "store")]
        if request.param == "postgresql":
            server: Server = request.getfixturevalue("postgres_server")
            places = [in_schema(server.database(name), "hf") for name in ("forks_one", "forks_two")]
        yield (one, folder / "1", places[0]), (other, folder / "2", places[1])


def fresh(folder: Path, place: str) -> Path:
    """Make room for another trial, and return its ledger."""
    folder.mkdir(exist_ok=True)
    home(place).clear()
    ledger = folder / "ledger"
    ledger.unlink(missing_ok=True)
    return ledger


def points_of(killer: Killer, folder: Path, place: str, count: int) -> list[int]:
    """Return which of so many points are worth dying at."""
    ledger = fresh(folder, place)
    return worth_dying_at(killer.run(look, place, str(ledger)).result(), count)


def trial(killer: Killer, folder: Path, place: str, die: AtPoint | None) -> tuple[Told, int, int]:
    """Let a fresh program die so, see it to its end, and return that, its deaths and its points."""
    ledger = fresh(folder, place)
    died = die is not None and killer.run(play, place, str(ledger), die=die).killed
    outcome = killer.run(play, place, str(ledger))
    told: Told = outcome.result()
    lines = notes(ledger)
    assert lines["pay 1"] == 1, "the fork and the retry have what was paid, and pay nothing"
    keys = {what: {line.split()[2] for line in lines if line.startswith(what)} for what in ("hold", "charge")}
    # The base's, which its retry goes on with, and the fork's own: of the parcel and of the clerk each.
    assert {what: len(of) for what, of in keys.items()} == {"hold": 4, "charge": 4}
    return told, int(died), outcome.points


def test_a_retry_and_a_fork_killed_around_any_write_or_inside_any_effect_end_as_if_unbroken(stages: Stages) -> None:
    """One retry and one fork, the same results and records, every chain sound, and nothing paid or keyed anew."""
    unbroken, _, count = trial(*stages[0], None)
    assert unbroken.findings == ()
    assert unbroken.results[0] == unbroken.results[1]
    assert len(unbroken.runs) == 6
    assert count > 50
    # A trial on a server takes five times as long: every sixth point has to do.
    stride = 6 if "://" in stages[0][2] else 1
    points = points_of(*stages[0], count)[::stride]
    assert len(points) > 25 / stride

    def play_half(half: int) -> tuple[int, list[str]]:
        deaths, wrong = 0, []
        for nth in points[half::2]:
            try:
                told, died, _ = trial(*stages[half], AtPoint(nth))
                assert told == unbroken
                deaths += died
            except AssertionError as error:
                wrong.append(f"{nth}: {error}")
        return deaths, wrong

    with ThreadPoolExecutor(2) as threads:
        played = list(threads.map(play_half, range(2)))
    wrong = [one for _, failed in played for one in failed]
    assert not wrong, f"{len(wrong)} of {len(points)} trials failed\n" + "\n".join(wrong[:3])
    assert sum(deaths for deaths, _ in played) >= 0.8 * len(points)
