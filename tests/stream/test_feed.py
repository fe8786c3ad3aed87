"""A feed gives everything after a cursor: nothing lost, nothing twice, from wherever the reader stands."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import checksum
from holdfast.core.cursor import Cursor
from holdfast.core.entry import Emitted, Entry, RunFinished, Unknown, encode_body
from holdfast.core.errors import BadCursor, Conflict, Damaged, NotFound
from holdfast.core.ids import RunId, id_bytes, new_run_id
from holdfast.core.status import Status
from holdfast.store.memory import MemoryStore
from holdfast.store.protocol import Store
from holdfast.store.value import Commit, Committed, NewChunk, Page, RowChange
from holdfast.stream.event import Chunk, Event, PreviewReset
from holdfast.stream.feed import feed
from holdfast.testing.contract.story import Pen, a_lease, a_worker, claimed

SECONDS = 20.0


async def history(store: Store, run: RunId, after: str | None = None) -> list[Event]:
    """Return what a reader gets that does not wait."""
    async with asyncio.timeout(SECONDS):
        return [event async for event in feed(store, run, after, follow=False)]


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    """Return the next events of a live feed."""
    async with asyncio.timeout(SECONDS):
        return [await anext(events) for _ in range(count)]


def shown(events: list[Event]) -> list[Any]:
    """Return ids with what they say."""
    return [(event.id, event.value if isinstance(event, Chunk | Emitted) else event.type) for event in events]


def chunks(*numbers: int, step: str = "0/s#1") -> list[NewChunk]:
    """Return chunks to add."""
    return [NewChunk(number, step, 1, number, b'"c%d"' % number) for number in numbers]


async def finish(store: Store, pen: Pen) -> None:
    """Write the ending."""
    run, entry = pen.lease.row.run, RunFinished(status=Status.COMPLETED)
    commit = pen.next("placeholder", change=RowChange(status=Status.COMPLETED))
    body, row = encode_body(entry), commit.entries[0]
    end = checksum(id_bytes(run), row.seq, row.at, 1, "RunFinished", 0, commit.previous, body)
    commit.entries = [row._replace(kind="RunFinished", body=body, checksum=end)]
    assert isinstance(await store.commit(pen.lease, commit), Committed)


async def a_story(store: Store) -> Pen:
    """Write a run with entries, chunks between them, and live chunks at its end."""
    pen = Pen(store, await a_lease(store))
    await store.chunks(pen.lease, chunks(1, 2, step="0/kept#1"))
    await store.commit(pen.lease, pen.next("a", "b"))
    await store.chunks(pen.lease, chunks(3, step="0/kept#1"))
    await store.commit(pen.lease, pen.next("c"))
    await store.chunks(pen.lease, chunks(4, 5))
    return pen


STORY = [
    ("1", "RunStarted"), ("1:1:1", "c1"), ("1:1:2", "c2"), ("2", "a"), ("3", "b"), ("3:1:3", "c3"), ("4", "c"),
    ("4:1:4", "c4"), ("4:1:5", "c5"),
]  # fmt: skip


async def test_a_reader_without_a_cursor_gets_everything_in_order(store: Store) -> None:
    """Entries by number, each followed by its chunks."""
    pen = await a_story(store)
    assert shown(await history(store, pen.lease.row.run)) == STORY


@pytest.mark.parametrize("place", range(len(STORY)))
async def test_a_reader_at_any_cursor_gets_exactly_the_rest(store: Store, place: int) -> None:
    """Whichever id was the last that a reader saw, the next feed begins behind it."""
    pen = await a_story(store)
    cursor = STORY[place][0]
    assert shown(await history(store, pen.lease.row.run, cursor)) == STORY[place + 1 :]


async def test_a_live_reader_gets_each_event_once_as_it_is_written(store: Store) -> None:
    """History, then live, then the end: one feed, and it ends with the run."""
    pen = Pen(store, await a_lease(store))
    events = feed(store, pen.lease.row.run)
    got = await take(events, 1)
    await store.chunks(pen.lease, chunks(1))
    got += await take(events, 1)
    await store.commit(pen.lease, pen.next("a", drop=["*"]))
    got += await take(events, 1)
    await finish(store, pen)
    async with asyncio.timeout(SECONDS):
        got += [event async for event in events]
    assert shown(got) == [("1", "RunStarted"), ("1:1:1", "c1"), ("2", "a"), ("3", "RunFinished")]


async def test_a_reader_that_reconnects_after_every_event_misses_and_repeats_nothing(store: Store) -> None:
    """A connection that breaks all the time shows the same story as one that never did."""
    pen = Pen(store, await a_lease(store))
    run, count = pen.lease.row.run, 30
    wrote = asyncio.Event()

    async def write() -> None:
        for n in range(count):
            await store.commit(pen.lease, pen.next(str(n)))
            wrote.set()
            await asyncio.sleep(0)
        await finish(store, pen)

    writing, cursor, got = asyncio.create_task(write()), None, list[Event]()
    async with asyncio.timeout(SECONDS):
        while not got or not isinstance(got[-1], RunFinished):
            events = feed(store, run, cursor)
            got.append(await anext(events))
            cursor = got[-1].id
            await events.aclose()
    await writing
    assert [event.id for event in got] == [str(n) for n in range(1, count + 3)]
    assert shown(got) == shown(await history(store, run))


class Looking(MemoryStore):
    """A store that stops after each look until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.looked, self.proceed, self.reads = asyncio.Event(), asyncio.Event(), 0

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        """Look, then wait to be let go."""
        page = await super().read(run, after, chunks=chunks, limit=limit)
        self.reads += 1
        self.looked.set()
        await self.proceed.wait()
        return page


