"""The read side on PostgreSQL: rows, pages and blobs, over a bounded pool of connections."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

import psycopg
from msgspec.structs import replace

from holdfast.core import limits
from holdfast.core.checksum import ZERO, Share
from holdfast.core.cursor import START, Cursor
from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import RunId, id_bytes, id_text
from holdfast.core.status import Status
from holdfast.store.page import cut, joins
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.arrays import Id, Texts
from holdfast.store.postgres.clock import ServerClock
from holdfast.store.postgres.connection import Async, Names, is_worth_another_try
from holdfast.store.postgres.gathering import FIRST_ENTRIES, Gathered, Several
from holdfast.store.postgres.opening import MICROS
from holdfast.store.postgres.pool import Pool
from holdfast.store.postgres.together import Together
from holdfast.store.rows import OPEN, ROW_COLUMNS, SELECT, UNHEARD, read_post, read_row
from holdfast.store.value import Page, Post, RunFilter, RunRow, StoredChunk

Row = tuple[Any, ...]
T = TypeVar("T")
_BY_ID: Final = SELECT + "WHERE r.run = $1"
_BY_KEY: Final = SELECT + "WHERE r.tenant = $1 AND r.key = $2"
_KEY: Final = "SELECT run, name, digest, conversation FROM hf_keys WHERE tenant = $1 AND key = $2"
# The entry before the page comes along for its checksum, without its body.
_ENTRIES: Final = """
    SELECT seq, kind, version, at, enc, CASE WHEN seq > $2 THEN body END, checksum FROM hf_entries
     WHERE run = (SELECT number FROM hf_runs WHERE run = $1) AND seq >= $2 ORDER BY seq LIMIT $3
"""
_SHARES: Final = """
    SELECT up_to, base FROM hf_lineage WHERE run = (SELECT number FROM hf_runs WHERE run = $1) ORDER BY up_to
"""
# Of a fork: each stretch of its journal from the run that wrote it.
_SHARED: Final = """
    WITH me AS (SELECT number FROM hf_runs WHERE run = $1), part AS (
        SELECT l.owner, coalesce(lag(l.up_to) OVER (ORDER BY l.up_to), 0) AS low, l.up_to AS high
          FROM hf_lineage l WHERE l.run = (SELECT number FROM me)
        UNION ALL
        SELECT number, (SELECT max(up_to) FROM hf_lineage WHERE run = number), NULL FROM me
    )
    SELECT e.seq, e.kind, e.version, e.at, e.enc, e.body, e.checksum FROM part, LATERAL (
        SELECT seq, kind, version, at, enc, CASE WHEN seq > $2 THEN body END AS body, checksum FROM hf_entries
         WHERE run = part.owner AND seq >= $2 AND seq > part.low AND (part.high IS NULL OR seq <= part.high)
         ORDER BY seq LIMIT $3) e
     ORDER BY e.seq LIMIT $3
"""
_CHUNKS: Final = """
    SELECT seq, fence, number, step, attempt, "offset", at, body FROM hf_chunks
     WHERE run = (SELECT number FROM hf_runs WHERE run = $1)
       AND (seq, fence, number) > ($2::bigint, $4::bigint, $5::bigint)
     ORDER BY seq, fence, number LIMIT $6
