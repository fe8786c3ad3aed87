"""Process death in families: branches, children and generations die around every write, and end all the same."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.killer import AtPoint, Killer
from tests.chaos.family import Told, notes, play
from tests.chaos.homes import home
from tests.chaos.kills import SEAM, scratch
from tests.rigs.server import Server, in_schema

Stages = tuple[tuple[Killer, Path, str], ...]
"""Two places to die at, one for each core: who kills there, a folder, and where the store lives."""


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stages(request: pytest.FixtureRequest) -> Iterator[Stages]:
    """Two places on each database."""
    preload = ("tests.chaos.family", "structlog", "holdfast.testing.killer")
    with (
        scratch() as folder,
        Killer(preload=preload, seam=SEAM, timeout_seconds=30) as one,
        Killer(preload=preload, seam=SEAM, timeout_seconds=30) as other,
    ):
        places = [str(folder / "1" / "store"), str(folder / "2" / "store")]
        if request.param == "postgresql":
            server: Server = request.getfixturevalue("postgres_server")
            places = [in_schema(server.database(name), "hf") for name in ("family_one", "family_two")]
        yield (one, folder / "1", places[0]), (other, folder / "2", places[1])


def trial(killer: Killer, folder: Path, place: str, deaths: Sequence[AtPoint]) -> tuple[Told, int, int]:
    """Let a fresh family die these deaths, see it to its end, and return that, its deaths and its points."""
    folder.mkdir(exist_ok=True)
    ledger = folder / "ledger"
    home(place).clear()
    ledger.unlink(missing_ok=True)
    died = sum(killer.run(play, place, str(ledger), die=death).killed for death in deaths)
    outcome = killer.run(play, place, str(ledger))
    told: Told = outcome.result()
    lines = notes(ledger)
    assert {line: count for line, count in lines.items() if line.startswith("pay")} == {"pay 0": 1, "pay 1": 1}
    held = [line for line in lines if line.startswith("hold")]
    assert len({line.split()[1] for line in held}) == len(held), "one idempotency key for each"
    return told, died, outcome.points


def test_a_family_killed_before_or_after_any_write_or_inside_any_effect_ends_as_if_unbroken(stages: Stages) -> None:
    """Result, records and children are those of an unbroken run; nothing is paid, booked or spawned twice."""
    unbroken, _, points = trial(*stages[0], [])
    assert (unbroken.findings, unbroken.left, unbroken.bookings) == ((), (), ("0", "1"))
    assert len(unbroken.children) == 8
    assert points > 60

    # A trial on a server takes five times as long: every other point has to do.
    stride = 2 if "://" in stages[0][2] else 1

    def play_half(half: int) -> tuple[int, list[str]]:
        deaths, wrong = 0, []
        for nth in range(1 + half, points + 1, 2 * stride):
            try:
                told, died, _ = trial(*stages[half], [AtPoint(nth)])
                assert told == unbroken
                deaths += died
            except AssertionError as error:
                wrong.append(f"{nth}: {error}")
        return deaths, wrong

    with ThreadPoolExecutor(2) as threads:
        played = list(threads.map(play_half, range(2)))
    wrong = [one for _, failed in played for one in failed]
    assert not wrong, f"{len(wrong)} of {points} trials failed\n" + "\n".join(wrong[:3])
    assert sum(deaths for deaths, _ in played) >= 0.8 * points / stride
