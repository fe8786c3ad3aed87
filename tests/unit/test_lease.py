"""A worker dies of a pulse that stood still while somebody looked, and of nothing else."""

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from holdfast.core.ids import WorkerId
from holdfast.engine.lease import Silences

LEASE = 9.0
W, V = WorkerId("w"), WorkerId("v")


class Look(NamedTuple):
    """One look: how long after the last one it was begun, how long it took, and what it saw; None: it failed."""

    pause: float
    took: float
    pulse: int | None


def verdicts(silences: Silences, looks: Sequence[Look]) -> list[bool]:
    """Return what is said after each look."""
    now, said = 0.0, []
    for look in looks:
        asked_at = now + look.pause
        now = asked_at + look.took
        if look.pulse is None:
            silences.failed()
            said.append(False)
        else:
            said.append(silences.saw(W, look.pulse, asked_at=asked_at, answered_at=now))
    return said


def truth(looks: Sequence[Look]) -> list[bool]:
    """Return the rule as it is told: some unbroken row of looks shows one pulse for a whole lease."""
    times, now = list[tuple[float, float]](), 0.0
    for look in looks:
        times.append((now + look.pause, now + look.pause + look.took))
        now = times[-1][1]

    def is_dead(last: int) -> bool:
        for first in range(last, -1, -1):
            if looks[first].pulse is None or looks[first].pulse != looks[last].pulse:
                return False
            if first < last and times[first + 1][1] - times[first][0] > LEASE / 3:
                return False
            if times[last][0] - times[first][1] >= LEASE:
                return True
        return False

    return [is_dead(last) for last in range(len(looks))]


def steady(count: int, pulse: int = 7, apart: float = 1.0) -> list[Look]:
    """Return looks that take no time."""
    return [Look(apart, 0.0, pulse)] * count


def test_a_pulse_that_stood_still_for_a_lease_is_a_death() -> None:
    """Not a moment earlier, and from then on at every look."""
    assert verdicts(Silences(LEASE), steady(12)) == [False] * 9 + [True] * 3


def test_one_beat_starts_the_count_again() -> None:
    """Whichever way the number moves: it was written, so somebody lives."""
    looks = [*steady(9), *steady(9, pulse=3), *steady(1, pulse=3)]
    assert verdicts(Silences(LEASE), looks) == [False] * 18 + [True]


def test_a_look_that_failed_starts_the_count_again() -> None:
    """An outage of the store voids nobody: who could not beat was not looked at either."""
    assert not any(verdicts(Silences(LEASE), [*steady(9), Look(0.5, 0.0, None), *steady(9)]))


def test_a_contender_that_was_stopped_starts_the_count_again() -> None:
    """Whoever was frozen for a while has seen nothing; perhaps everybody was."""
    assert not any(verdicts(Silences(LEASE), [*steady(9), Look(60.0, 0.0, 7), *steady(8)]))


def test_a_slow_look_counts_for_what_it_proves() -> None:
    """The pulse was read at some moment of it, so the count begins at its end and ends at a beginning."""
    looks = [Look(0.0, 2.0, 7), *steady(8), Look(0.9, 2.0, 7)]
    assert verdicts(Silences(LEASE), looks) == [False] * 10


def test_a_failed_look_is_one_for_all() -> None:
    """A look is at every worker, so whoever could not look has lost sight of them all; forgetting is of one."""
    silences = Silences(LEASE)
    for second in range(9):
        for worker in (W, V):
            assert not silences.saw(worker, 1, asked_at=second, answered_at=second)
    silences.forget(V)
    assert silences.saw(W, 1, asked_at=9, answered_at=9)
    assert not silences.saw(V, 1, asked_at=9, answered_at=9)
    silences.failed()
    assert not silences.saw(W, 1, asked_at=10, answered_at=10)


class Hasty(Silences):
    """A broken twin: two thirds of a lease are enough."""

    def __init__(self, lease_seconds: float) -> None:
        super().__init__(lease_seconds)
        self._lease *= 2 / 3


class Patient(Silences):
    """A broken twin: a pause of half a lease is none."""

    def __init__(self, lease_seconds: float) -> None:
        super().__init__(lease_seconds)
        self._apart = lease_seconds / 2


class Forgiving(Silences):
    """A broken twin: a look that failed is as good as none."""

    def failed(self) -> None:
        """Go on as if nothing had been."""


class Early(Silences):
    """A broken twin: the count begins when the first look does."""

    def saw(self, worker: WorkerId, pulse: int, *, asked_at: float, answered_at: float) -> bool:
        """Take a look for a moment."""
        return super().saw(worker, pulse, asked_at=asked_at, answered_at=asked_at)


class Growing(Silences):
    """A broken twin: only a pulse that grew is a beat."""

    def saw(self, worker: WorkerId, pulse: int, *, asked_at: float, answered_at: float) -> bool:
        """Take the greatest pulse so far for the pulse."""
        known = self._silences.get(worker)
        return super().saw(
            worker, max(pulse, known.pulse if known else pulse), asked_at=asked_at, answered_at=answered_at
        )


SEEN = [Look(pause, took, 7) for pause in (1.0, 2.5, 3.0, 3.5) for took in (0.0, 0.5)] + [Look(3.0, 0.0, 7)] * 6
LOOKS = st.lists(st.sampled_from([*SEEN, Look(0.0, 3.0, 7), Look(1.0, 0.0, 3), Look(0.0, 0.0, None)]), max_size=9)


def agrees(kind: type[Silences], looks: Sequence[Look]) -> bool:
    """Say whether a kind of counting says what the rule says, at every look."""
    return verdicts(kind(LEASE), looks) == truth(looks)


@given(looks=LOOKS)
@settings(max_examples=500, deadline=None)
def test_the_count_is_the_rule_as_it_is_told(looks: list[Look]) -> None:
    """Whatever the looks, what is said is what the sentence in the documentation says."""
    assert agrees(Silences, looks)


@pytest.mark.parametrize("twin", [Hasty, Patient, Forgiving, Early, Growing])
def test_a_broken_count_is_found_out(twin: type[Silences]) -> None:
    """The check above is worth something: the same looks find a case for each way to get the rule wrong."""
    search = settings(max_examples=10_000, phases=[Phase.generate], derandomize=True, database=None, deadline=None)
    assert find(LOOKS, lambda looks: not agrees(twin, looks), settings=search)
