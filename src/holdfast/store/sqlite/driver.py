"""The store's verbs on SQLite: writes go through the writer, reads through a connection of their own."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

import apsw
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.budget import Account
from holdfast.core.cursor import Cursor
from holdfast.core.ids import RunId, WorkerId, id_bytes
from holdfast.core.limit import Limit
from holdfast.core.version import CodeVersion
from holdfast.store.bell import Bell, Bells, Word
from holdfast.store.clock import Clock, system_clock
from holdfast.store.protocol import Pending, Transaction
from holdfast.store.rows import Seal, accounts_of, checked_secret, first_row
from holdfast.store.sqlite import (
    beside,
    checking,
    conversing,
    creating,
    deleting,
    enrolling,
    forking,
    guard,
    leasing,
    limiting,
)
from holdfast.store.sqlite import worker as workers
from holdfast.store.sqlite.commit import CommitOp
from holdfast.store.sqlite.connection import connect, prepare, translated
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.listening import Listener
from holdfast.store.sqlite.reading import Reader
from holdfast.store.sqlite.shelving import SqliteShelves
from holdfast.store.sqlite.slots import Slots
from holdfast.store.sqlite.spare import Spare
from holdfast.store.sqlite.transacting import transact
from holdfast.store.sqlite.writer import Do, Writer
from holdfast.store.value import (
    BaseMoved,
    Busy,
    Commit,
    Committed,
    ConversationRow,
    Created,
    Deleted,
    Existing,
    Forked,
    KeyTaken,
    Lease,
    LimitRow,
    NewChunk,
    NewFork,
    NewPost,
    NewRun,
    Outcome,
    Page,
    Post,
    Posted,
    RunFilter,
    RunRow,
    Turn,
    WorkerRow,
)

_STRETCH: Final = 1000
"""How many runs one scrub looks at."""
_MOST_HELD: Final = 4096
_SYNCHRONOUS: Final = ("OFF", "NORMAL", "FULL", "EXTRA")


class SqliteStore:
    """One SQLite file. Several processes may have it open at once."""

    def __init__(self, path: str, *, clock: Clock, synchronous: str) -> None:
        # Absolute, so that a program which changes its folder still reopens the same file.
        path = self._path = os.path.abspath(path)
        self._clock = clock
        self._synchronous = synchronous
        connection, self._id, self._epoch = prepare(path, clock, synchronous=synchronous)
        guard.protect(path)
        self._lock_folder = os.path.realpath(path) + "-workers"
        self._first: apsw.Connection | None = connection
        self._bells = Bells()
        self._reader = Reader(path, lambda: self._writer.idle, synchronous=synchronous)
        self._writer = Writer(path, self._connect, self._bells, lambda: self._listener.others_wrote(), clock)
        self.shelves = SqliteShelves(self._writer, self._reader)
        self._slots = Slots(self._writer, self._reader, self._bells, clock)
        self._held: dict[RunId, tuple[Lease, int | None, Seal]] = {}
        self._listener = Listener(self._writer, self._reader, self._slots, self._bells, self._held)
        self._spare = Spare(self._writer)
        self._numbers: dict[WorkerId, int] = {}
        self._scrubbed = 0
        self._closed = False

    @classmethod
    async def open(cls, path: str, *, clock: Clock = system_clock, synchronous: str = "FULL") -> "SqliteStore":
        """Open or create the store at `path`; anything weaker than synchronous FULL must be asked for by name."""
        return cls(path, clock=clock, synchronous=synchronous)

    @property
    def id(self) -> str:
        return self._id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def path(self) -> str:
        """Where the file is."""
        return self._path

    @property
    def lock_folder(self) -> str:
        return self._lock_folder

    def now(self) -> int:
        return self._clock()

    def _connect(self) -> apsw.Connection:
        if self._first is not None:
            connection, self._first = self._first, None
            return connection
        self._reader.drop()
        with translated(self._path):
            return connect(self._path, synchronous=self._synchronous)

    # Writing

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Created | Existing | KeyTaken | Busy:
        at = self._clock()
        op = Do(
            lambda db: creating.create(db, new, worker, at),
            rings=() if worker else (None,),
            settled=lambda db: creating.created(db, new, worker),
        )
        done: Created | Existing | KeyTaken | Busy = await self._writer.submit(op)
        return done

    def create_soon(self, new: NewRun, *, worker: WorkerId) -> tuple[Lease, Pending[Created]] | None:
        # A turn's number is not known before its creation is under way.
        able = worker in self._numbers and new.row.conversation is None
        number = self._spare.take() if able else None
        if number is None:
            return None
        at = self._clock()
        row = replace(first_row(new, number, claimed=True), owner=worker)
        numbered = replace(new, row=replace(new.row, number=row.number))
        op = Do(
            lambda db: creating.create(db, numbered, worker, at),
            settled=lambda db: creating.created(db, numbered, worker),
            run=row.run,
        )
        return Lease(row, worker, row.fence, "started", new.first), self._writer.submit(op, wait_a_turn=True)

    async def fork(self, new: NewFork) -> Created | Existing | BaseMoved:
        # By itself: the base's entries of the same batch would not be written yet.
        op = Do(lambda db: forking.fork(db, new), rings=(None,), settled=lambda db: forking.made(db, new), alone=True)
        done: Created | Existing | BaseMoved = await self._writer.submit(op)
        return done

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        held = self._held.get(lease.row.run)
        if held is None or held[0] is not lease:
            if len(self._held) >= _MOST_HELD:
                self._held.clear()  # leases that were lost never leave by themselves
            held = self._held[lease.row.run] = (lease, self._numbers.get(lease.worker), Seal(lease))
        answer = self._writer.submit(CommitOp(lease, change, held[1], held[2]))
        if change.change is not None:
            answer.add_done_callback(partial(self._left, lease))
        return answer

    def _left(self, lease: Lease, answer: "asyncio.Future[Outcome]") -> None:
        """Forget a lease that a commit gave up; a refused one is still held."""
        held = self._held.get(lease.row.run)
        given_up = answer.exception() is None and isinstance(answer.result(), Committed)
        if given_up and held is not None and held[0] is lease:
            del self._held[lease.row.run]

    def transact(
        self, lease: Lease, work: Callable[[Transaction], Commit], *, deadline_seconds: float
    ) -> Awaitable[Outcome]:
        held = self._held.get(lease.row.run)
        sealed = held[2] if held is not None and held[0] is lease else Seal(lease)
        return transact(self._writer, lease, sealed, work, deadline_seconds=deadline_seconds)

    async def claim(
        self,
        worker: WorkerId,
        serves: Mapping[str, str],
        *,
        limit: int,
        runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:
        if limit < 1 or not serves or not self._may_claim(serves, runs, suspects):
            return []
        now = self._clock()
        leases: list[Lease] = await self._writer.submit(
            Do(lambda db: leasing.claim(db, worker, serves, now, limit, runs, suspects))
        )
        if len(leases) > 1:
            self._writer.expect_company()
        return leases

    def _may_claim(self, serves: Mapping[str, str], runs: Sequence[RunId] | None, suspects: bool) -> bool:
        """Look before taking the write lock: an idle worker costs its neighbours nothing."""
        if runs is not None:
            return True
        with self._reader.one() as connection:
            return leasing.anything_due(connection, serves, self._clock(), suspects)

    async def register(self, worker: WorkerId, *, lock: str | None, about: Mapping[str, str] = {}) -> None:
        at = self._clock()
        number = await self._writer.submit(Do(lambda db: workers.register(db, worker, lock, about, at)))
        self._numbers[worker] = number
        self._spare.refill()

    async def enrol(self, versions: Sequence[CodeVersion]) -> Sequence[CodeVersion]:
        known = {(of.name, of.code): of for name in {new.name for new in versions} for of in await self.versions(name)}
        if any((new.name, new.code) not in known for new in versions):
            known |= await self._writer.submit(Do(partial(enrolling.enrol, versions=versions, at=self._clock())))
        return [known[new.name, new.code] for new in versions]

    async def versions(self, name: str) -> Sequence[CodeVersion]:
        with self._reader.one() as connection:
            return enrolling.versions(connection, name)

    async def pulse(self, worker: WorkerId) -> bool:
        at = self._clock()
        alive: bool = await self._writer.submit(Do(lambda db: workers.beat(db, worker, at)))
        return alive

    def heart(self, worker: WorkerId) -> None:
        return None

    async def workers(self) -> Sequence[WorkerRow]:
        with self._reader.one() as connection:
            known, unknown = workers.workers(connection)
            orphans = fetch(connection, leasing.ORPHANS)
        if orphans or unknown:
            await self._writer.submit(Do(lambda db: leasing.free_orphans(db, unknown), rings=(None,)))
        return known

    async def scrub(self) -> Sequence[str]:
        with self._reader.one() as connection:
            lost = fetch(connection, leasing.LOST, (self._scrubbed, _STRETCH))
            after = fetch(connection, leasing.STRETCH_END, (self._scrubbed, _STRETCH))[0][0]
        self._scrubbed = after if isinstance(after, int) else 0
        if not lost:
            return ()
        await self._writer.submit(Do(leasing.reindex, rings=(None,), alone=True))
        return [f"the indexes of the runs had lost {len(lost)}, and were made again from their rows"]

    async def void(self, worker: WorkerId, *, why: str) -> int:
        return await self._given_up(lambda db: leasing.void(db, worker))

    async def release(self, worker: WorkerId, *, keep: Sequence[RunId] = ()) -> int:
        return await self._given_up(lambda db: leasing.release(db, worker, keep))

    async def _given_up(self, work: Callable[[Db], int]) -> int:
        """End leases, and give the slots that they held to those who wait."""
        words: list[Word] = []

        def run(db: Db) -> int:
            freed = work(db)
            # Damage among the tickets must not keep the runs of the dead from being taken over.
            with contextlib.suppress(apsw.CorruptError):
                words[:] = limiting.serve(db, self._clock())
            return freed

        freed: int = await self._writer.submit(Do(run, rings=[None], words=words))
        return freed

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        return await self._slots.acquire(lease, step, limit)

    async def free(self, lease: Lease, step: str) -> None:
        await self._slots.free(lease, step)

    async def post(self, post: NewPost) -> Posted:
        at = self._clock()
        posted = await self._writer.submit(Do(lambda db: beside.add_post(db, post, at), rings=(post.run, None)))
        return beside.require_posted(posted, post.run)

    def chunks(self, lease: Lease, chunks: Sequence[NewChunk]) -> Awaitable[bool]:
        at = self._clock()

        def run(db: Db) -> bool:
            owner = db.worker_number(lease.worker)
            return owner is not None and beside.add_chunks(db, lease, owner, chunks, at)

        return self._writer.submit(Do(run, rings=(lease.row.run,)))

    async def delete(self, runs: Sequence[RunId], *, trial: bool = False) -> Deleted:
        if trial:
            with self._reader.snapshot() as connection:
                rows, kept = deleting.look(connection, runs)
            return Deleted([row.run for row in rows], kept)
        # By itself and on the writer's thread: a long journal must not hold up the event loop.
        op = Do(lambda db: deleting.delete(db, runs), rings=tuple(runs), alone=True)
        deleted: Deleted = await self._writer.submit(op)
        return deleted

    async def sweep(self, before: int) -> int:
        swept = 0
        seen: int | None = 0
        while seen is not None:
            with self._reader.snapshot() as connection:
                stale = [blob for [blob] in fetch(connection, deleting.STALE, (seen, deleting.STRETCH, before))]
                [[seen]] = fetch(connection, deleting.SEEN, (seen, deleting.STRETCH))
            if stale:
                swept += await self._writer.submit(Do(partial(deleting.sweep, blobs=stale, before=before), alone=True))
        return swept

    # Reading

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        return self._reader.page(run, after, chunks=chunks, limit=limit)

    async def last(self, run: RunId) -> Page | None:
        return self._reader.last(run)

    async def forks(self, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
        with self._reader.one() as connection:
            return forking.forks(connection, runs)

    async def forked(self, run: RunId) -> Mapping[RunId, Forked]:
        with self._reader.one() as connection:
            return forking.forked(connection, run)

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        return self._reader.inbox(run, after)

    async def get(self, run: RunId) -> RunRow | None:
        return self._reader.row(run)

    async def find(self, tenant: str, key: str) -> RunRow | None:
        return self._reader.find(tenant, key)

    async def holder(self, tenant: str, key: str) -> RunId | None:
        return self._reader.holder(tenant, key)

    async def list(self, which: RunFilter) -> Sequence[RunRow]:
        return self._reader.runs(which)

    async def conversation(self, tenant: str, conversation: str) -> ConversationRow | None:
        with self._reader.one() as connection:
            return conversing.conversation(connection, tenant, conversation)

    async def turns(
        self, tenant: str, conversation: str, *, after: int = 0, limit: int = limits.PAGE_ENTRIES
    ) -> Sequence[RunRow]:
        with self._reader.one() as connection:
            return conversing.turns(connection, tenant, conversation, after, limit)

    async def count_turns(self, tenant: str, conversation: str, up_to: int) -> int:
        with self._reader.one() as connection:
            return conversing.count(connection, tenant, conversation, up_to)

    async def annotate(self, tenant: str, conversation: str, metadata: bytes) -> None:
        await self._writer.submit(Do(lambda db: conversing.annotate(db, tenant, conversation, metadata)))

    async def blob(self, tenant: str, digest: str) -> bytes:
        return self._reader.blob(tenant, digest)

    async def limits(self) -> Sequence[LimitRow]:
        return self._slots.rows()

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Bell:
        return self._listener.watch(run, entries=entries)

    async def describe(self) -> Mapping[str, str]:
        def look(db: Db) -> dict[str, str]:
            db.take_numbers(1)
            level = db.rows("PRAGMA synchronous")[0][0]
            return {"journal": db.rows("PRAGMA journal_mode")[0][0], "synchronous": _SYNCHRONOUS[level]}

        found: dict[str, str] = await self._writer.submit(Do(look))
        return {"driver": "sqlite", "version": apsw.sqlite_lib_version(), "path": self._path, **found}

    async def budget(self, run: RunId) -> Mapping[str, Account]:
        with self._reader.one() as connection:
            return accounts_of(fetch(connection, beside.BUDGET, (id_bytes(run),)))

    async def secret(self) -> bytes:
        with self._reader.one() as connection:
            return checked_secret(fetch(connection, "SELECT secret FROM hf_store"))

    async def raise_epoch(self) -> int:
        self._epoch = await self._writer.submit(
            Do(lambda db: db.rows("UPDATE hf_store SET epoch = epoch + 1 RETURNING epoch")[0][0])
        )
        return self._epoch

    async def check(self) -> Sequence[str]:
        with self._reader.one() as connection:
            return checking.check(connection)

    async def close(self) -> None:
        if self._closed:
            return
        await self._writer.close()
        self._closed = True
        self._listener.close()
        self._reader.close()
        guard.unprotect(self._path)
