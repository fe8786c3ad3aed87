"""The store in memory: the shortest driver, and the documentation of the others."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from itertools import accumulate, count
from secrets import token_bytes

from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.budget import Account
from holdfast.core.checksum import Share, StoredEntry, owner_of
from holdfast.core.cursor import Cursor
from holdfast.core.entry import BudgetMove
from holdfast.core.errors import NotFound
from holdfast.core.ids import Fence, RunId, WorkerId, new_worker_id
from holdfast.core.limit import Limit
from holdfast.core.post import CANCEL
from holdfast.core.status import Status
from holdfast.core.version import LEFT, CodeVersion, admits
from holdfast.store import point
from holdfast.store.answer import Done
from holdfast.store.bell import Bell, Bells
from holdfast.store.blobs import Blobs
from holdfast.store.clock import Clock, system_clock
from holdfast.store.filter import wants
from holdfast.store.keeping import why_kept
from holdfast.store.page import cut
from holdfast.store.protocol import Pending, Transaction
from holdfast.store.scratch import Scratch
from holdfast.store.shelf import MemoryShelves
from holdfast.store.stalling import TAIL, no_progress
from holdfast.store.start import keyless
from holdfast.store.tickets import Tickets
from holdfast.store.turns import Turns, is_over
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
    HeadMoved,
    InboxMoved,
    KeyTaken,
    Lease,
    LeaseLost,
    LimitRow,
    NewBlob,
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
    StoredChunk,
    Turn,
    WorkerRow,
)


class MemoryStore:
    """A store that ends with its process; for tests and trials."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self.id, self.epoch = str(new_worker_id()), 1
        self.lock_folder: str | None = None
        self.now = clock
        self._numbers = count(1)
        self._rows: dict[RunId, RunRow] = {}
        self._keys: dict[tuple[str, str], RunRow] = {}
        self._entries: dict[RunId, list[StoredEntry]] = {}
        self._shares: dict[RunId, tuple[Share, ...]] = {}
        self._words: dict[RunId, str | None] = {}
        """The word that each fork was asked for under."""
        self._posts: dict[RunId, list[Post]] = {}
        self._consumed: set[tuple[RunId, int]] = set()
        self._chunks: dict[RunId, list[StoredChunk]] = {}
        self._blobs = Blobs()
        self._workers: dict[WorkerId, WorkerRow] = {}
        self._versions: dict[tuple[str, str], CodeVersion] = {}
        self._cursors: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._budgets: dict[tuple[RunId, str], Account] = {}
        self._tickets = Tickets(self._lives)
        self._turns = Turns(self._next_turn)
        self._bells = Bells()
        self._scratch = Scratch()
        self.shelves = MemoryShelves()
        self._secret = token_bytes(32)

    def twin(self, *, clock: Clock) -> "MemoryStore":
        """Return a store of the same contents, as whoever opens it after a crash would find them."""
        twin = MemoryStore(clock=clock)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(
                    twin, name, {key: list(held) if isinstance(held, list) else held for key, held in value.items()}
                )
            elif isinstance(value, set | str | int | bytes):
                setattr(twin, name, copy(value))
        twin._blobs, twin._scratch, twin.shelves, twin._turns = (
            self._blobs.twin(),
            self._scratch.twin(),
            self.shelves.twin(),
            self._turns.twin(twin._next_turn),
        )
        return twin

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Created | Existing | KeyTaken | Busy:
        return self._create(new, worker)

    def _create(self, new: NewRun, worker: WorkerId | None) -> Created | Existing | KeyTaken | Busy:
        wanted = new.row
        known = self._keys.get((wanted.tenant, wanted.key)) if wanted.key is not None else None
        if known is not None:
            pairs = {"name": (known.name, wanted.name), "input": (known.digest, wanted.digest),
                     "conversation": (known.conversation, wanted.conversation)}  # fmt: skip
            differs = tuple(what for what, (has, wants) in pairs.items() if has != wants)
            return KeyTaken(known.run, differs) if differs else Existing(known.run, self._rows.get(known.run))
        if new.if_idle and not self._turns.is_free(wanted):
            return Busy()
        point.reached("before")
        if wanted.conversation is not None:
            wanted = self._turns.take(wanted)
        owner = worker if worker in self._workers and not wanted.behind else None
        row = replace(
            wanted, number=next(self._numbers), last_seq=1, head=new.first.checksum, root=wanted.root or wanted.run,
            owner=owner, fence=Fence(int(owner is not None)), attempt=int(owner is not None),
            stalls=int(owner is not None),
        )  # fmt: skip
        self._rows[row.run] = row
        if row.key is not None:
            self._keys[row.tenant, row.key] = row
        self._entries[row.run], self._posts[row.run], self._chunks[row.run] = [new.first], [], []
        self._blobs.add(row, new.blobs, self.now())
        self._move(row, new.budget)
        point.reached("after")
        self._bells.ring(None)
        return Created(row, Lease(row, owner, row.fence, "started", new.first) if owner else None)

    async def fork(self, new: NewFork) -> Created | Existing | BaseMoved:
        base, at = self._rows.get(new.base), new.first.seq - 1
        journal = self._entries[new.base][:at] if base is not None else []
        if base is None or len(journal) < at or journal[-1].checksum != new.previous:
            return BaseMoved()
        shares = self._shares.get(base.run, ())
        owner = owner_of(base.run, shares, at)
        for known, forked in (await self.forked(owner)).items():
            if new.word is not None and forked.word == new.word:
                return Existing(known, self._rows[known])
        point.reached("before")
        fork = replace(
            self._turns.take(new.row) if new.row.conversation is not None else new.row,
            number=next(self._numbers),
            last_seq=new.first.seq,
            head=new.first.checksum,
            root=new.row.root or new.row.run,
        )
        self._rows[fork.run] = fork
        if fork.key is not None:
            self._rows[base.run] = replace(base, key=None)
            self._keys[fork.tenant, fork.key] = fork
        self._shares[fork.run] = (*(share for share in shares if share.up_to < at), Share(at, owner))
        self._words[fork.run] = new.word
        self._entries[fork.run], self._posts[fork.run], self._chunks[fork.run] = [*journal, new.first], [], []
        self._blobs.share(base.run, fork.run)
        for post in new.posts:
            self._post(post)
        self._move(fork, new.budget)
        point.reached("after")
        self._bells.ring(None)
        return Created(fork, None)

    async def forks(self, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
        return {run: Forked(shares[-1].run, shares[-1].up_to, self._words[run])
                for run in runs if run in self._rows and (shares := self._shares.get(run))}  # fmt: skip

    async def forked(self, run: RunId) -> Mapping[RunId, Forked]:
        found = await self.forks(sorted(self._shares))
        return {fork: forked for fork, forked in found.items() if forked.base == run}

    def hold(
        self, row: RunRow, entries: Sequence[StoredEntry], blobs: Mapping[str, bytes], shares: Sequence[Share] = ()
    ) -> None:
        """Put a run here as it stood elsewhere, to be read."""
        row = self._rows[row.run] = replace(row, number=next(self._numbers))
        if shares:
            self._shares[row.run], self._words[row.run] = tuple(shares), None
        self._entries[row.run], self._posts[row.run], self._chunks[row.run] = list(entries), [], []
        if row.key is not None:
            self._keys[row.tenant, row.key] = row
        self._blobs.add(row, [NewBlob(digest, body) for digest, body in blobs.items()], self.now())

    def create_soon(self, new: NewRun, *, worker: WorkerId) -> tuple[Lease, Pending[Created]] | None:
        able = worker in self._workers and new.row.conversation is None
        created = self._create(new, worker) if able else None
        if not isinstance(created, Created) or created.lease is None:
            return None
        return created.lease, Done(created)

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        return Done(self._commit(lease, change))

    def _commit(self, lease: Lease, change: Commit) -> Outcome:
        run, row = lease.row.run, self._held(lease)
        if row is None or not self._may_write(row):
            return LeaseLost()
        if row.last_seq != change.after:
            return HeadMoved(row.last_seq)
        if change.control not in (None, row.control_seq) or change.inbox not in (None, row.inbox_seq):
            return InboxMoved(row.inbox_seq, row.control_seq)
        point.reached("before")
        self._entries[run] += change.entries
        last = change.entries[-1] if change.entries else None
        row = replace(row, head=change.head, last_seq=last.seq if last else row.last_seq,
                      updated_at=last.at if last else row.updated_at,
                      stalls=0 if change.progress else row.stalls)  # fmt: skip
        if change.change is not None:
            to = change.change
            seen = row.inbox_seq if to.seen_seq is None else min(row.inbox_seq, to.seen_seq)
            row = replace(row, status=to.status, reason=to.reason, due_at=to.due_at, refused=to.refused,
                          seen_seq=seen, owner=None)  # fmt: skip
            row = self._closed(row)
        self._rows[run] = row
        self._apply_rest(row, change)
        point.reached("after")
        self._bells.ring(run, moved=change.change is not None)
        if change.change is not None and (not row.status.terminal or row.conversation is not None):
            self._bells.ring(None)
        return Committed(row.last_seq)

    def _may_write(self, row: RunRow) -> bool:
        """Say whether a run may commit: a turn at its turn, or to come to an end that was asked for."""
        return row.conversation is None or self._turns.is_active(row) or self._end_is_asked(row)

    def _end_is_asked(self, row: RunRow) -> bool:
        return any(post.key == CANCEL for post in self._posts[row.run])

    def _closed(self, row: RunRow) -> RunRow:
        """Let the turn of a row that has ended or was set aside be over; set aside, it is behind the others."""
        if row.conversation is None or not is_over(row.status):
            return row
        self._turns.close(row)
        return replace(row, behind=not row.status.terminal)

    def _next_turn(self, talk: ConversationRow) -> RunRow | None:
        """Return the first open turn behind those that are over."""
        turns = [row for row in self._of(talk.tenant, talk.conversation, talk.over) if not is_over(row.status)]
        return turns[0] if turns else None

    def _of(self, tenant: str, conversation: str, after: int) -> list[RunRow]:
        """Return a conversation's turns behind one of them, in order."""
        rows = [
            row
            for row in self._rows.values()
            if (row.tenant, row.conversation) == (tenant, conversation) and (row.turn or 0) > after
        ]
        return sorted(rows, key=lambda row: row.turn or 0)

    def _held(self, lease: Lease) -> RunRow | None:
        """Return the row of a run that is still under this lease."""
        row = self._rows.get(lease.row.run)
        return row if row is not None and row.fence == lease.fence and row.owner == lease.worker else None

    def _apply_rest(self, row: RunRow, change: Commit) -> None:
        for step in change.drop:
            self._chunks[row.run] = [c for c in self._chunks[row.run] if step not in ("*", c.step)]
        self._blobs.add(row, change.blobs, self.now())
        for child in change.children:
            refused = isinstance(self._create(child, None), KeyTaken)
            if refused and child.row.conversation is not None:
                # What was said is not lost with the key.
                self._create(keyless(child), None)
        for post in change.posts:
            self._post(post)
        self._consumed |= {(row.run, seq) for seq in change.consumed}
        self._move(row, change.budget)
        if change.cursor is not None and row.conversation is not None:
            bound = self._cursors.get((row.tenant, row.conversation), change.cursor)
            # It is bound to its first harness, whatever another one's commit says.
            if bound[0] == change.cursor[0]:
                self._cursors[row.tenant, row.conversation] = change.cursor
        if change.freed:
            self._wake(self._tickets.free(row.run, row.fence, change.freed, self.now()))

    def _move(self, row: RunRow, moves: Sequence[BudgetMove]) -> None:
        for move in moves:
            known = self._budgets.get((row.run, move.channel), Account())
            self._budgets[row.run, move.channel] = known.after(move)

    async def transact(
        self, lease: Lease, work: Callable[[Transaction], Commit], *, deadline_seconds: float
    ) -> Outcome:
        if self._held(lease) is None:
            return LeaseLost()
        return self._scratch.transact(work, partial(self._commit, lease), deadline_seconds=deadline_seconds)

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        row = self._rows.get(run)
        if row is None:
            raise NotFound(f"run {run}")
        begin = max(after.seq - 1, 0)
        previous, entries, more = cut(self._entries[run][begin : after.seq + limit + 1], after.seq, limit)
        ahead = [c for c in self._chunks[run] if (c.seq, c.fence, c.number) > after] if chunks and not more else []
        sizes = accumulate(len(chunk.body) for chunk in ahead[: limits.PAGE_ENTRIES])
        fit = sum(1 for size in sizes if size <= limits.PAGE_BYTES)
        return Page(row, entries, ahead[: max(fit, 1)], previous, more, self._shares.get(run, ()))

    async def last(self, run: RunId) -> Page | None:
        row = self._rows.get(run)
        return await self.read(run, Cursor(row.last_seq - 1), chunks=False, limit=1) if row is not None else None

    async def conversation(self, tenant: str, conversation: str) -> ConversationRow | None:
        row = self._turns.rows.get((tenant, conversation))
        harness, cursor = self._cursors.get((tenant, conversation), (None, None))
        return replace(row, harness=harness, cursor=cursor) if row is not None else None

    async def turns(
        self, tenant: str, conversation: str, *, after: int = 0, limit: int = limits.PAGE_ENTRIES
    ) -> Sequence[RunRow]:
        return self._of(tenant, conversation, after)[:limit]

    async def count_turns(self, tenant: str, conversation: str, up_to: int) -> int:
        return sum((row.turn or 0) <= up_to for row in self._of(tenant, conversation, 0))

    async def annotate(self, tenant: str, conversation: str, metadata: bytes) -> None:
        point.reached("before")
        self._turns.annotate(tenant, conversation, metadata)
        point.reached("after")

    async def claim(
        self,
        worker: WorkerId,
        serves: Mapping[str, str],
        *,
        limit: int,
        runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:
        leases: list[Lease] = []
        if worker not in self._workers:
            return leases
        self._rows |= {row.run: row for row in self._turns.call()}
        for row in sorted(self._rows.values(), key=lambda row: (row.stalls, row.due_at is None, row.due_at or 0)):
            if (runs is not None and row.run not in runs) or not self._is_due(row, serves.get(row.name)):
                continue
            if row.stalls and runs is None and not suspects:
                continue
            suspects = suspects and not row.stalls
            if row.is_hopeless:
                why = no_progress(row, self._entries[row.run][-TAIL:])
                aside = replace(
                    row,
                    status=Status.QUARANTINED,
                    reason=why,
                    due_at=None,
                    stalls=limits.STALLS,
                    seen_seq=row.inbox_seq,
                )
                self._rows[row.run] = self._closed(aside)
                continue
            if len(leases) == limit:
                break
            if row.behind:
                row = self._turns.returned(row) or row
            row = replace(row, owner=worker, fence=Fence(row.fence + 1), attempt=row.attempt + 1, stalls=row.stalls + 1)
            self._rows[row.run] = row
            leases.append(Lease(row, worker, row.fence, "started" if row.fence == 1 else "claimed"))
        return leases

    def _is_due(self, row: RunRow, code: str | None) -> bool:
        """Say whether a run may be claimed by whoever serves its name with this version."""
        if code is None or row.owner is not None:
            return False
        due = row.due_at is not None and row.due_at <= self.now()
        rests = row.status in (Status.QUEUED, Status.WAITING) and (due or row.inbox_seq > row.seen_seq)
        asked = row.is_controlled and not row.refused.endswith(LEFT)
        if row.behind:
            return asked and (self._end_is_asked(row) or self._turns.may_return(row))
        return asked or (rests and admits(row.refused, code))

    async def register(self, worker: WorkerId, *, lock: str | None, about: Mapping[str, str] = {}) -> None:
        known = self._workers.get(worker, WorkerRow(worker, 0, self.now(), lock, 0, {}, self.now()))
        self._workers[worker] = replace(known, about=dict(about))

    async def enrol(self, versions: Sequence[CodeVersion]) -> Sequence[CodeVersion]:
        for new in versions:
            self._versions.setdefault((new.name, new.code), replace(new, place=len(self._versions) + 1))
        return [self._versions[new.name, new.code] for new in versions]

    async def versions(self, name: str) -> Sequence[CodeVersion]:
        return [version for version in self._versions.values() if version.name == name]

    async def pulse(self, worker: WorkerId) -> bool:
        if worker in self._workers:
            row = self._workers[worker]
            self._workers[worker] = replace(row, pulse=row.pulse + 1, beat_at=self.now())
        return worker in self._workers

    def heart(self, worker: WorkerId) -> None:
        return None

    async def workers(self) -> Sequence[WorkerRow]:
        owners = [row.owner for row in self._rows.values()]
        return [replace(row, leases=owners.count(row.worker)) for row in self._workers.values()]

    async def scrub(self) -> Sequence[str]:
        return ()

    async def void(self, worker: WorkerId, *, why: str) -> int:
        self._workers.pop(worker, None)
        freed = [row for row in self._rows.values() if row.owner is not None and row.owner not in self._workers]
        self._rows |= {row.run: replace(row, owner=None) for row in freed}
        self._bells.ring(None)
        self._wake(self._tickets.serve(self.now()))
        return len(freed)

    async def release(self, worker: WorkerId, *, keep: Sequence[RunId] = ()) -> int:
        freed = [row for row in self._rows.values() if row.owner == worker and row.run not in keep]
        self._rows |= {row.run: replace(row, owner=None, stalls=max(0, row.stalls - 1)) for row in freed}
        self._bells.ring(None)
        self._wake(self._tickets.serve(self.now()))
        return len(freed)

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        if self._held(lease) is None:
            return LeaseLost()
        turn, woken = self._tickets.acquire(lease, step, limit, self.now())
        self._wake(woken)
        return turn

    async def free(self, lease: Lease, step: str) -> None:
        self._wake(self._tickets.free(lease.row.run, lease.fence, [step], self.now()))

    async def limits(self) -> Sequence[LimitRow]:
        return self._tickets.rows()

    def _lives(self, run: RunId, fence: Fence) -> bool:
        row = self._rows.get(run)
        return row is not None and row.owner is not None and row.fence == fence

    def _wake(self, runs: Iterable[RunId]) -> None:
        for run in runs:
            self._bells.ring(run)

    async def post(self, post: NewPost) -> Posted:
        posted = self._post(post)
        if posted is None:
            raise NotFound(f"run {post.run}")
        return posted

    def _post(self, post: NewPost) -> Posted | None:
        row = self._rows.get(post.run)
        if row is None:
            return None
        for known in self._posts[post.run]:
            if known.key == post.key:
                return Posted("duplicate", known.seq)
        if row.status.terminal:
            return Posted("finished")
        seq = row.inbox_seq + 1
        self._posts[post.run].append(Post(seq=seq, kind=post.kind, key=post.key, body=post.body, at=self.now()))
        self._rows[post.run] = replace(row, inbox_seq=seq, control_seq=seq if post.control else row.control_seq)
        self._bells.ring(post.run)
        self._bells.ring(None)
        return Posted("accepted", seq)

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        return [post for post in self._posts.get(run, [])[after:] if (run, post.seq) not in self._consumed]

    async def get(self, run: RunId) -> RunRow | None:
        return self._rows.get(run)

    async def find(self, tenant: str, key: str) -> RunRow | None:
        known = self._keys.get((tenant, key))
        return self._rows.get(known.run) if known else None

    async def holder(self, tenant: str, key: str) -> RunId | None:
        known = self._keys.get((tenant, key))
        return known.run if known else None

    async def list(self, which: RunFilter) -> Sequence[RunRow]:
        def wanted(row: RunRow) -> bool:
            return wants(which, row, lambda key: any(post.key == key for post in self._posts[row.run]))

        rows = sorted(filter(wanted, self._rows.values()), key=lambda row: row.run, reverse=True)
        return rows[: which.limit]

    def chunks(self, lease: Lease, chunks: Sequence[NewChunk]) -> Awaitable[bool]:
        row = self._held(lease)
        if row is not None:
            self._chunks[row.run] += [
                StoredChunk(row.last_seq, row.fence, c.number, c.step, c.attempt, c.offset, self.now(), c.body)
                for c in chunks
            ]
            self._bells.ring(row.run, moved=False)
        return Done(row is not None)

    async def blob(self, tenant: str, digest: str) -> bytes:
        return self._blobs.read(tenant, digest)

    async def delete(self, runs: Sequence[RunId], *, trial: bool = False) -> Deleted:
        rows = [row for run in dict.fromkeys(runs) if (row := self._rows.get(run)) is not None]
        open_rows = [row for row in self._rows.values() if not row.status.terminal]
        parents, children = {row.run for row in open_rows}, {row.parent for row in open_rows}
        kept = {
            row.run: why
            for row in rows
            if (why := why_kept(row, parent=row.parent in parents, children=row.run in children))
        }
        gone = [row.run for row in rows if row.run not in kept]
        if gone and not trial:
            point.reached("before")
            for run in gone:
                self._blobs.forget(run)
                for of_run in (self._rows, self._entries, self._posts, self._chunks, self._shares, self._words):
                    of_run.pop(run, None)
            self._consumed = {(run, seq) for run, seq in self._consumed if run in self._rows}
            self._budgets = {(run, name): of for (run, name), of in self._budgets.items() if run in self._rows}
            point.reached("after")
            for run in gone:
                self._bells.ring(run)
        return Deleted(gone, kept)

    async def sweep(self, before: int) -> int:
        return self._blobs.sweep(before)

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Bell:
        return self._bells.watch(run, entries=entries)

    async def describe(self) -> Mapping[str, str]:
        return {"driver": "memory"}

    async def budget(self, run: RunId) -> Mapping[str, Account]:
        return {channel: account for (of, channel), account in self._budgets.items() if of == run}

    async def secret(self) -> bytes:
        return self._secret

    async def raise_epoch(self) -> int:
        self.epoch += 1
        return self.epoch

    async def check(self) -> Sequence[str]:
        return []

    async def close(self) -> None:
        self._scratch.close()
