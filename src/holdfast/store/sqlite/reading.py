"""The read side of a SQLite file: a connection that only reads, unless the writing one is idle and its pages warm."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any, Final

import apsw
import msgspec

from holdfast.core import limits
from holdfast.core.checksum import ZERO, Share, StoredEntry
from holdfast.core.cursor import Cursor
from holdfast.core.errors import Damaged, NotFound, StoreClosed
from holdfast.core.ids import RunId, id_bytes
from holdfast.core.status import Status
from holdfast.store.page import cut, joins
from holdfast.store.rows import OPEN, POSTS, SELECT, UNHEARD, read_post, read_row
from holdfast.store.sqlite.connection import connect, translated
from holdfast.store.sqlite.fetch import Row, fetch, fetch_raw
from holdfast.store.sqlite.forking import shares_of
from holdfast.store.sqlite.lookup import find_key, find_run
from holdfast.store.value import Page, Post, RunFilter, RunRow, StoredChunk

_COUNTED: Final = """
    SELECT count(*), coalesce(max(seq), 0), coalesce(sum(guard >> 32 IS NOT coalesce(consumed, 0)), 0) FROM hf_posts
     WHERE run = ? AND seq > ?
"""
_WAITING: Final = POSTS + "WHERE run = ? AND seq > ? AND consumed IS NULL ORDER BY seq"
_CHUNK_TYPES: Final = (int, int, int, str, int, int, int, bytes)
# The entry before the page comes along for its checksum, without its body.
_ENTRIES: Final = """
    SELECT seq, kind, version, at, enc, CASE WHEN seq > ?2 THEN body END, checksum FROM hf_entries
     WHERE run = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3
"""
_SHARED: Final = """
    SELECT seq, kind, version, at, enc, CASE WHEN seq > ?2 THEN body END, checksum FROM hf_entries
     WHERE run = ?1 AND seq >= ?2 AND seq > ?4 AND seq <= ?5 ORDER BY seq LIMIT ?3
