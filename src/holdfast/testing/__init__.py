"""What users test with: a runtime whose clock moves, crashes at every write, replays of exported runs."""

from holdfast.testing.clock import MovingClock
from holdfast.testing.opening import ClockedRuntime, open

__all__ = ["ClockedRuntime", "MovingClock", "open"]