async def test_an_entry_written_while_the_reader_looks_away_is_not_missed() -> None:
    """The race a feed must survive: the append lands after the look and before the wait."""
    store = Looking()
    pen = Pen(store, await a_lease(store))
    events = feed(store, pen.lease.row.run, "1")
    reading = asyncio.ensure_future(anext(events))
    async with asyncio.timeout(SECONDS):
        await store.looked.wait()
        await store.commit(pen.lease, pen.next("news"))
        began = asyncio.get_running_loop().time()
        store.proceed.set()
        event = await reading
        # Woken by the bell, and not by the next look that a reader takes without one.
        assert asyncio.get_running_loop().time() - began < 0.5
    assert (event.id, store.reads) == ("2", 2)
    await events.aclose()


async def test_a_slow_reader_holds_one_page_and_loses_nothing(store: Store) -> None:
    """What a reader has not taken waits in the store, not in memory."""
    pen = Pen(store, await a_lease(store))
    events = feed(store, pen.lease.row.run)
    await take(events, 1)
    for n in range(4):
        await store.commit(pen.lease, pen.next(*(f"{n}.{m}" for m in range(400))))
    got = await take(events, 1600)
    assert [event.id for event in got] == [str(n) for n in range(2, 1602)]
    await events.aclose()


async def test_a_reader_that_takes_one_event_reads_one_page() -> None:
    """Memory is bounded by the page, however long the run."""
    store = Looking()
    store.proceed.set()
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next(*(str(n) for n in range(3 * limits.PAGE_ENTRIES))))
    events = feed(store, pen.lease.row.run)
    await take(events, limits.PAGE_ENTRIES)
    assert store.reads == 1
    await take(events, 1)
    assert store.reads == 2
    await events.aclose()


async def test_a_long_history_lets_others_take_their_turn(store: Store) -> None:
    """Reading page after page does not hold up whoever shares the event loop."""
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next(*(str(n) for n in range(5 * limits.PAGE_ENTRIES))))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await history(store, pen.lease.row.run)
    counting.cancel()
    assert turns >= 4


async def test_a_preview_of_a_former_owner_is_reset(store: Store) -> None:
    """A cursor of another fence than the run's gets one reset, without an id, and then the rest."""
    old = Pen(store, await a_lease(store))
    await store.chunks(old.lease, chunks(1, 2))
    await store.void(old.lease.worker, why="test")
    new = Pen(store, await claimed(store, await a_worker(store), old.lease.row.run))
    await store.chunks(new.lease, chunks(1))
    run = old.lease.row.run
    first, *rest = await history(store, run, "1:1:2")
    assert isinstance(first, PreviewReset)
    assert (first.id, first.run) == ("", run)
    assert shown(rest) == [("1:2:1", "c1")]
    assert shown(await history(store, run, "1:2:1")) == []
    assert shown(await history(store, run, "1")) == [("1:2:1", "c1")]


async def test_a_preview_of_the_same_owner_is_not_reset(store: Store) -> None:
    """A reader that reconnects under the same fence continues its preview."""
    pen = await a_story(store)
    run = pen.lease.row.run
    for cursor in ("1:1:1", "4:1:4", "4:1:5", "4", None):
        assert not any(isinstance(event, PreviewReset) for event in await history(store, run, cursor))


async def test_a_dead_owners_chunks_are_not_shown_and_hide_nothing(store: Store) -> None:
    """However many a former owner left, the new owner's are shown and nobody waits in vain."""
    old = Pen(store, await a_lease(store))
    await store.chunks(old.lease, chunks(*range(1, 2 * limits.PAGE_ENTRIES)))
    await store.void(old.lease.worker, why="test")
    run = old.lease.row.run
    new = Pen(store, await claimed(store, await a_worker(store), run))
    assert shown(await history(store, run)) == [("1", "RunStarted")]
    events = feed(store, run)
    await take(events, 1)
    await store.chunks(new.lease, chunks(1))
    assert shown(await take(events, 1)) == [("1:2:1", "c1")]
    await events.aclose()


@pytest.mark.parametrize("cursor", ["x", "1:2", "-1", "1@0", "0x1"])
async def test_a_malformed_cursor_is_a_typed_error(store: Store, cursor: str) -> None:
    """Never a silent start from the beginning."""
    run = (await a_lease(store)).row.run
    with pytest.raises(BadCursor, match="is not an event id"):
        await history(store, run, cursor)


