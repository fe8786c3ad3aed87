"""When a worker is dead by its pulse alone: arithmetic over looks, on the clock of whoever looks."""

from typing import NamedTuple

from holdfast.core.ids import WorkerId


class _Silence(NamedTuple):
    pulse: int
    since: float
    """The end of the first look that saw this pulse: it was the same from then on."""
    looked: float
    """The beginning of the last look that saw it."""


class Silences:
    """How long each worker's pulse was seen unchanged.

    Only looks count, never the time between two of them: a contender that was stopped, or to whom the store did not
    answer, has seen nothing meanwhile, and nobody dies of that. Times are those of one monotonic clock.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease, self._apart = lease_seconds, lease_seconds / 3
        self._silences: dict[WorkerId, _Silence] = {}

    def saw(self, worker: WorkerId, pulse: int, *, asked_at: float, answered_at: float) -> bool:
        """Take in a look; True when the pulse was the same for a full lease, in looks a third of it apart at most."""
        before = self._silences.get(worker)
        # The pulse was read somewhere between asking and answering, so each is taken where it proves the least.
        if before is None or before.pulse != pulse or answered_at - before.looked > self._apart:
            before = _Silence(pulse, answered_at, asked_at)
        self._silences[worker] = before._replace(looked=asked_at)
        return asked_at - before.since >= self._lease

    def forget(self, worker: WorkerId) -> None:
        """Begin again for one worker, who is known to live or is gone."""
        self._silences.pop(worker, None)

    def failed(self) -> None:
        """Begin again for all: a look that failed has seen nobody."""
        self._silences.clear()
