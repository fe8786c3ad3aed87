"""Appending to one run under its lease: numbers, checksums, and what a refusal means."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.checksum import StoredEntry, check_chain, checksum
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import Entry, encode_body, read_entry
from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId, id_bytes
from holdfast.store.protocol import Pending, Store, Transaction
from holdfast.store.value import Commit, Lease, NewBlob, Outcome, RowChange, RunRow

_NOTHING: Final[list[Entry]] = []
_set: Final = msgspec.structs.force_setattr


class Journal:
    """The writing end of a run's history, for the holder of its lease.

    Commits take their place when they are asked for, so a run's facts stay in order whoever awaits them; once one is
    lost, all that follow are lost with it.
    """

    def __init__(self, store: Store, lease: Lease, row: RunRow) -> None:
        self._store, self._lease = store, lease
        self._run = id_bytes(row.run)
        self._seq, self._head = row.last_seq, row.head
        self._noted: list[Entry] = []
        self._taken: list[Entry] = []
        self._before = (row.last_seq, row.head)
        self.control_seq = row.control_seq
        self.inbox_seq = row.inbox_seq
        self._now = store.now
        self._commit = store.commit

    @property
    def lease(self) -> Lease:
        """The right that this journal writes under."""
        return self._lease

    @property
    def seq(self) -> int:
        """The number of the last entry that was asked for."""
        return self._seq

    def note(self, entry: Entry) -> None:
        """Write `entry` together with whatever is appended next."""
        self._noted.append(entry)

    @property
    def has_notes(self) -> bool:
        """True while something was noted and waits for an entry to be written with."""
        return bool(self._noted)

    def withdraw(self) -> Sequence[Entry]:
        """Take back what was noted and waits for an entry to be written with; return it."""
        noted, self._noted = self._noted, []
        return noted

    def append(
        self,
        *entries: Entry,
        blobs: Sequence[NewBlob] = (),
        change: RowChange | None = None,
        guarded: bool = False,
        heard: int | None = None,
        **rest: Any,
    ) -> Pending[Outcome]:
        """Queue one commit and return its outcome to be.

        `guarded` refuses the commit if a control post arrived that the run has not seen. A parking change refuses it
        if any post did, and so does one that says up to which post it has `heard`.
        """
        if heard is not None:
            rest["inbox"] = heard
        return self._commit(self._lease, self._change(entries, blobs, change, guarded, rest))

    def add(self, entry: Entry, blobs: Sequence[NewBlob]) -> Pending[Outcome]:
        """Queue a commit of one entry: what `append` does, without what an ordinary step has no use for."""
        if self._noted:
            return self.append(entry, blobs=blobs)
        self._taken = _NOTHING
        at = self._now()
        after, previous = self._before = self._seq, self._head
        kind, version = entry.__class__.__name__, entry.version
        body = encode_body(entry)
        seq = self._seq = after + 1
        head = self._head = checksum(self._run, seq, at, version, kind, 0, previous, body)
        row = StoredEntry(seq, kind, version, at, 0, body, head)
        return self._commit(self._lease, Commit(after=after, previous=previous, entries=[row], blobs=blobs))

    def _change(
        self, entries: Sequence[Entry], blobs: Sequence[NewBlob], change: RowChange | None, guarded: bool, rest: Any
    ) -> Commit:
        if self._noted:
            self._taken = self._noted
            entries, self._noted = (*self._noted, *entries), []
        else:
            self._taken = []
        return self._commit_of(entries, blobs, change, guarded, rest)

    def _commit_of(
        self, entries: Sequence[Entry], blobs: Sequence[NewBlob], change: RowChange | None, guarded: bool, rest: Any
    ) -> Commit:
        at = self._now()
        after, previous = self._before = self._seq, self._head
        seq, head, run = after, previous, self._run
        rows = []
        for entry in entries:
            seq += 1
            kind, version = entry.__class__.__name__, entry.version
            _set(entry, "at", 0)
            _set(entry, "seq", 0)
            body = encode_body(entry)
            # Whoever wrote it knows of its time and place what whoever reads it will; in the body they have none.
            _set(entry, "at", at)
            _set(entry, "seq", seq)
            head = checksum(run, seq, at, version, kind, 0, head, body)
            rows.append(StoredEntry(seq, kind, version, at, 0, body, head))
        self._seq, self._head = seq, head
        if change is not None and not change.status.terminal:
            rest["inbox"] = self.inbox_seq
        return Commit(
            after=after,
            previous=previous,
            entries=rows,
            blobs=blobs,
            change=change,
            control=self.control_seq if guarded else None,
            **rest,
        )

    async def transact(self, work: Callable[[Transaction], Entry], *, deadline_seconds: float, **rest: Any) -> Outcome:
        """Call `work` in a transaction of the store and append the entry it returns there.

        What `work` raises is raised here, and nothing was written.
        """
        seq, head = self._seq, self._head
        # Taken out, because `work` runs in a thread: what other branches note meanwhile belongs to a later commit.
        noted, self._noted = self._noted, []

        def run(transaction: Transaction) -> Commit:
            self._seq, self._head = seq, head
            return self._commit_of((*noted, work(transaction)), (), None, True, rest)

        try:
            outcome = await self._store.transact(self._lease, run, deadline_seconds=deadline_seconds)
        except BaseException:
            self._seq, self._head, self._noted = seq, head, noted + self._noted
            raise
        self._taken = noted
        return outcome

    def take_back(self) -> None:
        """Forget the last append, which was refused or failed before anything was written.

        What had been noted for it is noted again.
        """
        self._seq, self._head = self._before
        self._noted = self._taken + self._noted


async def load(store: Store, run: RunId, take: Callable[[Entry], None]) -> RunRow:
    """Give every entry of a run to `take`, in order and checked, and return the row they add up to.

    Raises:
        Damaged: an entry is missing or altered, or the tail was cut.
        UnknownEntry: an entry that this version cannot read.
    """
    cursor, head = START, None
    while True:
        page = await store.read(run, cursor, chunks=False)
        head = check_chain(run, page.previous if head is None else head, page.entries, cursor.seq, page.shares)
        for row in page.entries:
            take(read_entry(run, row))
        cursor = Cursor(cursor.seq + len(page.entries))
        if not page.more:
            break
        await asyncio.sleep(0)  # a long journal must not hold up the runs beside it
    if page.row.damage:
        raise Damaged(run=run, seq=None, what=page.row.damage)
    if page.row.last_seq != cursor.seq or page.row.head != head:
        what = f"the row says {page.row.last_seq} entries, the journal has {cursor.seq}, or its head differs"
        raise Damaged(run=run, seq=min(cursor.seq, page.row.last_seq) + 1, what=what)
    return page.row
