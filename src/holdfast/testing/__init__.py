"""What Holdfast's users test with: a clock to move, and the contract of every store in `holdfast.testing.contract`."""

from holdfast.testing.clock import MovingClock

__all__ = ["MovingClock"]