@pytest.mark.parametrize(
    ("cursor", "why"), [("2", "ahead of the journal, which is at 1"), ("9:1:1", "ahead"), ("1:2:1", "names fence 2")]
)
async def test_a_cursor_ahead_of_the_journal_is_a_typed_error(store: Store, cursor: str, why: str) -> None:
    """An id that this run never gave out does not wait for the journal to reach it."""
    run = (await a_lease(store)).row.run
    with pytest.raises(BadCursor, match=why):
        await history(store, run, cursor)


async def test_a_cursor_of_another_epoch_is_a_conflict() -> None:
    """After a restore from backup, ids of the life before are refused, and new ones carry the epoch."""
    store = MemoryStore()
    store.epoch = 2
    pen = Pen(store, await a_lease(store))
    await store.chunks(pen.lease, chunks(1))
    run = pen.lease.row.run
    assert [event.id for event in await history(store, run)] == ["1@2", "1:1:1@2"]
    assert [event.id for event in await history(store, run, "1@2")] == ["1:1:1@2"]
    for cursor in ("1", "1:1:1", "1@1", "1@3"):
        with pytest.raises(Conflict, match="restored from a backup"):
            await history(store, run, cursor)


async def test_a_run_that_is_not_there_has_no_feed(store: Store) -> None:
    """Not found is told at once."""
    with pytest.raises(NotFound):
        await history(store, new_run_id())


async def test_a_finished_run_ends_its_feed_from_every_cursor(store: Store) -> None:
    """Nobody waits for more after the ending, not even who stands behind it."""
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next("a"))
    await finish(store, pen)
    async with asyncio.timeout(SECONDS):
        for cursor in (None, "1", "2", "3"):
            rest = [event.id async for event in feed(store, pen.lease.row.run, cursor)]
            assert rest == [str(n) for n in range(int(cursor or 0) + 1, 4)]


async def test_an_entry_of_a_newer_kind_is_shown_as_unknown(store: Store) -> None:
    """A reader of an older version sees that something is there, and goes on behind it."""
    pen = Pen(store, await a_lease(store))
    run = pen.lease.row.run
    commit = pen.next("new")
    row = commit.entries[0]
    made = checksum(id_bytes(run), row.seq, row.at, 9, "RunTeleported", 0, commit.previous, b"{}")
    commit = replace_entry(commit, row._replace(kind="RunTeleported", version=9, body=b"{}", checksum=made))
    await store.commit(pen.lease, commit)
    pen.head = made
    await store.commit(pen.lease, pen.next("a"))
    events = await history(store, run, "1")
    assert shown(events) == [("2", "Unknown"), ("3", "a")]
    unknown = events[0]
    assert isinstance(unknown, Unknown)
    assert (unknown.kind, unknown.v, unknown.seq) == ("RunTeleported", 9, 2)


async def test_a_damaged_entry_stops_the_feed_and_is_named(store: Store) -> None:
    """A reader is never shown bytes that are not what was written."""
    pen = Pen(store, await a_lease(store))
    commit = pen.next("true")
    await store.commit(pen.lease, replace_entry(commit, commit.entries[0]._replace(body=b'{"step":"s","name":"lie"}')))
    with pytest.raises(Damaged) as damaged:
        await history(store, pen.lease.row.run, "1")
    assert (damaged.value.run, damaged.value.seq) == (pen.lease.row.run, 2)


async def test_a_closed_feed_listens_no_more(store: Store) -> None:
    """A reader that leaves takes its bell along, however it leaves."""
    pen = await a_story(store)
    run = pen.lease.row.run
    await history(store, run)
    with pytest.raises(BadCursor):
        await history(store, run, "99")
    events = feed(store, run)
    await take(events, 2)
    await events.aclose()
    waiting = asyncio.create_task(take(feed(store, run, "4:1:5"), 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting], timeout=SECONDS)
    assert not store._bells  # type: ignore[attr-defined]


async def test_readers_of_one_run_do_not_disturb_each_other(store: Store) -> None:
    """Each has a cursor of its own."""
    pen = Pen(store, await a_lease(store))
    feeds = [feed(store, pen.lease.row.run) for _ in range(5)]
    reading = [asyncio.create_task(take(events, 4)) for events in feeds]
    for text in ("a", "b", "c"):
        await store.commit(pen.lease, pen.next(text))
    got = [shown(await task) for task in reading]
    assert got == [[("1", "RunStarted"), ("2", "a"), ("3", "b"), ("4", "c")]] * 5
    for events in feeds:
        await events.aclose()


def replace_entry(commit: Commit, row: Any) -> Commit:
    """Return the commit with another entry."""
    return replace(commit, entries=[row])


async def test_every_event_says_whose_and_where_it_is(store: Store) -> None:
    """Run, number and time stand on each entry and chunk."""
    pen = await a_story(store)
    for event in await history(store, pen.lease.row.run):
        assert isinstance(event, Entry | Chunk)
        assert (event.run, event.at) == (pen.lease.row.run, store.now())
        assert event.id.split(":")[0] == str(event.seq)
