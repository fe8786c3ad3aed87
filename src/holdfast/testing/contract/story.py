"""Runs and commits for a store's contract to tell its stories with."""

from typing import Any

from msgspec import Raw
from msgspec.structs import replace

from holdfast.core.checksum import Share, StoredEntry, check_chain, checksum
from holdfast.core.codec import decode_any, encode
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import Emitted, Entry, encode_body
from holdfast.core.ids import TENANT, RunId, WorkerId, id_bytes, new_worker_id
from holdfast.store.protocol import Store
from holdfast.store.start import Start, new_run
from holdfast.store.value import Commit, Created, Lease, NewPost, NewRun, RunRow

NAME = "story"
CODE = "v1"
SERVES = {NAME: CODE}


def a_run(store: Store, *, conversation: str | None = None, parent: RunId | None = None, **start: Any) -> NewRun:
    """Return a run to create: called `story`, due now, unless `start` says otherwise."""
    tenant = start.pop("tenant", TENANT)
    asked = Start(**{"name": NAME, "input": b"{}", "code": CODE, **start})
    new = new_run(asked, tenant=tenant, now=store.now())
    return replace(new, row=replace(new.row, conversation=conversation, parent=parent))


async def a_worker(store: Store) -> WorkerId:
    """Return the id of a worker that the store knows."""
    worker = new_worker_id()
    await store.register(worker, lock=None)
    return worker


async def a_lease(store: Store, worker: WorkerId | None = None, **start: Any) -> Lease:
    """Create a run and return the lease on it, held by `worker` or by a new one."""
    created = await store.create(a_run(store, **start), worker=worker or await a_worker(store))
    assert isinstance(created, Created)
    assert created.lease is not None
    return created.lease


async def claimed(store: Store, worker: WorkerId, run: RunId) -> Lease:
    """Claim one run and return its lease."""
    (lease,) = await store.claim(worker, SERVES, limit=1, runs=[run])
    return lease


async def row_of(store: Store, run: RunId) -> RunRow:
    """Return a run's row, which must be there."""
    row = await store.get(run)
    assert row is not None
    return row


async def journal_of(store: Store, run: RunId) -> list[StoredEntry]:
    """Return all of a run's entries, read page by page and checked as one chain that the row's head closes."""
    cursor, entries, shares = START, list[StoredEntry](), list[Share]()
    while True:
        page = await store.read(run, cursor)
        entries += page.entries
        shares = list(page.shares) or shares
        cursor = Cursor(cursor.seq + len(page.entries))
        if not page.more:
            break
    assert check_chain(run, bytes(16), entries, 0, shares) == page.row.head
    assert page.row.last_seq == len(entries)
    return entries


def words(entries: list[StoredEntry]) -> list[str]:
    """Return what a pen wrote into these entries, in order."""
    return [decode_any(entry.body)["value"] for entry in entries if entry.kind == "Emitted"]


def said(text: str) -> Entry:
    """Return an entry that says `text`."""
    return Emitted(step="0/emit#1", name="emit", raw=Raw(encode(text)))


def a_post(run: RunId, key: str, *, kind: str = "signal", control: bool = False, body: bytes = b"1") -> NewPost:
    """Return a message to a run."""
    return NewPost(run=run, kind=kind, key=key, body=body, control=control)


class Pen:
    """Writes one run under one lease, keeping its place in the chain as a journal does."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self._store, self.lease = store, lease
        self.seq, self.head = lease.row.last_seq, lease.row.head

    def next(self, *texts: str, **rest: Any) -> Commit:
        """Return the commit that says `texts` after everything this pen wrote before, and go on behind it."""
        after, previous, rows = self.seq, self.head, []
        for text in texts:
            self.seq += 1
            entry = said(text)
            body, at = encode_body(entry), self._store.now()
            self.head = checksum(
                id_bytes(self.lease.row.run), self.seq, at, entry.version, entry.type, 0, self.head, body
            )
            rows.append(StoredEntry(self.seq, entry.type, entry.version, at, 0, body, self.head))
        return Commit(after=after, previous=previous, entries=rows, **rest)
