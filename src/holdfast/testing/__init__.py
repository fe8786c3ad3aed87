"""What users test with: a runtime whose clock moves, crashes at every write, replays of exported runs."""

from holdfast.testing.clock import MovingClock
from holdfast.testing.crashes import Survived, every_crash
from holdfast.testing.life import Ended
from holdfast.testing.opening import ClockedRuntime, open
from holdfast.testing.replaying import Replayed, replay
from holdfast.testing.scripted import ScriptedModel, call
from holdfast.testing.scripted_harness import ScriptedHarness, ScriptedProvider
from holdfast.testing.verdict import NotSurvived

__all__ = [
    "ClockedRuntime",
    "Ended",
    "MovingClock",
    "NotSurvived",
    "Replayed",
    "ScriptedHarness",
    "ScriptedModel",
    "ScriptedProvider",
    "Survived",
    "call",
    "every_crash",
    "open",
    "replay",
]
