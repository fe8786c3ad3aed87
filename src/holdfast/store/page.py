"""What drivers share of reading: a page's worth of rows, and the page that a run's ending is."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import ZERO, StoredEntry
from holdfast.store.value import Commit, Lease, Page


def cut(rows: Iterable[Any], after: int, limit: int) -> tuple[bytes, list[StoredEntry], bool]:
    """Return a page's worth of rows: the checksum before it, its entries, and whether more follow."""
    entries: list[StoredEntry] = []
    previous, size = ZERO, 0
    for values in rows:
        if values[0] == after:
            previous = values[6]
            continue
        if entries and (len(entries) == limit or size > limits.PAGE_BYTES):
            return previous, entries, True
        entries.append(StoredEntry(*values))
        # A damaged row may hold anything.
        size += len(values[5]) if isinstance(values[5], bytes | str) else 0
    return previous, entries, False


def joins(after: int, previous: bytes, entries: Sequence[StoredEntry]) -> bool:
    """Say whether a run's own entries begin where the page does; of a fork what comes before is another's."""
    return previous != ZERO if after else bool(entries) and entries[0].seq == 1


def ending(lease: Lease, change: Commit) -> Page:
    """Return what a reader would now find of a run that this commit ended."""
    to = change.change
    assert to is not None
    last = change.entries[-1]
    row = replace(
        lease.row, status=to.status, reason=to.reason, due_at=None, owner=None, last_seq=last.seq,
        head=last.checksum, updated_at=last.at,
    )  # fmt: skip
    before = change.entries[-2].checksum if len(change.entries) > 1 else change.previous
    return Page(row, [last], (), before, False)
