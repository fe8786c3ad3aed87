"""A worker that was stopped, declared dead and woken writes nothing of its old runs, and serves new ones."""

import pytest

from tests.chaos.judge import Broken
from tests.chaos.sites import Site
from tests.chaos.zombies import Sleep, staged

pytestmark = pytest.mark.slow
SLEEPS = (
    Sleep("commit", 2, early=True),
    Sleep("commit", 3, effect="sign"),
    Sleep("effect-begins", effect="sign", frozen=True),
    Sleep("effect-ends", early=True),
    Sleep("pulse"),
    Sleep("moment", 3),
)


def test_whoever_wakes_after_being_declared_dead_writes_nothing_and_serves_again(site: Site) -> None:
    """Before a commit, inside an effect, inside a pulse, at any moment: the run ends as its policies say."""
    with staged(site) as stage:
        for number, sleep in enumerate(SLEEPS):
            stage.play(sleep, number)
        assert stage.overtaken >= len(SLEEPS) - 1


def test_a_store_that_asks_for_no_fence_is_caught(site: Site) -> None:
    """The twin: its commits ask only for the run's last number."""
    with staged(site, twin=True) as stage, pytest.raises(Broken, match="a worker without its lease wrote"):
        stage.play(Sleep("commit", 2, early=True), 1)
