"""The store's verbs on PostgreSQL: writes go through a lane, reads through a pool, hints by a connection of theirs."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.core import limits
from holdfast.core.budget import Account
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Damaged, NotFound, StoreUnavailable
from holdfast.core.ids import RunId, WorkerId, id_text
from holdfast.core.limit import Limit
from holdfast.core.version import CodeVersion
from holdfast.store.answer import Answer
from holdfast.store.bell import Bell, Bells
from holdfast.store.clock import Clock
from holdfast.store.postgres import conversing, deleting, enrolling, forking, leasing
from holdfast.store.postgres.address import Address, parse
from holdfast.store.postgres.claiming import Claims
from holdfast.store.postgres.clock import ServerClock
from holdfast.store.postgres.connection import Async, Names, connect, translated
from holdfast.store.postgres.gathering import by_id
from holdfast.store.postgres.heart import BEAT, PostgresHeart
from holdfast.store.postgres.hints import Hints
from holdfast.store.postgres.limiting import TurnOp
from holdfast.store.postgres.opening import MICROS, prepare
from holdfast.store.postgres.ops import ChunkOp, CommitOp, CreateOp, Taken
from holdfast.store.postgres.reading import Reader
from holdfast.store.postgres.rich import BUDGET, POST, Rich, post_values
from holdfast.store.postgres.shelving import PostgresShelves
from holdfast.store.postgres.slots import Slots
from holdfast.store.postgres.transacting import Transactions
from holdfast.store.postgres.writer import Lane
from holdfast.store.protocol import Pending, Transaction
from holdfast.store.rows import Seal, accounts_of, checked_secret, read_row
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
    LeaseLost,
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

_LANES: Final = 2
_BLOCK: Final = 256
"""How many run numbers one step of the sequence stands for."""
_MOST_HELD: Final = 4096
_NUMBERS: Final = "SELECT nextval('hf_run_numbers') FROM generate_series(1, 2)"
_REGISTER: Final = f"""
    INSERT INTO hf_workers (worker, pulse, started_at, lock, about, beat_at)
    SELECT $1::text, 0, now, $3::text, $4::text, now FROM (SELECT coalesce($2::bigint, {MICROS}) AS now) n
    ON CONFLICT (worker) DO UPDATE SET about = excluded.about
"""
_NUMBER: Final = "SELECT number FROM hf_workers WHERE worker = $1"
_WORKERS: Final = """
    SELECT w.worker, w.pulse, w.started_at, w.lock, (SELECT count(*) FROM hf_runs r WHERE r.owner = w.number), w.about,
           w.beat_at FROM hf_workers w ORDER BY w.number
"""
_STRAY: Final = """
    SELECT k.key, r.run FROM hf_runs r LEFT JOIN hf_keys k ON k.tenant = r.tenant AND k.key = r.key
     WHERE r.key IS NOT NULL AND (k.run, k.name, k.digest, k.conversation)
        IS DISTINCT FROM (r.run, r.name, r.digest, r.conversation) LIMIT 20
"""
_ORPHANS: Final = """
    SELECT DISTINCT e.run FROM hf_entries e WHERE NOT EXISTS (SELECT 1 FROM hf_runs r WHERE r.number = e.run)
       AND NOT EXISTS (SELECT 1 FROM hf_lineage l WHERE l.owner = e.run) LIMIT 20
