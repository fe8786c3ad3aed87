"""A run's events from any cursor: history, then live, without a gap or a repeat."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from holdfast.core.checksum import StoredEntry, check_chain
from holdfast.core.cursor import START, Cursor, format_cursor, parse_cursor
from holdfast.core.entry import Entry, RunFinished, Unknown, read_entry
from holdfast.core.errors import BadCursor, Damaged, UnknownEntry
from holdfast.core.ids import RunId
from holdfast.store.protocol import Store
from holdfast.store.value import Page, RunRow, StoredChunk
from holdfast.stream.event import Chunk, Event, PreviewReset

_LOOK_SECONDS: Final = 1.0
"""A reader looks this often even if no bell rang: hints are hints."""
_set: Final = msgspec.structs.force_setattr


async def feed(
    store: Store, run: RunId, after: str | int | None = None, *, follow: bool = True
) -> AsyncGenerator[Event, None]:
    """Yield what follows `after`; with `follow`, go on until the run has ended.

    Raises:
        BadCursor: `after` is malformed or ahead of the journal.
        Conflict: it is of another epoch.
        NotFound: there is no such run.
        Damaged: an entry is missing or altered.
    """
    cursor = parse_cursor(after, epoch=store.epoch)
    connecting = True
    # Listen before reading: an entry between the two then wakes us instead of being missed.
    bell = store.watch(run)
    try:
        while True:
            page = await store.read(run, cursor)
            if connecting:
                check_cursor(cursor, page.row, str(after))
                if _preview_is_stale(cursor, page):
                    yield PreviewReset(run=run)
                connecting = False
            for event, place in _events(store, run, page, cursor):
                cursor = place
                yield event
                if isinstance(event, RunFinished):
                    return
            cursor = max(cursor, _end(page))
            if page.more or page.chunks:
                # A long history must not hold up whoever shares the event loop.
                await asyncio.sleep(0)
                continue
            if not follow or page.row.status.terminal:
                return
            await bell.wait(_LOOK_SECONDS)
    finally:
        bell.close()


def check_cursor(cursor: Cursor, row: RunRow, text: str) -> None:
    """Refuse a place that the run has not come to.

    Raises:
        BadCursor: `text` names one.
    """
    if cursor.seq > row.last_seq:
        raise BadCursor(text, f"is ahead of the journal, which is at {row.last_seq}")
    if cursor.fence > row.fence:
        raise BadCursor(text, f"names fence {cursor.fence}, but the run is at {row.fence}")


def _preview_is_stale(cursor: Cursor, page: Page) -> bool:
    return cursor.number > 0 and cursor.fence != page.row.fence


def _events(store: Store, run: RunId, page: Page, cursor: Cursor) -> list[tuple[Event, Cursor]]:
    """Return a page's events in the feed's order, each with its place."""
    head = check_chain(run, page.previous, page.entries, cursor.seq, page.shares)
    if not page.more and not page.row.damage:
        _check_end(page, cursor.seq + len(page.entries), head)
    places: list[tuple[Cursor, StoredEntry | StoredChunk]] = [(Cursor(row.seq), row) for row in page.entries]
    # A chunk of an earlier owner is of a preview that has ended; what matters of it is in the entries.
    places += [(Cursor(c.seq, c.fence, c.number), c) for c in _live(page)]
    places.sort(key=lambda place: place[0])
    return [(_event(store, run, place, row), place) for place, row in places]


def _check_end(page: Page, seq: int, head: bytes) -> None:
    """Refuse a journal whose tail was cut off: what is left of it is sound, but the row knows of more."""
    row = page.row
    if (seq, head) != (row.last_seq, row.head):
        raise Damaged(run=row.run, seq=min(seq, row.last_seq) + 1, what=f"the row says {row.last_seq} entries")


def _end(page: Page) -> Cursor:
    """Return the page's last place, a former owner's chunks included: what is not shown is passed over too."""
    chunk = page.chunks[-1] if page.chunks else None
    return Cursor(chunk.seq, chunk.fence, chunk.number) if chunk is not None else START


def _live(page: Page) -> Sequence[StoredChunk]:
    return [chunk for chunk in page.chunks if chunk.fence == page.row.fence]


def _event(store: Store, run: RunId, place: Cursor, row: StoredEntry | StoredChunk) -> Event:
    name = format_cursor(place, epoch=store.epoch)
    if isinstance(row, StoredChunk):
        return Chunk(
            id=name, run=run, seq=row.seq, at=row.at, fence=row.fence, number=row.number, step=row.step,
            attempt=row.attempt, offset=row.offset, raw=msgspec.Raw(row.body),
        )  # fmt: skip
    entry: Entry
    try:
        entry = read_entry(run, row)
    except UnknownEntry:
        entry = Unknown(kind=row.kind, v=row.version, run=run, seq=row.seq, at=row.at)
    _set(entry, "id", name)
    return entry
