"""A provider that keeps what it generates, and fails: each generation is made once, and the chain never forks."""

from pathlib import Path

import pytest

from tests.chaos.kept_twins import FAULT_TWINS
from tests.chaos.stateful import TRIALS, Trial, events_of, play
from tests.models.speech import CALLING, FIFTY
from tests.rigs.provider import Fault
from tests.rigs.provider.turn import CUTS

_THIN = {("fifty", 0, "ended"), ("fifty", 1, "goes on"), ("calling", 9, "is cut again")}
THIN = [
    one
    for one in TRIALS
    if (one.answer, one.fault.after_events, one.meanwhile) in _THIN
    or one.fault.flaw is not None
    or (one.answer == "fifty" and one.fault.status != 200)
]
TWINS = {
    "believing": (Trial("gemini", "fifty", Fault(cut="end", after_events=20)), "the result is"),
    "half_calling": (Trial("gemini", "calling", Fault(flaw="half_call")), "the tools that ran"),
    "resending": (Trial("openai", "fifty", Fault(status=500, created=True)), "0 doubts are shown"),
    "recreating": (Trial("openai", "fifty", Fault(cut="fin", after_events=5)), "were made for"),
    "deaf": (Trial("gemini", "fifty", Fault(status=429, headers={"retry-after-ms": "10"})), "1 doubts are shown"),
    "fleeting": (Trial("openai", "fifty", Fault(cut="fin", after_events=5)), "was cancelled at the provider"),
    "forking": (Trial("gemini", "calling", Fault(cut="fin", after_events=5)), "the chain forks"),
}


async def test_whatever_a_provider_does_each_generation_is_made_once_and_charged() -> None:
    """Every fault, before the id and behind it, in the middle of texts and calls, while it ends, goes on or is cut."""
    failures, counts = await play(THIN, "memory://")
    assert failures == []
    assert counts["behind"] > 0
    assert counts["doubts"] > 0


async def test_it_is_so_on_a_disk_too(tmp_path: Path) -> None:
    """A few of the same on SQLite: a cut of each kind, and of each generation what it does meanwhile."""
    some = [one for one in THIN if one.fault.after_events == 9]
    assert (await play(some, f"sqlite:///{tmp_path / 'kept.db'}"))[0] == []


@pytest.mark.parametrize("name", TWINS)
async def test_a_broken_twin_is_caught(name: str) -> None:
    """Each check of these trials can fail, and says why."""
    trial, says = TWINS[name]
    with FAULT_TWINS[name]():
        [said], _ = await play([trial], "memory://")
    assert says in said
    assert (await play([trial], "memory://"))[0] == []


def test_every_fault_is_tried_at_every_event() -> None:
    """The cross product has no hole: each cut before each event of each answer, in both formats."""
    for provider in ("openai", "gemini"):
        for name, answer in (("fifty", FIFTY), ("calling", CALLING)):
            cuts = {
                (one.fault.cut, one.fault.after_events)
                for one in TRIALS
                if (one.provider, one.answer) == (provider, name) and one.fault.cut
            }
            assert len(cuts) == len(CUTS) * events_of(provider, answer)
    assert FAULT_TWINS.keys() == TWINS.keys()
    assert len(set(map(Trial.__str__, TRIALS))) == len(TRIALS)
