"""The reason of a run that is set aside because it makes no progress."""

import pytest

from holdfast.core import entry as e
from holdfast.core.checksum import ZERO, StoredEntry
from holdfast.core.ids import new_run_id
from holdfast.core.status import Effect
from holdfast.store.stalling import no_progress
from holdfast.store.value import RunRow

RUN = new_run_id()
STARTED = e.RunStarted(name="tale", tenant="t", digest="", seed="", root=RUN)
LOOKED = e.StepCompleted(step="0/look#1", digest="")
RESUMED = e.RunResumed(worker="w", fence=2, attempt=2, why="claimed")
INTENDED = e.StepStarted(step="0/pay#1", digest="", effect=Effect.KEYED)


def stored(*entries: e.Entry) -> list[StoredEntry]:
    """Return entries as a store has them."""
    return [StoredEntry(seq, entry.type, 1, 0, 0, e.encode_body(entry), ZERO) for seq, entry in enumerate(entries, 1)]


@pytest.mark.parametrize(
    ("entries", "where"),
    [
        ((STARTED, RESUMED, RESUMED), ", before its first step was recorded"),
        ((STARTED, LOOKED, RESUMED, RESUMED), ", after step 0/look#1"),
        ((STARTED, LOOKED, RESUMED, INTENDED, RESUMED, INTENDED), ", in step 0/pay#1"),
        ((RESUMED, RESUMED), ""),
    ],
)
def test_a_run_that_makes_no_progress_is_told_of_with_its_last_step(entries: tuple[e.Entry, ...], where: str) -> None:
    """P5: the step that it was in if its intent is written, the last one that is recorded otherwise."""
    row = RunRow(number=1, run=RUN, tenant="t", name="tale", digest="", created_at=0, updated_at=0, stalls=5)
    assert no_progress(row, stored(*entries)) == (f"no_progress: 5 workers died or gave up without a new entry{where}")


def test_an_entry_that_cannot_be_read_is_not_told_of() -> None:
    """A damaged journal must not keep a run from being set aside."""
    row = RunRow(number=1, run=RUN, tenant="t", name="tale", digest="", created_at=0, updated_at=0, stalls=5)
    damaged = stored(STARTED, LOOKED)[1]._replace(body=b"{")
    assert no_progress(row, [damaged]) == "no_progress: 5 workers died or gave up without a new entry"
