"""Forking a run is writing an entry that names another's."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core.budget import opening, remaining
from holdfast.core.checksum import ZERO, Share, StoredEntry, check_chain, checksum, owner_of
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import RunForked, encode_body, read_entry
from holdfast.core.errors import Damaged
from holdfast.core.fold import RunState, fold
from holdfast.core.fork import History, LooseEnds
from holdfast.core.ids import RunId, id_bytes, new_run_id
from holdfast.core.post import SIGNAL
from holdfast.core.status import Status
from holdfast.core.version import Need
from holdfast.store.protocol import Store
from holdfast.store.value import NewFork, NewPost, Post, RunRow

RETRY: Final = "retry"
"""The word that the retry of a failed run is asked for under."""


class Past:
    """A run's history up to a place: the last entry there, who wrote what, and what hangs loose."""

    def __init__(self, row: RunRow) -> None:
        self.row = row
        self.history = History()
        self.state = RunState()
        self.shares: list[Share] = []
        self.signals: list[Post] = []
        """What was sent to it and not taken; for a run that takes its place."""
        self.last: StoredEntry

    @classmethod
    async def read(cls, store: Store, row: RunRow, at: int) -> "Past":
        """Read it, checked; `at` is at least 1.

        Raises:
            Damaged: an entry of it is missing or altered.
            UnknownEntry: a newer Holdfast wrote one.
        """
        past, cursor, head = cls(row), START, ZERO
        while cursor.seq < at:
            page = await store.read(row.run, cursor, chunks=False)
            rows = page.entries[: at - cursor.seq]
            past.shares = list(page.shares) or past.shares
            head = check_chain(row.run, head, rows, cursor.seq, page.shares)
            for stored in rows:
                entry = read_entry(row.run, stored)
                past.history.take(entry)
                past.state = fold(past.state, entry)
                past.last = stored
            cursor = Cursor(cursor.seq + len(rows))
            if not page.more and cursor.seq < at:
                raise Damaged(run=row.run, seq=cursor.seq + 1, what=f"the row says {row.last_seq} entries")
        return past

    @classmethod
    async def before_end(cls, store: Store, row: RunRow) -> "Past":
        """Read it up to where something can follow: before the run's ending, and before anybody asked for that."""
        past = await cls.read(store, row, row.last_seq - 1 if row.status.terminal else row.last_seq)
        asked = past.history.cancel_seq
        return await cls.read(store, row, asked - 1) if asked else past

    @classmethod
    async def before_retry(cls, store: Store, row: RunRow) -> "Past":
        """Read it up to where another try begins, and what waits in its inbox.

        What a failed turn told of its failure is left out: behind it nothing could be tried again.
        """
        failed = row.status is Status.FAILED
        past = await cls.read(store, row, row.last_seq - 1) if failed else await cls.before_end(store, row)
        if past.history.failed_seq:
            past = await cls.read(store, row, past.history.failed_seq - 1)
        past.signals = [post for post in await store.inbox(row.run) if post.kind == SIGNAL]
        return past

    def forked(self, *, now: int, retry: bool = False, by: str | None = None) -> NewFork:
        """Return the fork that begins here; a retry takes what failed up again, and the base's key over."""
        loose = self.history.at_retry() if retry else self.history.at_fork()
        left = remaining(self.state.accounts)
        new = new_fork(self.row, self.last, self.shares, loose, now=now, retry=retry, by=by, grant=left)
        posts = [NewPost(run=new.row.run, kind=post.kind, key=post.key, body=post.body) for post in self.signals]
        return replace(new, posts=posts)


def new_fork(
    base: RunRow,
    last: StoredEntry,
    shares: Sequence[Share],
    loose: LooseEnds,
    *,
    now: int,
    retry: bool = False,
    by: str | None = None,
    grant: Mapping[str, int] = {},
) -> NewFork:
    """Return the row and the first own entry of a run that has the base's entries up to `last`.

    A retry takes the base's key and conversation with it; any other fork stands for itself. Its budget is `grant`.
    """
    run = new_run_id()
    entry = RunForked(
        base=owner_of(base.run, shares, last.seq),
        base_seq=last.seq,
        base_checksum=last.checksum.hex(),
        seed=secrets.token_hex(16),
        grant=dict(grant) or None,
        reopened=loose.reopened,
        doubted=loose.doubted,
        children=loose.children,
        questions=loose.questions,
        by=by,
    )
    need = replace(Need.read(base.refused), refused=(), left=False)
    row = RunRow(
        run=run, number=0, tenant=base.tenant, name=base.name, digest=base.digest, created_at=now, updated_at=now,
        key=base.key if retry else None, code=base.code, pin=base.pin, labels=dict(base.labels), due_at=now,
        conversation=base.conversation if retry else None, refused=need.word,
    )  # fmt: skip
    first = _first(run, entry, last, now)
    return NewFork(
        row=row, first=first, base=base.run, previous=last.checksum, word=RETRY if retry else None,
        budget=opening(grant),
    )  # fmt: skip


def _first(run: RunId, entry: RunForked, last: StoredEntry, now: int) -> StoredEntry:
    seq, kind, body = last.seq + 1, entry.type, encode_body(entry)
    chained = checksum(id_bytes(run), seq, now, entry.version, kind, 0, last.checksum, body)
    return StoredEntry(seq, kind, entry.version, now, 0, body, chained)
