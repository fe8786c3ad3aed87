"""Process death on PostgreSQL: the same program dies around each of its writes and effects, and ends all the same."""

import random
from collections.abc import Iterator

import pytest

from holdfast.testing.killer import AtPoint
from tests.chaos.kills import Stage, Stages, end_all, new_killer, orders, scratch
from tests.rigs.server import Server, in_schema

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stages() -> Iterator[Stages]:
    """Two places to die at, each with a database to itself."""
    with Server() as server, scratch() as folder, new_killer() as one, new_killer() as other:
        addresses = [in_schema(server.database(name), "hf") for name in ("one", "two")]
        yield (
            Stage(one, folder / "1", address=addresses[0]),
            Stage(other, folder / "2", address=addresses[1]),
        )


def test_a_run_killed_around_any_write_or_effect_ends_as_if_unbroken_on_postgresql(stages: Stages) -> None:
    """What a dead worker's sessions still do on the server is there as a whole or not at all, and never twice."""
    points, _ = stages[0].count(orders(1))
    assert points > 80
    trials = [[AtPoint(nth)] for nth in range(1, points + 1)]
    assert end_all(stages, orders(1), trials) >= 0.9 * points


def test_runs_that_share_their_commits_survive_deaths_of_their_recoveries_on_postgresql(stages: Stages) -> None:
    """One statement for several runs takes no neighbour's work along, however often its process dies."""
    chance = random.Random(1)
    points, _ = stages[0].count(orders(3))
    # How many points there are depends on which commits were shared, so that a late one may not come.
    trials = [[AtPoint(chance.randint(1, points // 2)) for _ in range(chance.randint(1, 3))] for _ in range(10)]
    assert end_all(stages, orders(3), trials) >= 5
