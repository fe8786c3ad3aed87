"""Lost replies on PostgreSQL: a program whose line is cut at any of its writes ends as if nothing had been."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.testing.killer import Killer, TrialFailed
from tests.chaos.commits import MORTAL, Cut, Line, every_cut
from tests.chaos.judge import Broken
from tests.chaos.kills import new_killer, scratch
from tests.rigs.proxy import Kind, Proxy
from tests.rigs.server import Server

pytestmark = pytest.mark.slow

Lines = tuple[Line, Line]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that nobody else uses."""
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where ledgers lie."""
    with scratch() as made:
        yield made


@pytest.fixture(scope="module")
def killers() -> Iterator[tuple[Killer, Killer]]:
    """Two servers of trials, one for each core."""
    with new_killer() as one, new_killer() as other:
        yield one, other


@pytest.fixture(scope="module")
def lines(server: Server, folder: Path, killers: tuple[Killer, Killer]) -> Iterator[Lines]:
    """Two lines to cut."""
    with ExitStack() as stack:
        made = [
            Line(killer, folder / str(at), server, stack.enter_context(Proxy(server.port)))
            for at, killer in enumerate(killers)
        ]
        yield made[0], made[1]


def cut_all(lines: Lines, cuts: Sequence[Cut]) -> int:
    """Play every cut, two at a time, and return how many lines were cut; each failure is told with its cut."""

    def play(line: Line, mine: Sequence[Cut]) -> tuple[int, list[str]]:
        struck, failures = 0, []
        for cut in mine:
            try:
                struck += line.trial(cut).cut
            except (Broken, TrialFailed) as error:
                failures.append(f"{cut}: {error}")
        return struck, failures

    with ThreadPoolExecutor(2) as threads:
        played = list(threads.map(play, lines, (cuts[::2], cuts[1::2])))
    failures = [failure for _, failed in played for failure in failed]
    assert not failures, f"{len(failures)} of {len(cuts)} cuts failed\n" + "\n".join(failures[:3])
    return sum(struck for struck, _ in played)


def test_a_reply_lost_at_any_write_is_found_out_and_nothing_is_done_twice(lines: Lines) -> None:
    """A write that is done and not answered is neither repeated nor given up, and no work comes into doubt."""
    cuts = list(every_cut(lines[0], [Kind.SWALLOWED]))
    assert len(cuts) > 30
    assert cut_all(lines, cuts) >= 0.9 * len(cuts)


@pytest.mark.parametrize("kind", [Kind.BEFORE, Kind.DURING, Kind.HANGING, Kind.LATE])
def test_a_write_that_is_lost_hangs_or_lands_late_comes_true_once(lines: Lines, kind: Kind) -> None:
    """Whether it never arrived, still runs or arrives after it was tried again, the journal has it once."""
    cuts = list(every_cut(lines[0], [kind]))[::11]
    assert cut_all(lines, cuts) >= 0.7 * len(cuts)


@pytest.mark.parametrize("kind", MORTAL)
def test_a_write_that_lands_after_its_worker_died_spoils_nothing(lines: Lines, kind: Kind) -> None:
    """The successor meets what its predecessor had sent: it counts if it came in time, and is refused if not."""
    cuts = list(every_cut(lines[0], [kind], dies=True))[::11]
    assert cut_all(lines, cuts) >= 0.7 * len(cuts)


def test_a_run_whose_creation_lands_after_its_worker_was_declared_dead_is_not_left_to_nobody(lines: Lines) -> None:
    """It is there, and belongs to a worker without a row: whoever is alive must get it all the same."""
    lines[0].trial(Cut.parse("1:create:late:1@create+"))


def test_a_driver_that_takes_a_lost_commit_for_done_is_caught(
    server: Server, folder: Path, killers: tuple[Killer, Killer]
) -> None:
    """The trials can fail: one that guesses acknowledges what is not there."""
    with Proxy(server.port) as proxy:
        line = Line(killers[0], folder / "twin", server, proxy, twin="lost_is_done")
        with pytest.raises((Broken, TrialFailed)):
            line.trial(Cut(1, "commit", Kind.BEFORE, 5))
