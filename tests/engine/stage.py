"""Where runs are played: one store on disk that outlives its openings, with a clock that moves when told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import apsw

import holdfast as hf
from holdfast.core.entry import Entry
from holdfast.core.ids import RunId, new_worker_id
from holdfast.engine.family import cancel_post
from holdfast.journal.journal import Journal, load
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import MovingClock

T = TypeVar("T")
_SECONDS = 20.0


async def soon(awaitable: Awaitable[T]) -> T:
    """Return what comes, in bounded time."""
    async with asyncio.timeout(_SECONDS):
        return await awaitable


class Stage:
    """A store file; each opening is a process's life, and closing it in the middle of a step is its death."""

    def __init__(self, path: Path, clock: MovingClock) -> None:
        self.path, self.clock = path, clock

    @asynccontextmanager
    async def open(
        self, *parts: Any, concurrency: int = 64, work: bool = True, **app: Any
    ) -> AsyncIterator[hf.Runtime]:
        """Open the store with an app of these parts."""
        store = await self.store()
        async with hf.open(store, hf.App(*parts, **app), concurrency=concurrency, work=work) as runtime:
            yield runtime

    async def store(self) -> Store:
        """Open the store itself."""
        return await SqliteStore.open(str(self.path), clock=self.clock)

    async def declare_dead(self) -> None:
        """Void every worker, as another process does that finds their locks free."""
        store = await self.store()
        for worker in await store.workers():
            await store.void(worker.worker, why="test")
        await store.close()

    def execute(self, sql: str, *values: Any) -> list[Any]:
        """Run a statement on the file, behind everybody's back."""
        connection = apsw.Connection(str(self.path))
        try:
            connection.set_busy_timeout(10_000)
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()


class MemoryStage(Stage):
    """A store in memory, which its openings share."""

    def __init__(self, clock: MovingClock) -> None:
        super().__init__(Path(), clock)
        self._store = MemoryStore(clock=clock)

    async def store(self) -> Store:
        """Return the one store."""
        return self._store


class PostgresStage(Stage):
    """A store in a schema of its own."""

    def __init__(self, address: str, clock: MovingClock) -> None:
        super().__init__(Path(), clock)
        self._address = address

    async def store(self) -> Store:
        """Open the store itself."""
        return await PostgresStore.open(self._address, clock=self.clock)


class Hurdle:
    """A place where a run's code stops until it is let through; it remembers who came."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self) -> None:
        """Say that somebody is here, and wait to be let through."""
        self.reached.set()
        await self.open.wait()


async def entries_of(run: hf.Run[Any]) -> list[Entry]:
    """Return a run's journal."""
    return [event async for event in run.events(follow=False) if isinstance(event, Entry)]


async def kinds_of(run: hf.Run[Any]) -> list[str]:
    """Return the kinds of a run's entries, in order."""
    return [entry.type for entry in await entries_of(run)]


async def seen(run: hf.Run[Any], wanted: Callable[[Entry], bool]) -> Entry:
    """Return the first entry that is wanted, once it is there."""
    async with asyncio.timeout(_SECONDS):
        async for event in run.events():
            if isinstance(event, Entry) and wanted(event):
                return event
    raise AssertionError("the run ended without it")


async def seen_often(run: hf.Run[Any], kind: type[Entry], times: int) -> None:
    """Wait until a run has recorded this many entries of a kind."""
    met = 0

    def count(entry: Entry) -> bool:
        nonlocal met
        met += isinstance(entry, kind)
        return met == times

    await seen(run, count)


async def parked(run: hf.Run[Any], reason: str) -> hf.RunInfo:
    """Return where the run stands once it rests for that reason."""
    await seen(run, lambda entry: isinstance(entry, hf.events.RunParked) and entry.reason == reason)
    info = await run.info()
    assert (info.status, info.reason.partition(":")[0]) == (hf.Status.WAITING, reason)
    return info


async def paused(run: hf.Run[Any]) -> hf.RunInfo:
    """Return where the run stands once it is paused."""
    await seen(run, lambda entry: isinstance(entry, hf.events.RunParked) and entry.reason == "paused")
    info = await run.info()
    assert info.status is hf.Status.PAUSED
    return info


async def ending_of(run: hf.Run[Any]) -> tuple[hf.Status, str]:
    """Return how a run that does not complete ended, or where it rests."""
    try:
        value = await run.result(timeout=_SECONDS)
    except hf.RunError as error:
        return hf.Status(error.status), error.reason
    raise AssertionError(f"it returned {value!r}")


async def asked(run: hf.Run[Any]) -> Any:
    """Return the run's question, once it asks one."""
    await seen(run, lambda entry: isinstance(entry, hf.events.QuestionAsked))
    (question,) = await run.questions()
    return question


async def until(so: Callable[[], bool]) -> None:
    """Wait until something is so that rings no bell."""
    async with asyncio.timeout(_SECONDS):
        while not so():  # noqa: ASYNC110 - it is the engine's own state, which nobody announces
            await asyncio.sleep(0)


async def hear_cancel_and_die(stage: Stage, run: RunId, name: str) -> None:
    """Be a worker that dies as soon as the cancel has become an entry."""
    store, worker = await stage.store(), new_worker_id()
    await store.register(worker, lock=None)
    await store.post(cancel_post(run, "enough"))
    (lease,) = await store.claim(worker, {name: ""}, limit=1, runs=[run])
    journal = Journal(store, lease, await load(store, run, lambda entry: None))
    (post,) = await store.inbox(run)
    await journal.append(hf.events.CancelReceived(post=post.seq, reason="cancelled: enough"), consumed=(post.seq,))
    await store.void(worker, why="test")
    await store.close()
