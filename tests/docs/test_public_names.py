"""The public names are a promise: none comes or goes by accident."""

from pathlib import Path

import holdfast
from holdfast import events

SNAPSHOT = Path(__file__).with_name("public_names.txt")


def names() -> list[str]:
    """Return every public name, sorted."""
    return sorted(
        [*(f"holdfast.{name}" for name in holdfast.__all__), *(f"holdfast.events.{name}" for name in events.__all__)]
    )


def test_the_public_names_are_those_that_were_agreed() -> None:
    """A name that is added or taken away is written down here too, and in the changelog."""
    assert names() == SNAPSHOT.read_text("utf-8").split()


def test_every_public_name_can_be_used() -> None:
    """What `__all__` lists is there."""
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)
    assert all(hasattr(events, name) for name in events.__all__)


def test_there_are_fewer_than_forty_names() -> None:
    """A newcomer can read the list; what grows beyond it belongs into a module of its own."""
    assert len(holdfast.__all__) < 40
