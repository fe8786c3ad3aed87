"""Process death: acts that use every verb die at each of their points, on both databases, and end all the same."""

import inspect
import random
import re
from collections.abc import Iterator

import pytest

import holdfast as hf
from holdfast.engine.options import StepOptions
from tests.chaos import acts, program, purse
from tests.chaos.acts import ACTS
from tests.chaos.kills import scratch
from tests.chaos.looking import worth_dying_at
from tests.chaos.theatre import Theatre, Theatres, Trial, end_all, every_point, new_killer
from tests.rigs.server import Server, in_schema

_OPTIONS_ELSEWHERE = {
    "name", "returns", "key", "on_input_change",  # say how a record is found and read: nothing more is written
    "heartbeat",  # ends an attempt as `timeout` does
    "not_performed",  # turns what would be a doubt into a failure
}  # fmt: skip


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def theatres(request: pytest.FixtureRequest) -> Iterator[Theatres]:
    """Two places to die at, one for each core, on each database."""
    with scratch() as folder, new_killer() as one, new_killer() as other:
        addresses: list[str | None] = [None, None]
        if request.param == "postgresql":
            server: Server = request.getfixturevalue("postgres_server")
            addresses = [in_schema(server.database(name), "hf") for name in ("theatre_one", "theatre_two")]
        yield (
            Theatre(one, folder / "1", address=addresses[0]),
            Theatre(other, folder / "2", address=addresses[1]),
        )


@pytest.mark.parametrize("act", ACTS)
def test_an_act_killed_at_any_of_its_points_ends_as_if_unbroken(theatres: Theatres, act: str) -> None:
    """Before and after every write and inside every effect: one journal, one ending, effects by their policies."""
    trials, book = every_point(theatres[0], act)
    assert len(trials) > 10
    assert end_all(theatres, trials, book) >= 0.9 * len(trials)


def test_acts_that_share_their_commits_survive_deaths_of_their_recoveries_too(theatres: Theatres) -> None:
    """Group commit takes no neighbour's work along, and a recovery that dies is recovered from like any other."""
    chance = random.Random(1)
    cast = tuple(f"{act}-a" for act in ACTS)
    trials = [
        # Soon enough to be come to: how many points there are depends on which commits were shared.
        Trial(cast, tuple(chance.randint(1, 150) for _ in range(chance.randint(1, 4))), hasty=place % 2 == 0)
        for place in range(8)
    ]
    assert end_all(theatres, trials, theatres[0].book()) >= len(trials)


def test_a_point_is_left_out_only_where_the_next_leaves_the_same_behind() -> None:
    """One that sends a write, one behind which something is committed or done, and the last are all died at."""
    points = [
        ("before", "a", 0), ("after", "b", 0), ("pay begins", "b", 0), ("pay sent", "b", 1), ("pay performed", "b", 2),
        ("before", "b", 2), ("before", "b", 2), ("after", "c", 2),
    ]  # fmt: skip
    assert worth_dying_at(points, 8) == [1, 3, 4, 6, 7, 8]
    assert worth_dying_at(points, 9) == list(range(1, 10)), "looked at, they came otherwise"


def test_the_acts_use_every_verb() -> None:
    """A verb or an option of a step that no act uses would be killed by nobody."""
    source = "".join(map(inspect.getsource, (acts, program, purse)))
    verbs = {name for name in dir(hf.Context) if not name.startswith("_")}
    assert verbs - set(re.findall(r"\bctx\.(\w+)", source)) == set()
    of_child = {name for name in dir(hf.Child) if not name.startswith("_")}
    assert of_child - set(re.findall(r"\b(?:errand|guest)\.(\w+)", source)) == set()
    options = set(StepOptions.__annotations__)
    assert options - set(re.findall(r"\b(\w+)=", source)) <= _OPTIONS_ELSEWHERE