"""
_OURS: Final = "SELECT 1 FROM hf_posts WHERE run = $1 AND key = $2 AND at = $3"
"""A post that was asked for twice, since the first answer was lost, finds itself."""
_ABOUT: Final = msgspec.json.Decoder(dict[str, str])


class PostgresStore:
    """One schema of a PostgreSQL database, which any number of processes and machines have open at once."""

    def __init__(self, address: Address, ident: str, epoch: int, clock: ServerClock) -> None:
        self._address, self._id, self._epoch, self._clock = address, ident, epoch, clock
        self._names = Names(address.schema)
        self._bells = Bells()
        self._hints = Hints(address, self._bells)
        self._reader = Reader(address, self._names)
        self.shelves = PostgresShelves(self._reader)
        rich = Rich(self._names, self._take_number)
        self._lanes = [Lane(address, self._names, self._bells, rich, self._told) for _ in range(_LANES + 1)]
        self._slots = Slots(self._lanes[_LANES], self._reader, clock)
        self._transactions = Transactions(address, self._names, rich)
        self._loop = asyncio.get_running_loop()
        self._spare: list[int] = []
        self._refilling: asyncio.Task[None] | None = None
        self._workers: dict[WorkerId, int] = {}
        self._held: dict[RunId, tuple[Lease, Seal]] = {}
        self._claims = Claims(self._reader, clock)
        self._closed = False

    @classmethod
    async def open(cls, address: str, *, clock: Clock | None = None, create: bool = True) -> "PostgresStore":
        """Open or create the store in the schema that the address names."""
        where = parse(address)
        connection = await connect(where)
        try:
            ident, epoch = await prepare(connection, where, create=create)
            server = ServerClock(clock)
            asked = server.mark()
            with translated(where):
                [(now,)] = await (await connection.execute(f"SELECT {MICROS}".encode(), binary=True)).fetchall()
                server.saw(now, asked)
                numbers = await (await connection.execute(Names(where.schema)(_NUMBERS), binary=True)).fetchall()
        except BaseException:
            await connection.close()
            raise
        store = cls(where, ident, epoch, server)
        store._stock(numbers)
        # Where the first run of this process will be written.
        store._lane(store._spare[-1]).adopt(connection)
        return store

    @property
    def id(self) -> str:
        return self._id

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def lock_folder(self) -> str | None:
        # For each user, since nobody can lock what is another's; whose lock cannot be tried is judged by the pulse.
        folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        return os.path.join(folder, f"holdfast-{os.getuid()}", self._id)

    def now(self) -> int:
        return self._clock()

    # Writing

    def _lane(self, number: int) -> Lane:
        return self._lanes[number % _LANES]

    def _told(self, op: Any) -> None:
        """Let other processes know what an op did, once it is on disk."""
        if isinstance(op, CreateOp):
            if op.owner is None:
                self._hints.tell(None)
            return
        if isinstance(op, TurnOp):
            for run in op.woken:
                self._hints.tell(run)
            return
        self._hints.tell(op.run)
        if isinstance(op, CommitOp):
            change = op.change
            for post in change.posts:
                self._hints.tell(post.run)
            if change.freed:
                self._slots.freed(op.run, change.freed)
            if change.posts or change.children or op.makes_claimable:
                self._hints.tell(None)

    async def _refill(self) -> None:
        """Take more run numbers."""
        self._stock(await self._reader.rows(_NUMBERS))

    def _stock(self, firsts: Sequence[tuple[int]]) -> None:
        """Keep run numbers; each step of the sequence is a block of them."""
        self._spare = [first + step for (first,) in firsts for step in range(_BLOCK)] + self._spare

    def _take_number(self) -> int:
        """Return a number for a new run that nobody else gets; on any thread."""
        if len(self._spare) < _BLOCK:
            self._loop.call_soon_threadsafe(self._want_numbers)
        try:
            return self._spare.pop()
        except IndexError:
            raise StoreUnavailable(f"{self._address} gave no more run numbers") from None

    def _want_numbers(self) -> "asyncio.Task[None] | None":
        """Return what takes more numbers: one at a time, however many wait for it."""
        if (self._refilling is None or self._refilling.done()) and not self._closed:
            self._refilling = self._loop.create_task(self._refill(), name="holdfast numbers")
            self._refilling.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._refilling

    async def _number(self) -> int:
        while not self._spare:
            if (refilling := self._want_numbers()) is None:
                raise StoreUnavailable(f"{self._address} is closed")
            await asyncio.shield(refilling)
        return self._take_number()

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Created | Existing | KeyTaken | Busy:
        owner = self._workers.get(worker) if worker is not None else None
        if worker is not None and owner is None:
            owner = await self._worker_number(worker)
        op = CreateOp(new, await self._number(), worker, owner)
        done = await self._lane(op.row.number).submit(op)
        return done if isinstance(done, Created | Busy) else await self._existing(new.row, done)

    async def _existing(self, wanted: RunRow, taken: Taken) -> Existing | KeyTaken:
        row = await self._reader.row(taken.run)
        pairs = {"name": (taken.name, wanted.name), "input": (taken.digest, wanted.digest),
                 "conversation": (taken.conversation, wanted.conversation)}  # fmt: skip
        differs = tuple(what for what, (has, wants) in pairs.items() if has != wants)
        return KeyTaken(taken.run, differs) if differs else Existing(taken.run, row)

    def create_soon(self, new: NewRun, *, worker: WorkerId) -> tuple[Lease, Pending[Created]] | None:
        owner = self._workers.get(worker)
        # A turn's number is not known before its creation is under way.
        if not self._spare or owner is None or new.row.conversation is not None:
            return None
        op = CreateOp(new, self._take_number(), worker, owner)
        lease = op.created().lease
        assert lease is not None
        return lease, self._lane(op.row.number).submit(op)

    async def fork(self, new: NewFork) -> Created | Existing | BaseMoved:
        made = await self._reader.ask(forking.Forking(self._reader, new, await self._number()))
        if isinstance(made, Created):
            self._rang(None)
        return made

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        return self._lane(lease.row.number).submit(self._op(lease, change))

    def _op(self, lease: Lease, change: Commit) -> CommitOp:
        held = self._held.get(lease.row.run)
        if held is None or held[0] is not lease:
            if len(self._held) >= _MOST_HELD:
                self._held.clear()  # leases that were lost never leave by themselves
            held = self._held[lease.row.run] = (lease, Seal(lease))
        if change.change is not None:
            reason = change.change.reason.replace("\0", "\N{REPLACEMENT CHARACTER}")
            change = msgspec.structs.replace(change, change=msgspec.structs.replace(change.change, reason=reason))
        return CommitOp(lease, change, self._workers.get(lease.worker), held[1])

    async def transact(
        self, lease: Lease, work: Callable[[Transaction], Commit], *, deadline_seconds: float
    ) -> Outcome:
        number = lease.row.number
        await self._lane(number).passed(lease.row.run)
        if await self._worker_number(lease.worker) is None:
            return LeaseLost()
        op, outcome = await self._transactions.run(
            lease, work, lambda change: self._op(lease, change), deadline_seconds=deadline_seconds
        )
        if isinstance(outcome, Committed) and op is not None:
            op.ring(self._bells, outcome)
            self._told(op)
        return outcome

    def chunks(self, lease: Lease, chunks: Sequence[NewChunk]) -> Awaitable[bool]:
        owner = self._workers.get(lease.worker)
        if owner is None or not chunks:
            answer = Answer()
            answer.set_result(owner is not None)
            return answer
        return self._lane(lease.row.number).submit(ChunkOp(lease, owner, chunks, self._clock()))

    # Leasing

    async def _worker_number(self, worker: WorkerId) -> int | None:
        found = await self._reader.rows(_NUMBER, [worker])
        if not found:
            self._workers.pop(worker, None)
            return None
        self._workers[worker] = found[0][0]
        return self._workers[worker]

    async def claim(
        self,
        worker: WorkerId,
        serves: Mapping[str, str],
        *,
        limit: int,
        runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:
        if limit < 1 or not serves or runs == []:
            return []
        leases = await self._claims.take(worker, serves, limit=limit, runs=runs, suspects=suspects)
        if leases and worker not in self._workers:
            await self._worker_number(worker)
        return leases

    async def register(self, worker: WorkerId, *, lock: str | None, about: Mapping[str, str] = {}) -> None:
        said = msgspec.json.encode(dict(about)).decode()
        await self._reader.rows(_REGISTER, [worker, self._clock.given, lock, said])
        await self._worker_number(worker)
        self._hints.listen()

    async def enrol(self, versions: Sequence[CodeVersion]) -> Sequence[CodeVersion]:
        return await enrolling.enrol(self._reader, versions, self._clock.given)

    async def versions(self, name: str) -> Sequence[CodeVersion]:
        return await enrolling.versions(self._reader, [name])

    def heart(self, worker: WorkerId) -> PostgresHeart | None:
        return PostgresHeart(self._address, self._names, worker)

    async def pulse(self, worker: WorkerId) -> bool:
        return bool(await self._reader.rows(f"{BEAT} RETURNING 1", [worker, self._clock.given]))

    async def workers(self) -> Sequence[WorkerRow]:
        await self._reader.look_at(self._clock)
        rows = await self._reader.rows(_WORKERS)
        return [
            WorkerRow(worker, pulse, started_at, lock, leases, _ABOUT.decode(about), beat_at)
            for worker, pulse, started_at, lock, leases, about, beat_at in rows
        ]

    async def scrub(self) -> Sequence[str]:
        return ()

    async def void(self, worker: WorkerId, *, why: str) -> int:
        [(freed,)] = await self._reader.rows("SELECT hf_void($1)", [worker])
        self._workers.pop(worker, None)
        self._rang(None)
        await self._slots.given_up()
        return int(freed)

    async def release(self, worker: WorkerId, *, keep: Sequence[RunId] = ()) -> int:
        rows = [(read_row(row), row[-3]) for row in await self._reader.rows(leasing.OWNED, [worker])]
        given_up = [(row, stored) for row, stored in rows if row.run not in keep]
        if not given_up:
            return 0
        freed = await self._reader.rows(leasing.RELEASE, leasing.release_values(worker, given_up))
        self._rang(None)
        await self._slots.given_up()
        return len(freed)

    def _rang(self, run: RunId | None) -> None:
        self._bells.ring(run)
        self._hints.tell(run)

    # Limits

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        # The lane of limits is not the run's own: a lease that was given before its run was on disk is waited for.
        await self._lane(lease.row.number).passed(lease.row.run)
        owner = self._workers.get(lease.worker)
        if owner is None:
            owner = await self._worker_number(lease.worker)
        return await self._slots.acquire(lease, owner, step, limit)

    async def free(self, lease: Lease, step: str) -> None:
        await self._slots.free(lease, step)

    # Posts

    async def post(self, post: NewPost) -> Posted:
        row = await self._reader.row(post.run)
        if row is None:
            raise NotFound(f"run {post.run}")
        if row.damage:
            raise Damaged(run=post.run, seq=None, what=row.damage)
        at, asked = self._clock(), 0
        values = post_values([post], at)

        async def question(connection: Async) -> list[tuple[Any, ...]]:
            nonlocal asked
            asked += 1
            return await (await connection.execute(self._names(POST), values, binary=True)).fetchall()

        [(_, outcome, seq)] = await self._reader.ask(question)
        if outcome is None:
            raise NotFound(f"run {post.run}")
        if outcome == "duplicate" and asked > 1 and await self._reader.rows(_OURS, [row.number, post.key, at]):
            outcome = "accepted"
        if outcome == "accepted":
            self._rang(post.run)
            self._rang(None)
        return Posted(outcome, 0 if outcome == "finished" else seq)

    # Deleting

    async def delete(self, runs: Sequence[RunId], *, trial: bool = False) -> Deleted:
        deleted = await self._reader.ask(deleting.Deletion(self._reader, runs, trial=trial))
        for run in deleted.runs if not trial else ():
            self._rang(run)
        return deleted

    async def sweep(self, before: int) -> int:
        return await deleting.sweep(self._reader, before)

    # Reading

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        return await self._reader.page(run, after, chunks=chunks, limit=limit)

    async def last(self, run: RunId) -> Page | None:
        return await self._reader.last(run)

    async def conversation(self, tenant: str, conversation: str) -> ConversationRow | None:
        return await conversing.conversation(self._reader, tenant, conversation)

    async def turns(
        self, tenant: str, conversation: str, *, after: int = 0, limit: int = limits.PAGE_ENTRIES
    ) -> Sequence[RunRow]:
        return await conversing.turns(self._reader, tenant, conversation, after, limit)

    async def count_turns(self, tenant: str, conversation: str, up_to: int) -> int:
        return await conversing.count(self._reader, tenant, conversation, up_to)

    async def annotate(self, tenant: str, conversation: str, metadata: bytes) -> None:
        await conversing.annotate(self._reader, tenant, conversation, metadata)

    async def forks(self, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
        return await forking.forks(self._reader, runs)

    async def forked(self, run: RunId) -> Mapping[RunId, Forked]:
        return await forking.forked(self._reader, run)

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        return await self._reader.inbox(run, after)

    async def get(self, run: RunId) -> RunRow | None:
        return await self._reader.row(run)

    async def find(self, tenant: str, key: str) -> RunRow | None:
        known = await self._reader.key(tenant, key)
        return known[2] if known is not None else None

    async def holder(self, tenant: str, key: str) -> RunId | None:
        known = await self._reader.key(tenant, key)
        return known[0] if known is not None else None

    async def list(self, which: RunFilter) -> Sequence[RunRow]:
        return await self._reader.runs(which)

    async def blob(self, tenant: str, digest: str) -> bytes:
        return await self._reader.blob(tenant, digest)

    async def limits(self) -> Sequence[LimitRow]:
        return await self._slots.rows()

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Bell:
        self._hints.listen()
        return self._bells.watch(run, entries=entries)

    async def describe(self) -> Mapping[str, str]:
        await self._reader.rows("UPDATE hf_store SET epoch = epoch")
        [(version, fsync, commits)] = await self._reader.rows(
            "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')"
        )
        return {
            "driver": "postgres", "version": version, "address": str(self._address), "fsync": fsync, "commits": commits
        }  # fmt: skip

    async def budget(self, run: RunId) -> Mapping[str, Account]:
        return accounts_of(await self._reader.rows(BUDGET, by_id([run])))

    async def secret(self) -> bytes:
        return checked_secret(await self._reader.rows("SELECT secret FROM hf_store"))

    async def raise_epoch(self) -> int:
        async with self._reader.connection() as connection:
            cursor = await connection.execute(self._names("UPDATE hf_store SET epoch = epoch + 1 RETURNING epoch"))
            [(self._epoch,)] = await cursor.fetchall()
        return self._epoch

    async def check(self) -> Sequence[str]:
        keys = await self._reader.rows(_STRAY)
        entries = await self._reader.rows(_ORPHANS)
        found = [f"entries of run number {number} have no row" for (number,) in entries]
        found += await conversing.astray(self._reader)
        return found + [f"key {key!r} of run {id_text(run)} does not match the run's row" for key, run in keys]

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for lane in self._lanes:
            await lane.close()
        if self._refilling is not None:
            with contextlib.suppress(Exception):
                await self._refilling
        await self._hints.close()
        await self._transactions.close()
        await self._reader.close()
