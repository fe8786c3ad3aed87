"""Reads of several runs at one time, asked as one: a process that takes up thousands of runs asks for some of each."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from holdfast.core.errors import StoreRefused
from holdfast.core.ids import RunId, id_bytes
from holdfast.store.page import cut
from holdfast.store.postgres.arrays import Ids, Integers
from holdfast.store.postgres.connection import Async, Names
from holdfast.store.postgres.together import Together
from holdfast.store.rows import POSTS, ROW_COLUMNS, SELECT, read_row
from holdfast.store.value import Page, RunRow

Row = tuple[Any, ...]
Q = TypeVar("Q")
A = TypeVar("A")
Ask = Callable[[Callable[[Async], Awaitable[Any]]], Awaitable[Any]]
Inbox = tuple[Row | None, Sequence[int], Sequence[Row]]
"""A run's row; how many posts follow the one that was named, up to which, and how many are damaged; the posts."""

FIRST_ENTRIES: Final = 62
"""As many of a run's first entries are asked for with those of others; longer journals go on by themselves."""
_MOST_AT_ONCE: Final = 16
_ON_THEIR_WAY: Final = 2
BY_ID: Final = f"{SELECT} WHERE r.run = ANY($1)"
_ENTRIES: Final = """
    SELECT q.place, e.* FROM unnest($1::uuid[]) WITH ORDINALITY AS q(run, place)
      JOIN hf_runs r ON r.run = q.run, LATERAL (
        SELECT seq, kind, version, at, enc, body, checksum FROM hf_entries WHERE run = r.number ORDER BY seq LIMIT $2
    ) e ORDER BY q.place, e.seq
"""
_COUNTED: Final = """
    SELECT q.place, c.* FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS q(run, after, place)
      JOIN hf_runs r ON r.run = q.run, LATERAL (
        SELECT count(*), coalesce(max(seq), 0)::bigint,
               coalesce(sum((guard >> 32 IS DISTINCT FROM coalesce(consumed, 0))::int), 0)::bigint
          FROM hf_posts WHERE run = r.number AND seq > q.after
    ) c
"""
_WAITING: Final = f"""
    SELECT q.place, p.* FROM unnest($1::uuid[], $2::bigint[]) WITH ORDINALITY AS q(run, after, place)
      JOIN hf_runs r ON r.run = q.run, LATERAL (
        {POSTS} WHERE run = r.number AND seq > q.after AND consumed IS NULL
    ) p ORDER BY q.place, p.seq
"""


class Gathered(Generic[Q, A]):
    """Questions of one kind: the first goes at once, and while some are on their way those that follow gather."""

    def __init__(self, ask: Ask, several: Callable[[Sequence[Q], Async], Awaitable[Sequence[A]]]) -> None:
        self._ask, self._several = ask, several
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._asking: set[asyncio.Task[None]] = set()
        self._at_work = 0
        """How many tasks will look at what waits: one that has ended is among those asking for a moment longer."""

    async def __call__(self, question: Q) -> A:
        """Return the answer; whoever does not wait for it any more takes nobody else's away."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append((question, answer))
        if self._at_work < _ON_THEIR_WAY:
            self._at_work += 1
            task = loop.create_task(self._work(), name="holdfast reads")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        return await answer

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # whoever was woken by the same thing joins
                batch, self._waiting = self._waiting[:_MOST_AT_ONCE], self._waiting[_MOST_AT_ONCE:]
                batch = [item for item in batch if not item[1].done()]
                if batch:
                    await self._answer(batch)
        finally:
            self._at_work -= 1

    async def _answer(self, batch: Sequence[tuple[Q, "asyncio.Future[A]"]]) -> None:
        try:
            answers = await self._ask(lambda connection: self._several([question for question, _ in batch], connection))
        except StoreRefused as error:
            # What is damaged for one must not be so for its neighbours.
            if len(batch) > 1:
                for item in batch:
                    await self._answer([item])
                return
            self._fail(batch, error)
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), found in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(found)

    @staticmethod
    def _fail(batch: Sequence[tuple[Q, "asyncio.Future[A]"]], error: BaseException) -> None:
        for _, answer in batch:
            if not answer.done():
                answer.set_exception(error)


class Several:
    """Asks for several runs in one go, each as it stood at one moment."""

    def __init__(self, names: Names) -> None:
        row = (BY_ID, ROW_COLUMNS)
        self._by_id = names(BY_ID)
        self._beginnings = Together(names, row, (_ENTRIES, 8))
        self._inboxes = Together(names, row, (_COUNTED, 4), (_WAITING, 10))

    async def rows(self, runs: Sequence[RunId], connection: Async) -> Sequence[RunRow | None]:
        """Return where these runs stand, None for one that is not there."""
        cursor = await connection.execute(self._by_id, by_id(runs), binary=True)
        row_of = {row[1]: row for row in await cursor.fetchall()}
        found = (row_of.get(id_bytes(run)) for run in runs)
        return [read_row(row) if row is not None else None for row in found]

    async def beginnings(self, runs: Sequence[RunId], connection: Async) -> Sequence[Page | None]:
        """Return where these journals begin, None for a run that is not there."""
        rows, entries = await self._beginnings.ask(connection, [*by_id(runs), FIRST_ENTRIES + 1])
        row_of = {row[1]: row for row in rows}
        parts = _apart(len(runs), entries)
        pages: list[Page | None] = []
        for run, part in zip(runs, parts, strict=True):
            row = row_of.get(id_bytes(run))
            previous, page, more = cut(part, 0, FIRST_ENTRIES)
            pages.append(Page(read_row(row), page, [], previous, more) if row is not None else None)
        return pages

    async def inboxes(self, asked: Sequence[tuple[RunId, int]], connection: Async) -> Sequence[Inbox]:
        """Return what waits for these runs, each behind the post that is named with it."""
        values = [*by_id([run for run, _ in asked]), Integers([after for _, after in asked])]
        rows, counted, waiting = await self._inboxes.ask(connection, values)
        row_of = {row[1]: row for row in rows}
        counts = {place: numbers for place, *numbers in counted}
        parts = _apart(len(asked), waiting)
        return [
            (row_of.get(id_bytes(run)), counts.get(place, ()), parts[place - 1])
            for place, (run, _) in enumerate(asked, start=1)
        ]


def by_id(runs: Sequence[RunId]) -> list[Any]:
    """Return the values of `BY_ID`."""
    return [Ids([id_bytes(run) for run in runs])]


def _apart(count: int, rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each question, which are numbered from one, without their number."""
    parts: list[list[Row]] = [[] for _ in range(count)]
    for place, *values in rows:
        parts[place - 1].append(tuple(values))
    return parts
