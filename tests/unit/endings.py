"""Runs that have ended, for tests of what becomes of them."""

from typing import Any

import msgspec

from holdfast.core import entry as e
from holdfast.core.checksum import StoredEntry, checksum
from holdfast.core.codec import encode
from holdfast.core.entry import encode_body
from holdfast.core.ids import RunId, id_bytes
from holdfast.core.status import Status
from holdfast.store.protocol import Store
from holdfast.store.value import Commit, Created, RowChange
from holdfast.testing.contract.story import Pen, a_run, a_worker

LARGE = encode("large" * 20_000)
"""An input that stands in a blob."""


def ending(store: Store, pen: Pen, status: Status) -> Commit:
    """Return the commit that ends a run."""
    entry = e.RunFinished(status=status, raw=msgspec.Raw(encode("done")))
    body, at = encode_body(entry), store.now()
    head = checksum(id_bytes(pen.lease.row.run), pen.seq + 1, at, entry.version, entry.type, 0, pen.head, body)
    stored = StoredEntry(pen.seq + 1, entry.type, entry.version, at, 0, body, head)
    return Commit(after=pen.seq, previous=pen.head, entries=[stored], change=RowChange(status=status))


async def an_ended_run(store: Store, *texts: str, status: Status = Status.COMPLETED, **start: Any) -> RunId:
    """Return a run that said these words and ended."""
    created = await store.create(a_run(store, **start), worker=await a_worker(store))
    assert isinstance(created, Created)
    assert created.lease is not None
    pen = Pen(store, created.lease)
    for text in texts:
        await store.commit(created.lease, pen.next(text))
    await store.commit(created.lease, ending(store, pen, status))
    return created.row.run
