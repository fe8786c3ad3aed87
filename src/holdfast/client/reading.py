"""Reading entries and values of one run, each checked before it is believed."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from msgspec import Struct

from holdfast.core.checksum import check_chain
from holdfast.core.codec import decode_any
from holdfast.core.cursor import Cursor
from holdfast.core.entry import BlobRef, Entry, MessageAdded, RunFinished, read_entry
from holdfast.core.errors import Damaged, InvalidValue, NotFound
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId
from holdfast.core.transcript import read_message, said_text
from holdfast.store.protocol import Store
from holdfast.store.value import Page, RunRow
from holdfast.stream.feed import feed


async def read_state(store: Store, run: RunId) -> RunState:
    """Return what a run's journal comes to."""
    state = RunState()
    async for event in feed(store, run, None, follow=False):
        if isinstance(event, Entry):
            state = fold(state, event)
    return state


async def read_at(store: Store, row: RunRow, seq: int) -> Entry | None:
    """Return one entry of a run; None where the row is damaged, and nothing of it can be believed.

    Raises:
        Damaged: it is missing, or does not follow the one before it.
        UnknownEntry: this version cannot read it.
    """
    if row.damage:
        return None
    page = await store.read(row.run, Cursor(seq - 1), chunks=False, limit=1)
    if not page.entries:
        raise Damaged(run=row.run, seq=seq, what=f"entry {seq} is missing")
    check_chain(row.run, page.previous, page.entries[:1], seq - 1, page.shares)
    return read_entry(row.run, page.entries[0])


def read_finished(page: Page) -> RunFinished:
    """Return the ending of a run whose row says that it has one.

    Raises:
        Damaged: the journal does not say the same.
    """
    row = page.row
    if not page.entries:
        raise Damaged(run=row.run, seq=row.last_seq, what=f"entry {row.last_seq} is missing")
    head = check_chain(row.run, page.previous, page.entries[:1], row.last_seq - 1, page.shares)
    if head != row.head:
        raise Damaged(run=row.run, seq=row.last_seq, what="the row knows another last entry")
    last = read_entry(row.run, page.entries[0])
    if not isinstance(last, RunFinished) or last.status is not row.status:
        raise Damaged(run=row.run, seq=row.last_seq, what=f"the row says {row.status}, the journal {last.type}")
    return last


async def read_result(store: Store, row: RunRow, ending: RunFinished) -> bytes:
    """Return a run's result as JSON, wherever it stands: in its ending, in a blob, or as the text of a message.

    Raises:
        Damaged: it is not there, or not what the ending says.
    """
    if ending.said is None:
        return bytes(ending.raw) if ending.blob is None else await read_blob(store, row, ending.seq, ending.blob.digest)
    try:
        return bytes(said_text(await read_at(store, row, ending.said)))
    except ValueError as error:
        raise Damaged(run=row.run, seq=ending.said, what=str(error)) from error


async def read_value(store: Store, row: RunRow, entry: Any) -> Any:
    """Return the value that an entry holds, or names as a blob.

    Raises:
        Damaged: the blob is not there, or not what its digest says.
    """
    if isinstance(entry, RunFinished):
        return decode_any(await read_result(store, row, entry))
    if entry.blob is None:
        return entry.value
    return decode_any(await read_blob(store, row, entry.seq, entry.blob.digest))


async def read_blob(store: Store, row: RunRow, seq: int, digest: str) -> bytes:
    """Return the bytes of a blob that an entry names.

    Raises:
        Damaged: it is not there, or not what its digest says; run and entry are named.
    """
    try:
        return await store.blob(row.tenant, digest)
    except (Damaged, NotFound) as error:
        raise Damaged(run=row.run, seq=seq, what=str(error)) from error


def blobs_of(value: Any) -> Iterator[str]:
    """Yield the digests of the blobs that an entry names."""
    match value:
        case BlobRef():
            yield value.digest
        case MessageAdded(blob=None):
            with suppress(InvalidValue):  # what is no message names nothing
                yield from blobs_of(read_message(value).parts)
        case Struct():
            for name in value.__struct_fields__:
                yield from blobs_of(getattr(value, name))
        case list() | tuple():
            for item in value:
                yield from blobs_of(item)
        case dict():
            for item in value.values():
                yield from blobs_of(item)
        case _:
            pass
