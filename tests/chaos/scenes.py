"""Scenes that chance would seldom play: each puts its actors where a broken twin must be caught."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

import holdfast as hf
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import Emitted, RunStarted
from holdfast.core.ids import RunId, WorkerId, new_worker_id
from holdfast.journal.journal import Journal
from holdfast.store import point
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Committed, NewChunk, NewPost, Page
from holdfast.stream import feed as feed_module
from holdfast.stream.event import Chunk, Event
from tests.chaos import judge, twins
from tests.chaos.judge import Broken
from tests.chaos.program import Report, enter, fulfil, see_through
from tests.chaos.world import World, read_ledger

_PATIENCE_SECONDS: Final = 1.0
_POSTS: Final = 8


class Pause:
    """Holds up a step's thread at a named point until it is let go."""

    def __init__(self, name: str) -> None:
        self._name, self._loop = name, asyncio.get_running_loop()
        self._go = threading.Event()
        self._before = point.reached
        self.reached = asyncio.Event()
        point.reached = self

    def __call__(self, name: str) -> None:
        self._before(name)
        if name == self._name and not self._go.is_set():
            self._loop.call_soon_threadsafe(self.reached.set)
            self._go.wait(20)

    def let_go(self) -> None:
        """Let the step go on."""
        self._go.set()


async def paused_worker(place: str, ledger: str, twin: str) -> None:
    """A worker that lost its lease while it was paused wakes up and goes on: it may write nothing.

    Raises:
        Broken: it wrote.
    """
    world = enter(ledger)
    twins.apply(twin, place)
    pause = Pause("count begins")
    paused, other = await _open(place, world), await _open(place, world)
    async with hf.open(paused, hf.App(fulfil, version="first")) as runtime:
        run = (await runtime.start(fulfil, "a-order", key="a-order")).id
        await asyncio.wait_for(pause.reached.wait(), 10)
        for row in await other.workers():
            await other.void(row.worker, why="its pulse stood still")
        successor = new_worker_id()
        await other.register(successor, lock=None)
        await other.claim(successor, {"fulfil": "first"}, limit=1)
        before = await other.read(run, START, chunks=False)
        pause.let_go()
        await _gave_up(runtime)
        after = await other.read(run, START, chunks=False)
        if after.entries != before.entries:
            raise Broken(f"a worker without a lease wrote {[row.kind for row in after.entries[len(before.entries) :]]}")
    await other.release(successor)
    await _finish(other, world, ledger)


async def _gave_up(runtime: Any) -> None:
    """Wait until the worker drives nothing any more."""
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith("run ")]
    await asyncio.wait(tasks, timeout=_PATIENCE_SECONDS)


async def _open(place: str, world: World) -> SqliteStore:
    return await SqliteStore.open(f"{place}/store.db", clock=world.now)


async def _finish(store: SqliteStore, world: World, ledger: str) -> None:
    async with hf.open(store, hf.App(fulfil, version="first")) as runtime:
        stories = await see_through(runtime, store, ("a-order",))
    judge.check(Report(stories, ("a-order",), ()), read_ledger(ledger), deaths=1)


Feed = Callable[[Store, RunId], AsyncIterator[Event]]


class WhileLookingAway:
    """A store in front of a store: after a reader has seen all there is, and before he hears of it, something lands."""

    def __init__(self, store: SqliteStore, happen: Callable[[], Any]) -> None:
        self._store, self._happen, self._happened = store, happen, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def read(self, run: RunId, after: Cursor, **rest: Any) -> Page:
        """Look; if there is no more, let it happen now."""
        page = await self._store.read(run, after, **rest)
        if not page.more and not page.chunks and not self._happened:
            self._happened = True
            await self._happen()
        return page


async def hasty_reader(store: Store, run: RunId) -> AsyncIterator[Event]:
    """Read a run as the feed does, but listen only after looking: the twin that this scene must catch."""
    cursor = START
    while True:
        page = await store.read(run, cursor)
        for event, place in feed_module._events(store, run, page, cursor):
            cursor = place
            yield event
        if not page.more and not page.chunks:
            bell = store.watch(run)
            await bell.wait()


async def landing_entry(place: str, ledger: str, twin: str) -> None:
    """An entry lands after a reader looked and before he waits: he must get it without looking again by chance.

    Raises:
        Broken: he waits in vain.
    """
    world = enter(ledger)
    feed_module._LOOK_SECONDS = 3600.0  # type: ignore[misc]
    reader: Feed = hasty_reader if twin == "reads_first" else feed_module.feed
    pause = Pause("count begins")
    store = await _open(place, world)
    async with hf.open(store, hf.App(fulfil, version="first")) as runtime:
        run = (await runtime.start(fulfil, "a-order", key="a-order")).id
        await asyncio.wait_for(pause.reached.wait(), 10)
        await _quiet(store)
        seen = (await store.read(run, START, chunks=False)).row.last_seq

        async def land() -> None:
            pause.let_go()
            await _until_at_rest(store, run)

        kinds: list[str] = []
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                async for event in reader(WhileLookingAway(store, land), run):
                    kinds.append(event.type)
                    if len(kinds) > seen:
                        return
        except TimeoutError:
            raise Broken(f"the reader saw {len(kinds)} events and then missed one that had landed") from None