"""
_AGAIN_SECONDS: Final = (0.05, 0.2, 0.5, 1.0)
_CLOSE_SECONDS: Final = 1.0
"""How long a store that is closed waits for answers that nobody waits for any more."""


class Reader:
    """Reads through a pool; a connection that died is replaced, and the question asked again."""

    def __init__(self, address: Address, names: Names) -> None:
        self.names = names
        self._pool = Pool(address)
        self.connection = self._pool.connection
        self._asked: set[asyncio.Task[Any]] = set()
        row, chunks = (_BY_ID, ROW_COLUMNS), (_CHUNKS, 8)
        self._own = Together(names, row, (_ENTRIES, 7), chunks)
        self._shared = Together(names, row, (_SHARED, 7), chunks)
        several = Several(names)
        self._rows = Gathered(self.ask, several.rows)
        self._beginnings = Gathered(self.ask, several.beginnings)
        self._inboxes = Gathered(self.ask, several.inboxes)

    async def close(self) -> None:
        """Let go of every connection."""
        if self._asked:
            _, late = await asyncio.wait(self._asked, timeout=_CLOSE_SECONDS)
            for task in late:
                task.cancel()
        await self._pool.close()

    async def ask(self, question: Callable[[Async], Awaitable[T]]) -> T:
        """Ask on a connection of the pool's, again if the server went away; so it must be what may be repeated.

        Who is cancelled meanwhile does not wait for the answer, but it is read to its end: a connection whose question
        is called off is lost, and calling it off takes another.
        """
        task = asyncio.ensure_future(self._answer(question))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return await asyncio.shield(task)

    async def _answer(self, question: Callable[[Async], Awaitable[T]]) -> T:
        for pause in _AGAIN_SECONDS:
            async with self.connection() as connection:
                try:
                    return await question(connection)
                except (psycopg.Error, OSError) as error:
                    await self._pool.hear(connection, error)
                    if not is_worth_another_try(connection, error):
                        raise
            await asyncio.sleep(pause)
        async with self.connection() as connection:
            return await question(connection)

    async def rows(self, text: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of one statement that may be repeated."""

        async def question(connection: Async) -> list[Row]:
            cursor = await connection.execute(self.names(text), values or None, binary=True)
            # Not by `description`, which is made anew, column by column.
            return await cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []

        return await self.ask(question)

    async def look_at(self, clock: ServerClock) -> int:
        """Return the server's time, and let the clock know it."""
        if clock.given is not None:
            return clock.given
        asked = clock.mark()
        [(now,)] = await self.rows(f"SELECT {MICROS}")
        clock.saw(now, asked)
        return int(now)

    async def row(self, run: RunId) -> RunRow | None:
        """Return a run's row."""
        return await self._rows(run)

    async def key(self, tenant: str, key: str) -> tuple[RunId, Row, RunRow | None] | None:
        """Return the run that a key belongs to, what it stands for, and the run's row if there is one."""
        known = await self.rows(_KEY, [tenant, key])
        if not known:
            rows = await self.rows(_BY_KEY, [tenant, key])
            if rows:
                row = read_row(rows[0])
                return row.run, (row.run, row.name, row.digest, row.conversation), row
            return None
        run = id_text(known[0][0])
        row_of = await self.row(run)
        if row_of is not None and not row_of.damage and (row_of.tenant, row_of.key) != (tenant, key):
            row_of = replace(row_of, damage="its key leads to another run")
        return run, known[0], row_of

    async def page(self, run: RunId, after: Cursor, *, chunks: bool, limit: int) -> Page:
        """Return what follows a cursor, as it all stood at one moment."""
        if after == START and not chunks and limit >= FIRST_ENTRIES:
            page = await self._beginnings(run)
        else:
            page = await self.ask(partial(self._page, self._own, _id(run), after, limit, chunks))
        if page is None:
            raise NotFound(f"run {run}")
        if joins(after.seq, page.previous, page.entries):
            return page
        rows = await self.rows(_SHARES, [_id(run)])
        if not rows:
            return page
        shared = await self.ask(partial(self._page, self._shared, _id(run), after, limit, chunks))
        if shared is None:
            raise NotFound(f"run {run}")
        # What a fork shares never changes, so it needs no snapshot with the entries.
        return replace(shared, shares=[Share(up_to, id_text(base)) for up_to, base in rows])

    @staticmethod
    async def _page(
        questions: Together, raw: Id, after: Cursor, limit: int, chunks: bool, connection: Async
    ) -> Page | None:
        values = [raw, after.seq, limit + 2, after.fence, after.number, limits.PAGE_ENTRIES if chunks else 0]
        rows, entries, ahead = await questions.ask(connection, values)
        previous, page, more = cut(entries, after.seq, limit)
        return Page(read_row(rows[0]), page, [] if more else _fit(ahead), previous, more) if rows else None

    async def last(self, run: RunId) -> Page | None:
        """Return a run's row and, if it has ended, its last entry."""
        row = await self.row(run)
        if row is None:
            return None
        if row.damage or not row.status.terminal:
            return Page(row, (), (), ZERO, False)
        # Entries never change, so the row may be looked at first and needs no snapshot with them.
        entries = await self.rows(_ENTRIES, [_id(run), max(row.last_seq - 1, 0), 3])
        previous, page, _ = cut(entries, max(row.last_seq - 1, 0), 1)
        return Page(row, page, (), previous, False)

    async def inbox(self, run: RunId, after: int) -> Sequence[Post]:
        """Return the posts that wait behind `after`."""
        values, counted, posts = await self._inboxes((run, after))
        if values is None:
            return []
        row = read_row(values)
        if tuple(counted) != (row.inbox_seq - after, row.inbox_seq if row.inbox_seq > after else 0, 0):
            raise Damaged(run=run, seq=None, what="its inbox does not hold the posts that its row counts")
        return [read_post(run, values, numbered=False) for values in posts]

    async def runs(self, which: RunFilter) -> Sequence[RunRow]:
        """Return a page of rows, newest first."""
        where: list[str] = ["TRUE"]
        values: list[Any] = []

        def add(text: str, *given: Any) -> None:
            values.extend(given)
            places = iter(range(len(values) - len(given) + 1, len(values) + 1))
            where.append("".join(f"${next(places)}" if letter == "?" else letter for letter in text))

        if which.before is not None:
            add("r.run < ?", _id(which.before))
        if which.status is Status.RUNNING:
            add("r.owner IS NOT NULL")
        elif which.status is not None:
            add("r.status = ?" + ("" if which.status.terminal else " AND r.owner IS NULL"), str(which.status))
        if which.open:
            add(OPEN)
        for column, value in (("name", which.name), ("key", which.key)):
            if value is not None:
                add(f"r.{column} = ?", value)
        if which.conversation is not None:
            add("r.tenant = ? AND r.conversation = ?", *which.conversation)
        if which.owner is not None:
            add("r.owner = (SELECT number FROM hf_workers WHERE worker = ?) AND r.inbox_seq > r.seen_seq", which.owner)
        if which.unheard:
            add(UNHEARD)
        if which.posted is not None:
            add("EXISTS (SELECT 1 FROM hf_posts p WHERE p.run = r.number AND p.key = ?)", which.posted)
        if which.but:
            add("NOT r.name = ANY(?)", Texts(list(which.but)))
        if which.parent is not None:
            add("r.parent = ?", _id(which.parent))
        if which.prefix:
            add("r.run BETWEEN ? AND ?", *(Id.fromhex(which.prefix.ljust(32, digit)) for digit in "0f"))
        for label, value in which.labels.items():
            add("r.labels::jsonb ->> ? = ?", label, value)
        values.append(which.limit)
        sql = f"{SELECT} WHERE {' AND '.join(where)} ORDER BY r.run DESC LIMIT ${len(values)}"
        return [read_row(row) for row in await self.rows(sql, values)]

    async def blob(self, tenant: str, digest: str) -> bytes:
        """Return a blob's bytes, checked."""
        try:
            raw = bytes.fromhex(digest)
        except ValueError:
            raise NotFound(f"blob {digest}") from None
        rows = await self.rows("SELECT body FROM hf_blobs WHERE tenant = $1 AND digest = $2", [tenant, raw])
        if not rows:
            raise NotFound(f"blob {digest}")
        body: bytes = rows[0][0]
        if sha256(body).hexdigest() != digest:
            raise Damaged(run="", seq=None, what=f"blob {digest} does not have the bytes its digest says")
        return body


def _id(run: RunId) -> Id:
    return Id(id_bytes(run))


def _fit(rows: Sequence[Row]) -> list[StoredChunk]:
    chunks: list[StoredChunk] = []
    size = 0
    for row in rows:
        if chunks and size > limits.PAGE_BYTES:
            break
        chunks.append(StoredChunk(*row))
        size += len(row[7])
    return chunks
