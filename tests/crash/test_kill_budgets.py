"""Process death around tokens and budgets: a tree that spends dies around each of its writes, and nothing is lost."""

import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.testing.killer import AtPoint, Killer, TrialFailed
from tests.chaos import meter
from tests.chaos.homes import home
from tests.chaos.kills import SEAM, scratch
from tests.chaos.looking import worth_dying_at
from tests.chaos.purse import Told, look, play, tokens_of
from tests.rigs.server import Server, in_schema

Places = tuple[tuple[Killer, Path, str], ...]
"""Two places to die at, one for each core: who kills there, a folder, and where the store lives."""
_PRELOAD = ("tests.chaos.purse", "tests.chaos.meter", "structlog", "holdfast.testing.killer")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def places(request: pytest.FixtureRequest) -> Iterator[Places]:
    """Two places on each database."""
    with (
        scratch() as folder,
        Killer(preload=_PRELOAD, seam=SEAM, timeout_seconds=60) as one,
        Killer(preload=_PRELOAD, seam=SEAM, timeout_seconds=60) as other,
    ):
        addresses = [str(folder / "1" / "store"), str(folder / "2" / "store")]
        if request.param == "postgresql":
            server: Server = request.getfixturevalue("postgres_server")
            addresses = [in_schema(server.database(name), "hf") for name in ("purse_one", "purse_two")]
        yield (one, folder / "1", addresses[0]), (other, folder / "2", addresses[1])


def fresh(folder: Path, place: str) -> Path:
    """Make room for another trial, and return its ledger."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    home(place).clear()
    return folder / "ledger"


def points_of(killer: Killer, folder: Path, place: str, count: int) -> list[int]:
    """Return which of so many points are worth dying at."""
    ledger = fresh(folder, place)
    return worth_dying_at(killer.run(look, place, str(ledger)).result(), count)


def trial(
    killer: Killer, folder: Path, place: str, deaths: Sequence[AtPoint], *, broken: bool = False
) -> tuple[Told, int, int]:
    """Let a fresh tree die these deaths, see it to its end, and return that, its deaths and its points."""
    ledger = fresh(folder, place)
    died = sum(killer.run(play, place, str(ledger), broken, die=death).killed for death in deaths)
    outcome = killer.run(play, place, str(ledger), broken)
    told: Told = outcome.result()
    sent = tokens_of(ledger)
    assert {to: len(tokens) for to, tokens in sent.items()} == {"bank": 1, "boss": 1}, "a token has changed"
    return told, died, outcome.points


def conserved(told: Told) -> None:
    """Check that in every run total = free + reserved + spent, and that what was recorded was paid, once."""
    assert told.findings == ()
    assert told.unpaid == ()
    for _, total, free, reserved, spent in told.accounts:
        assert total == free + reserved + spent
        assert min(free, reserved, spent) >= 0
        assert reserved == 0, "it has ended, and nothing is open"


def test_a_tree_that_spends_and_waits_for_tokens_ends_as_if_unbroken(places: Places) -> None:
    """Whichever write it dies around: the same tokens, answers and facts, and each step is paid once."""
    unbroken, _, count = trial(*places[0], [])
    conserved(unbroken)
    assert unbroken.accounts == (("clerk", 6, 2, 0, 4), ("spend", 10, 0, 0, 10))
    assert count > 80
    # What is spent and awaited here dies at each of its points in the acts too: some of these have to do.
    points = points_of(*places[0], count)[:: 4 if "://" in places[0][2] else 1]
    assert len(points) > 10

    def play_half(half: int) -> tuple[int, list[str]]:
        deaths, wrong = 0, []
        for nth in points[half::2]:
            try:
                told, died, _ = trial(*places[half], [AtPoint(nth)])
                conserved(told)
                assert told == unbroken
                deaths += died
            except (AssertionError, TrialFailed) as error:
                wrong.append(f"{nth}: {error}")
        return deaths, wrong

    with ThreadPoolExecutor(2) as threads:
        played = list(threads.map(play_half, range(2)))
    wrong = [one for _, failed in played for one in failed]
    assert not wrong, f"{len(wrong)} of {len(points)} trials failed\n" + "\n".join(wrong[:3])
    assert sum(deaths for deaths, _ in played) >= 0.8 * len(points)


def test_a_recovery_that_dies_loses_nothing_either(places: Places) -> None:
    """A second death soon after the first, while the tree is taken up again."""
    unbroken, _, points = trial(*places[0], [])
    for nth in range(5, points, 32 if "://" in places[0][2] else 12):
        told, died, _ = trial(*places[0], [AtPoint(nth), AtPoint(1 + nth % 11)])
        conserved(told)
        assert told == unbroken
        assert died


def test_the_checker_sees_a_step_that_is_paid_apart_from_its_fact(places: Places) -> None:
    """A twin that pays in a commit of its own pays twice where it dies between the two: some death must show it."""
    unbroken, _, points = trial(*places[0], [], broken=True)
    conserved(unbroken)
    caught = 0
    for nth in range(8, points // 2):
        try:
            conserved(trial(*places[0], [AtPoint(nth)], broken=True)[0])
        except AssertionError:
            caught += 1
            break
    assert caught


def spent_trial(place: tuple[Killer, Path, str], deaths: Sequence[AtPoint], *, broken: bool = False) -> str | None:
    """Let a fresh tree of agents die these deaths and see it to its end; return which promise it broke."""
    killer, folder, address = place
    ledger = fresh(folder, address)
    died = sum(killer.run(meter.play, address, str(ledger), broken, die=death).killed for death in deaths)
    told: meter.Told = killer.run(meter.play, address, str(ledger), broken).result()
    return told.wrong(died) if told.result == "done" else f"it said {told.result}"


def spending_points(place: tuple[Killer, Path, str]) -> list[int]:
    """Return the points of a tree of agents that are worth dying at."""
    killer, folder, address = place
    looked = killer.run(meter.look, address, str(fresh(folder, address)))
    return worth_dying_at(looked.result(), looked.points)


def test_what_a_provider_billed_is_charged_wherever_its_customer_died(places: Places) -> None:
    """Every generation on the provider's own bill is spent, once, and a death costs no more than one estimate."""
    assert spent_trial(places[0], []) is None
    points = spending_points(places[0])[:: 9 if "://" in places[0][2] else 4]
    assert len(points) > 4

    def play_half(half: int) -> list[str]:
        said = [(nth, spent_trial(places[half], [AtPoint(nth)])) for nth in points[half::2]]
        return [f"{nth}: {wrong}" for nth, wrong in said if wrong is not None]

    with ThreadPoolExecutor(2) as threads:
        assert [wrong for half in threads.map(play_half, range(2)) for wrong in half] == []


def test_the_checker_sees_what_was_billed_and_not_charged(places: Places) -> None:
    """A twin that gives back what a lost attempt had set aside is caught at some death."""
    assert spent_trial(places[0], [], broken=True) is None
    # From behind: the last generation is made shortly before the end.
    points = spending_points(places[0])[::-1]
    assert any(spent_trial(places[0], [AtPoint(nth)], broken=True) is not None for nth in points)