async def _quiet(store: SqliteStore) -> None:
    """Let the store's first look at its file go by, which rings every bell."""
    bell = store.watch(None)
    await bell.wait(0.1)
    bell.close()


async def _until_at_rest(store: SqliteStore, run: RunId) -> None:
    bell = store.watch(run, entries=False)
    while (row := await store.get(run)) is not None and row.owner is not None:
        await bell.wait(0.1)
    bell.close()


async def crossing_posts(place: str, ledger: str, twin: str) -> None:
    """Two processes' worth of clients post to one run at once: each accepted post is there, under its own number.

    Raises:
        Broken: some are missing, or numbers are.
    """
    world = enter(ledger)
    twins.apply(twin, place)
    one, other = await _open(place, world), await _open(place, world)
    async with hf.open(one, work=False) as runtime:
        run = (await runtime.start(fulfil, "a-order", key="a-order")).id
        posts = [NewPost(run=run, kind="signal", key=str(key), body=b"null") for key in range(_POSTS)]
        stores = [one, other] * _POSTS
        posted = await asyncio.gather(*(store.post(post) for store, post in zip(stores, posts, strict=False)))
        there = [(post.seq, post.key) for post in await one.inbox(run)]
        await other.close()
    accepted = {post.key for post, answer in zip(posts, posted, strict=True) if answer.outcome == "accepted"}
    if len(accepted) != _POSTS or {key for _, key in there} != accepted:
        raise Broken(f"{len(accepted)} posts were accepted, and {len(there)} are there")
    if [seq for seq, _ in there] != list(range(1, _POSTS + 1)):
        raise Broken(f"the posts are numbered {[seq for seq, _ in there]}")


async def crossing_chunk(place: str, ledger: str, twin: str) -> None:
    """A chunk is sent just before an entry is written: a live reader gets both.

    Raises:
        Broken: he passed the chunk's place before it was there.
    """
    world = enter(ledger)
    twins.apply(twin, place)
    store = await _open(place, world)
    worker: WorkerId = new_worker_id()
    await store.register(worker, lock=None)
    async with hf.open(store, work=False) as runtime:
        run = (await runtime.start(fulfil, "a-order", key="a-order")).id
        lease = (await store.claim(worker, {"fulfil": _version(await store.get(run))}, limit=1))[0]
        journal = Journal(store, lease, lease.row)
        reader = Reader(store, run)
        await reader.saw(RunStarted)
        sending = store.chunks(lease, [NewChunk(1, "0/tell#1", 1, 0, b'"one"')])
        await _commit(journal, "0/emit#1")
        await reader.saw(Emitted)
        if not await sending:
            raise Broken("the chunk was refused")
        await _commit(journal, "0/emit#2")
        await reader.saw(Emitted, 2)
        reader.close()
    if sum(isinstance(event, Chunk) for event in reader.seen) != 1:
        raise Broken(f"the reader saw {[event.id for event in reader.seen]}, without the chunk that was sent")


async def _commit(journal: Journal, step: str) -> None:
    outcome = await journal.append(Emitted(step=step, name="emit"))
    assert isinstance(outcome, Committed), outcome


def _version(row: Any) -> str:
    return str(row.code)


class Reader:
    """Follows a run and remembers what it saw."""

    def __init__(self, store: Store, run: RunId) -> None:
        self.seen: list[Event] = []
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read(store, run))

    async def _read(self, store: Store, run: RunId) -> None:
        async for event in feed_module.feed(store, run):
            async with self._more:
                self.seen.append(event)
                self._more.notify_all()

    async def saw(self, kind: type[Event], count: int = 1) -> None:
        """Wait until so many of a kind were seen."""
        async with asyncio.timeout(10), self._more:
            await self._more.wait_for(lambda: sum(isinstance(event, kind) for event in self.seen) >= count)

    def close(self) -> None:
        """Stop following."""
        self._reading.cancel()


SCENES: Final[Sequence[tuple[str, Callable[[str, str, str], Any]]]] = (
    ("no_fence", paused_worker),
    ("reads_first", landing_entry),
    ("numbered_outside", crossing_posts),
    ("stamped_early", crossing_chunk),
)
"""Each scene with the twin that it must catch."""
