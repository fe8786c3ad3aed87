"""A conversation with a harness whose process is killed; the campaign tries every point of it."""

from collections.abc import Iterator

import pytest

from holdfast.testing.killer import Killer, TrialFailed
from tests.chaos.exchanges import BROKEN, Held
from tests.chaos.harnesses import Hall, new_killer
from tests.chaos.judge import Broken
from tests.chaos.kills import scratch
from tests.rigs.server import Server, in_schema


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """Forks the processes that are killed."""
    with new_killer() as killer:
        yield killer


@pytest.mark.parametrize("kind", ["doubting", "keyed"])
def test_a_conversation_killed_on_a_file_is_that_of_an_unbroken_one(killer: Killer, kind: str) -> None:
    """Each exchange whose id was on disk is created once; every other creation is a doubt; no chain forks."""
    with scratch() as folder:
        hall = Hall(killer, folder / "hall")
        points, unbroken = hall.unbroken(kind)
        assert points > 40
        stride = points // 7
        assert sum(hall.trial(kind, [nth], unbroken) for nth in range(stride // 2, points - stride, stride)) >= 5


def test_a_conversation_killed_on_postgresql_is_as_an_unbroken_one(killer: Killer, postgres_server: Server) -> None:
    """The same promises, on the store that many machines share."""
    with scratch() as folder:
        hall = Hall(killer, folder / "hall", address=in_schema(postgres_server.database("hall"), "hf"))
        points, unbroken = hall.unbroken("doubting")
        stride = points // 4
        assert sum(hall.trial("doubting", [nth], unbroken) for nth in range(stride // 2, points - stride, stride)) >= 3


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_harness_does_not_pass(killer: Killer, kind: str) -> None:
    """What throws an id away, or goes on behind the wrong exchange, is caught at some death."""
    with scratch() as folder:
        hall = Hall(killer, folder / "hall")
        points, unbroken = hall.unbroken(kind)
        caught = next((nth for nth in range(7, points, 2) if _is_broken(hall, kind, nth, unbroken)), None)
    assert caught is not None


def _is_broken(hall: Hall, kind: str, nth: int, unbroken: Held) -> bool:
    try:
        hall.trial(kind, [nth], unbroken)
    except (Broken, TrialFailed):
        return True
    return False
