"""The pace of a process towards its model providers: one line per lane, whichever run asks."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from holdfast.agent.lane import Lane, RateSeen

Clock = Callable[[], int]
"""Returns the time in µs, as a store's `now` does."""
_SKEW: Final = 5_000_000
"""By how much the clocks of two stores may differ and still tell one time."""


class _Known:
    """A lane, and the time as whoever asked last tells it; it does not turn back."""

    def __init__(self, clock: Clock) -> None:
        self.lane, self.clock, self.now = Lane(), clock, clock()

    def tick(self) -> int:
        self.now = max(self.now, self.clock())
        return self.now


class Pace:
    """All lanes of a process; any thread may ask.

    A generation asks `before` its request goes, and whoever speaks to the provider tells `after` what its answer said,
    as soon as the headers have come. A lane of which nothing was learnt never waits.
    """

    def __init__(self) -> None:
        self._lanes: dict[str, _Known] = {}
        self._lock = Lock()

    def before(self, lane: str, who: str, *, clock: Clock, tokens: int = 0, late_seconds: float = 0.0) -> int | None:
        """Return None when `who` may send its request now, or the time by `clock` at which to ask again.

        Places are kept in the order of asking; the same `who` asks again for the same place, or leaves it.
        """
        with self._lock:
            known = self._lanes.get(lane)
            if known is None or clock() < known.now - _SKEW:
                # Times of a clock that is far behind mean nothing here: what was learnt by another is forgotten.
                known = self._lanes[lane] = _Known(clock)
            known.clock = clock
            now = known.tick()
            if late_seconds > 0:
                known.lane.stall(round(late_seconds * 1e6), now)
            return known.lane.ask(who, tokens, now)

    def leave(self, lane: str, who: str) -> None:
        """Give up the place of somebody who will not send."""
        with self._lock:
            if lane in self._lanes:
                self._lanes[lane].lane.leave(who)

    def after(self, lane: str, seen: RateSeen) -> None:
        """Learn what the answer to a request told of the lane's limits; of a lane that nobody asks for, nothing."""
        with self._lock:
            known = self._lanes.get(lane)
            if known is not None:
                known.lane.see(seen, known.tick())

    def gate(self, lane: str, clock: Clock, tokens: Callable[[], int]) -> "LaneGate":
        """Return what an attempt asks before it begins."""
        return LaneGate(self, lane, clock, tokens)


@dataclass(frozen=True, slots=True)
class LaneGate:
    """The lane of one generation: says when each of its attempts may begin."""

    pace: Pace
    lane: str
    clock: Clock
    tokens: Callable[[], int]

    def before(self, who: str, late_seconds: float = 0.0) -> int | None:
        """Return None when it may begin, or when to ask again."""
        return self.pace.before(
            self.lane, who, clock=self.clock, tokens=self.tokens(), late_seconds=late_seconds
        )  # fmt: skip

    def leave(self, who: str) -> None:
        """Give up its place."""
        self.pace.leave(self.lane, who)


PACE: Final = Pace()
"""The one that all runs of this process share; providers tell it what they see."""