"""
_NO_END: Final = (1 << 63) - 1
_MOST_ASKED: Final = 500
_STANDS: Final = "SELECT run, status, reason, due_at, owner IS NULL FROM hf_runs WHERE run IN ({})"


class Reader:
    """Reads; from any thread, one at a time."""

    def __init__(self, path: str, idle: Callable[[], apsw.Connection | None], *, synchronous: str) -> None:
        self._path, self._idle, self._synchronous = path, idle, synchronous
        self._connection: apsw.Connection | None = None
        self._lock = threading.RLock()
        self._closed = False

    def drop(self) -> None:
        """Close the connection; the next look opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close(True)
                self._connection = None

    def close(self) -> None:
        """Close it for good."""
        self._closed = True
        self.drop()

    @contextmanager
    def one(self) -> Iterator[Any]:
        """Give a connection for one statement."""
        if self._closed:
            raise StoreClosed(self._path)
        with self._lock, translated(self._path):
            idle = self._idle()
            if idle is not None:
                yield idle
                return
            if self._connection is None:
                self._connection = connect(self._path, synchronous=self._synchronous)
                self._connection.execute("PRAGMA query_only=ON")
            yield self._connection

    @contextmanager
    def snapshot(self) -> Iterator[Any]:
        """Give a connection whose statements all see one moment."""
        with self.one() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def page(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        """Return what follows a cursor, as it all stood at one moment."""
        with self.snapshot() as connection:
            row = find_run(connection, run)
            if row is None:
                raise NotFound(f"run {run}")
            previous, entries, more = _page(connection, row.number, after.seq, limit)
            shares: list[Share] = []
            if not joins(after.seq, previous, entries):
                shares, owners = shares_of(connection, row.number)
                if shares:
                    previous, entries, more = _shared(connection, (*owners, row.number), shares, after.seq, limit)
            ahead: list[StoredChunk] = []
            if chunks and not more:
                ahead = _chunks(connection, row.number, after)
        return Page(row, entries, ahead, previous, more, shares)

    def last(self, run: RunId) -> Page | None:
        """Return a run's row and, if it has ended, its last entry."""
        with self.one() as connection:
            row = find_run(connection, run)
            if row is None:
                return None
            if row.damage or not row.status.terminal:
                return Page(row, (), (), ZERO, False)
            # Entries never change, so the row may be looked at first and needs no snapshot with them.
            previous, entries, _ = _page(connection, row.number, max(row.last_seq - 1, 0), 1)
        return Page(row, entries, (), previous, False)

    def inbox(self, run: RunId, after: int) -> Sequence[Post]:
        """Return the posts that wait behind `after`."""
        with self.snapshot() as connection:
            row = find_run(connection, run)
            if row is None:
                return []
            # What was consumed is only counted, without its body: a post that is missing must not go unnoticed.
            known = fetch(connection, _COUNTED, (row.number, after))
            waiting = fetch(connection, _WAITING, (row.number, after))
        if known != [(row.inbox_seq - after, row.inbox_seq if row.inbox_seq > after else 0, 0)]:
            raise Damaged(run=run, seq=None, what="its inbox does not hold the posts that its row counts")
        return [read_post(run, values) for values in waiting]

    def row(self, run: RunId) -> RunRow | None:
        """Return a run's row."""
        with self.one() as connection:
            return find_run(connection, run)

    def find(self, tenant: str, key: str) -> RunRow | None:
        """Return the row of the run that a key belongs to."""
        with self.one() as connection:
            known = find_key(connection, tenant, key)
        return known.row if known is not None else None

    def holder(self, tenant: str, key: str) -> RunId | None:
        """Return the run that a key belongs to, deleted or not."""
        with self.one() as connection:
            known = find_key(connection, tenant, key)
        return known.run if known is not None else None

    def runs(self, which: RunFilter) -> Sequence[RunRow]:
        """Return a page of rows, newest first."""
        where: list[str] = ["TRUE"]
        values: list[Any] = []
        if which.before is not None:
            where.append("r.run < ?")
            values.append(id_bytes(which.before))
        if which.status is Status.RUNNING:
            where.append("r.owner IS NOT NULL")
        elif which.status is not None:
            where.append("r.status = ?" + ("" if which.status.terminal else " AND r.owner IS NULL"))
            values.append(str(which.status))
        if which.open:
            where.append(OPEN)
        for column, value in (("name", which.name), ("key", which.key)):
            if value is not None:
                where.append(f"r.{column} = ?")
                values.append(value)
        if which.conversation is not None:
            where.append("r.tenant = ? AND r.conversation = ?")
            values += which.conversation
        if which.owner is not None:
            where.append("r.owner = (SELECT number FROM hf_workers WHERE worker = ?) AND r.inbox_seq > r.seen_seq")
            values.append(which.owner)
        if which.unheard:
            where.append(UNHEARD)
        if which.posted is not None:
            where.append("EXISTS (SELECT 1 FROM hf_posts p WHERE p.run = r.number AND p.key = ?)")
            values.append(which.posted)
        if which.but:
            where.append("r.name NOT IN (SELECT value FROM json_each(?))")
            values.append(msgspec.json.encode(list(which.but)).decode())
        if which.parent is not None:
            where.append("r.parent = ?")
            values.append(id_bytes(which.parent))
        if which.prefix:
            where.append("r.run BETWEEN ? AND ?")
            values += [bytes.fromhex(which.prefix.ljust(32, digit)) for digit in "0f"]
        for label, value in which.labels.items():
            where.append("EXISTS (SELECT 1 FROM json_each(r.labels) l WHERE l.key = ? AND l.value = ?)")
            values += [label, value]
        # Those that have not heard are few and have an index; not the one that the order would suggest.
        order = "+r.run" if which.unheard else "r.run"
        sql = f"{SELECT} WHERE {' AND '.join(where)} ORDER BY {order} DESC LIMIT ?"
        with self.one() as connection:
            return [read_row(row) for row in fetch(connection, sql, (*values, which.limit))]

    def blob(self, tenant: str, digest: str) -> bytes:
        """Return a blob's bytes, checked."""
        with self.one() as connection:
            rows = fetch(
                connection, "SELECT body FROM hf_blobs WHERE tenant = ? AND digest = unhex(?)", (tenant, digest)
            )
        if not rows:
            raise NotFound(f"blob {digest}")
        body: bytes = rows[0][0]
        if not isinstance(body, bytes) or sha256(body).hexdigest() != digest:
            raise Damaged(run="", seq=None, what=f"blob {digest} does not have the bytes its digest says")
        return body

    def stands(self, runs: Sequence[RunId]) -> Mapping[RunId, Row]:
        """Return where these runs stand: whatever differs when one has moved."""
        found: dict[RunId, Row] = {}
        for first in range(0, len(runs), _MOST_ASKED):
            asked = {id_bytes(run): run for run in runs[first : first + _MOST_ASKED]}
            with self.one() as connection:
                rows = fetch(connection, _STANDS.format(", ".join("?" * len(asked))), tuple(asked))
            found |= {asked[raw]: tuple(stands) for raw, *stands in rows}
        return found


def _page(connection: apsw.Connection, number: int, after: int, limit: int) -> tuple[bytes, list[StoredEntry], bool]:
    asked = (number, after, limit + 2)
    try:
        return cut(connection.execute(_ENTRIES, asked), after, limit)
    except UnicodeDecodeError:
        return cut(fetch_raw(connection, _ENTRIES, asked), after, limit)


def _shared(
    connection: apsw.Connection, owners: Sequence[int], shares: Sequence[Share], after: int, limit: int
) -> tuple[bytes, list[StoredEntry], bool]:
    """Return a page of a fork, whose entries are of several runs."""
    ends = [0, *(share.up_to for share in shares), _NO_END]
    asked = [(owner, after, limit + 2, *stretch) for owner, stretch in zip(owners, pairwise(ends), strict=True)]

    def rows(ask: Callable[[apsw.Connection, str, Any], Iterable[Row]]) -> Iterator[Row]:
        return chain.from_iterable(ask(connection, _SHARED, values) for values in asked if values[4] >= after)

    try:
        return cut(rows(lambda of, sql, values: of.execute(sql, values)), after, limit)
    except UnicodeDecodeError:
        return cut(rows(fetch_raw), after, limit)


def _chunks(connection: apsw.Connection, number: int, after: Cursor) -> list[StoredChunk]:
    rows = fetch(
        connection,
        "SELECT seq, fence, number, step, attempt, offset, at, body FROM hf_chunks "
        "WHERE run = ? AND (seq, fence, number) > (?, ?, ?) ORDER BY seq, fence, number LIMIT ?",
        (number, *after, limits.PAGE_ENTRIES),
    )
    chunks: list[StoredChunk] = []
    size = 0
    for row in rows:
        if chunks and size > limits.PAGE_BYTES:
            break
        # A preview that cannot be read is none: the entry to come tells the truth.
        if tuple(map(type, row)) == _CHUNK_TYPES:
            chunks.append(StoredChunk(*row))
            size += len(row[7])
    return chunks
