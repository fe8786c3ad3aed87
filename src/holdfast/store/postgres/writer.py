"""Group commit on PostgreSQL: what different runs write at one time is one statement, acknowledged after it."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import psycopg

from holdfast.core.errors import HoldfastError, StoreClosed, StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.store import point
from holdfast.store.answer import Answer, Failure
from holdfast.store.bell import Bells
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.arrays import Integers
from holdfast.store.postgres.connection import (
    Async,
    Names,
    connect,
    is_lost,
    is_worth_another_try,
    transaction,
    translate,
)
from holdfast.store.postgres.limiting import KINDS as TURNS
from holdfast.store.postgres.ops import KINDS, LOCK, TAKEN, CommitOp, CreateOp

_MOST_IN_BATCH: Final = 512
_PATIENCE_SECONDS: Final = 30.0
"""How long a write waits for a server that does not answer, before its caller is told."""
_FIRST_DELAY_SECONDS: Final = 0.02
_LONGEST_DELAY_SECONDS: Final = 1.0

Item = tuple[Any, Answer]
Alone = Callable[[Async, Any], Awaitable[Any]]
"""Does an op that makes more true than a row and its entries, inside an open transaction; returns its outcome."""


class Refused(Exception):
    """Ends a transaction in which nothing may become true, with the outcome that its caller is told."""

    def __init__(self, outcome: Any) -> None:
        super().__init__()
        self.outcome = outcome


class Lane:
    """A connection that writes, with the ops that wait for it; one run's ops are always in one lane, in order.

    While a batch is on its way the next one gathers. A batch is one statement, so whatever breaks, it happened as a
    whole or not at all; if nobody knows which, the rows are looked at again under their locks before anything else.
    """

    def __init__(self, address: Address, names: Names, bells: Bells, alone: Alone, told: Callable[[Any], None]) -> None:
        self._address, self._names, self._bells, self._alone, self._told = address, names, bells, alone, told
        self._queue: list[Item] = []
        self._batch: list[Item] = []
        self._wake = asyncio.Event()
        self._connection: Async | None = None
        self._closing = False
        self._task = asyncio.get_running_loop().create_task(self._work(), name="holdfast writer")

    def adopt(self, connection: Async) -> None:
        """Write over a connection that is there already."""
        self._connection = connection

    def submit(self, op: Any) -> Answer:
        """Queue `op` and return its outcome to be."""
        if self._closing:
            raise StoreClosed(self._address)
        answer = Answer()
        self._queue.append((op, answer))
        self._wake.set()
        return answer

    async def passed(self, run: RunId) -> None:
        """Wait until what is queued for a run has been written."""
        for op, answer in [*self._batch, *self._queue]:
            if op.run == run and not answer.done():
                await asyncio.wait([answer])

    async def close(self) -> None:
        """Write what is queued, then let go of the connection."""
        self._closing = True
        self._wake.set()
        await asyncio.shield(self._task)
        await self._drop()

    async def _work(self) -> None:
        while True:
            if not self._queue:
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
                # Whoever was woken by the same thing as the first gets a chance to join it.
                await asyncio.sleep(0)
                continue
            batch = self._batch = self._next_batch()
            try:
                outcomes = await self._outcomes(batch)
            except BaseException as error:
                # Nothing may end this task: every run of the process would wait for it.
                outcomes = [Failure(error)] * len(batch)
            self._settle(batch, outcomes)
            if len(batch) > 1:
                # Those who were just answered mostly write again at once: let them join the next batch.
                await asyncio.sleep(0)
                await asyncio.sleep(0)

    def _next_batch(self) -> list[Item]:
        """Take the ops that may go together: one for each run, or its creation and the commit behind it."""
        if self._queue[0][0].alone:
            return [self._queue.pop(0)]
        batch: list[Item] = []
        left: list[Item] = []
        taken: dict[RunId, Any] = {}
        for item in self._queue:
            op = item[0]
            before = taken.get(op.run)
            joins = before is None or (before.__class__ is CreateOp and op.__class__ is CommitOp)
            if joins and not op.alone and len(batch) < _MOST_IN_BATCH:
                batch.append(item)
            else:
                left.append(item)
            taken[op.run] = op if joins and not op.alone else item
        self._queue = left
        return batch

    def _settle(self, batch: Sequence[Item], outcomes: Sequence[Any]) -> None:
        for (op, answer), outcome in zip(batch, outcomes, strict=True):
            if outcome.__class__ is not Failure:
                op.ring(self._bells, outcome)
                self._told(op)
            answer.settle(outcome)

    async def _outcomes(self, batch: Sequence[Item]) -> Sequence[Any]:
        """Write a batch, however often the server goes away meanwhile, and return what became of each op."""
        give_up = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
        outcomes: dict[int, Any] = {}
        delay, uncertain = _FIRST_DELAY_SECONDS, False
        while True:
            places = [place for place in range(len(batch)) if place not in outcomes]
            waiting = [batch[place][0] for place in places]
            try:
                connection = await self._open()
                found = await self._taken(connection, waiting) if uncertain else {}
                rest = [place for place in range(len(waiting)) if place not in found]
                if rest:
                    written = await self._write(connection, [waiting[place] for place in rest])
                    found |= dict(zip(rest, written, strict=True))
                    if uncertain:
                        # What was lost may have come true after all, between the look and the second try.
                        found |= await self._taken(connection, waiting)
                outcomes |= {places[place]: outcome for place, outcome in found.items()}
                return [outcomes[place] for place in range(len(batch))]
            except (psycopg.Error, OSError, StoreUnavailable) as error:
                uncertain = True
                for op in waiting:
                    op.again = True
                await self._drop()
                if asyncio.get_running_loop().time() + delay > give_up:
                    failed = error if isinstance(error, StoreUnavailable) else translate(self._address, error)
                    return [outcomes.get(place, Failure(failed)) for place in range(len(batch))]
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    async def _write(self, connection: Async, ops: Sequence[Any]) -> Sequence[Any]:
        """Write ops, all at once if they can be; an error that is not the connection's is the outcome of its op."""
        try:
            point.reached("before")
            if len(ops) == 1 and ops[0].alone:
                outcomes: Sequence[Any] = [await self._transacted(connection, ops[0])]
            else:
                outcomes = await self._together(connection, ops)
            point.reached("after")
            return outcomes
        except (psycopg.Error, OSError) as error:
            if is_lost(connection, error) or (len(ops) == 1 and is_worth_another_try(connection, error)):
                raise
            if len(ops) == 1:
                return [Failure(translate(self._address, error))]
        except HoldfastError as error:
            if len(ops) == 1:
                return [Failure(error)]
        # One op spoilt the batch: each is tried by itself, so that its neighbours lose nothing.
        return [outcome for op in ops for outcome in await self._write(connection, [op])]

    async def _together(self, connection: Async, ops: Sequence[Any]) -> Sequence[Any]:
        calls = [(kind, *kinds) for kind, *kinds in (*KINDS, *TURNS) if any(op.__class__ is kind for op in ops)]
        outcomes: dict[int, Any] = {}
        async with contextlib.AsyncExitStack() as several:
            if len(calls) > 1:
                await several.enter_async_context(transaction(connection))
            for kind, call, read in calls:
                places = [place for place, op in enumerate(ops) if op.__class__ is kind]
                mine = [ops[place] for place in places]
                statement, values = call(mine)
                rows = await (await connection.execute(self._names(statement), values, binary=True)).fetchall()
                outcomes |= dict(zip(places, read(mine, rows), strict=True))
        return [outcomes[place] for place in range(len(ops))]

    async def _transacted(self, connection: Async, op: Any) -> Any:
        try:
            async with transaction(connection):
                return await self._alone(connection, op)
        except Refused as refused:
            return refused.outcome

    async def _taken(self, connection: Async, ops: Sequence[Any]) -> dict[int, Any]:
        """After an unknown outcome: find the commits that took. Everything else finds out by being tried again.

        Under the rows' locks, so that a statement of the lost connection which still runs has ended; one that has not
        begun finds the head moved, or the same head as before, and is the very one that is tried again.
        """
        commits = {op.values[0]: place for place, op in enumerate(ops) if isinstance(op, CommitOp)}
        if not commits:
            return {}
        numbers, seqs = Integers(list(commits)), Integers([ops[place].values[4] for place in commits.values()])
        async with transaction(connection):
            await connection.execute(self._names(LOCK), [numbers])
            rows = await (await connection.execute(self._names(TAKEN), [numbers, seqs], binary=True)).fetchall()
        return {commits[row[0]]: ops[commits[row[0]]].committed() for row in rows if ops[commits[row[0]]].took(row)}

    async def _open(self) -> Async:
        if self._connection is None:
            self._connection = await connect(self._address)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()
