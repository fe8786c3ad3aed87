"""Which points are worth dying at: those that leave something else behind than the next one does."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from holdfast.store import point
from tests.chaos.homes import home

Point = tuple[str, str, object]
"""Its name, a digest of what is committed there, and what was done outside of the store by then."""


def look_at_points(place: str, done: Callable[[], object]) -> list[Point]:
    """Have every point of this process noted from now on, and return where."""
    points: list[Point] = []
    reached, at_home = point.reached, home(place)

    def noted(name: str) -> None:
        points.append((name, at_home.state(), done()))
        reached(name)

    point.reached = noted
    return points


def worth_dying_at(points: Sequence[Point], count: int) -> list[int]:
    """Return which of so many points to die at: not those that leave the same behind as the next one does.

    Where nothing is committed or done between two points, whoever comes after finds the same at both, and more has
    been promised at the second. A write that is about to be sent may be done by then, so such points all count; and so
    does every point of a program whose points come otherwise when they are looked at.
    """
    if len(points) != count:
        return list(range(1, count + 1))
    pairs = enumerate(zip_longest(points, points[1:]), start=1)
    return [nth for nth, (at, next_) in pairs if at[0] == "before" or next_ is None or at[1:] != next_[1:]]
