"""The connections that read and claim: few while nobody waits for one, and with their plans kept where they can be."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

import psycopg
from psycopg_pool import AsyncConnectionPool

from holdfast.store.postgres.address import Address
from holdfast.store.postgres.connection import CONNECT_SECONDS, OPTIONS, Async, configure, translated

_FEW: Final = 2
"""As many are made at once; each is a process of the server's, which has to get to know every statement."""
_LONG_SECONDS: Final = 0.02
"""Whoever waits for so long gets one more."""
_IDLE_SECONDS: Final = 60.0
_ASKED_BEFORE: Final = 1
"""How often a statement is asked on a connection before its plan is worth keeping."""
_PID: Final = b"SELECT pg_backend_pid()"
# A plan that is kept must suit a table that has grown since. A scan of all that cannot be helped would be taken for so
# dear that it is worth compiling.
_PLANS: Final = b"""
    SELECT set_config('plan_cache_mode', 'force_generic_plan', false), set_config('enable_seqscan', 'off', false),
           set_config('jit', 'off', false)
"""
_NOT_OURS: Final = (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement)
"""The server lost a plan, or has another's: something stands between that does not show itself, so none are kept."""
# What the pool says of lost connections, callers are told by errors of ours; who wants it too sets up logging.
logging.getLogger("psycopg.pool").addHandler(logging.NullHandler())


class Pool:
    """A bounded pool; to stand behind one's own questions is not to be without an answer, so nobody's wait runs out."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: AsyncConnectionPool[Async] = AsyncConnectionPool(
            address.conninfo, min_size=0, max_size=address.pool, open=False, kwargs=OPTIONS, configure=self._configure,
            timeout=CONNECT_SECONDS, max_idle=_IDLE_SECONDS, name="holdfast",
        )  # fmt: skip
        self._opened = False
        self._keeps_plans = True
        self.most = min(_FEW, address.pool)
        """How many may be in use at once for now."""
        self._turns = asyncio.Semaphore(self.most)

    async def close(self) -> None:
        """Let go of every connection."""
        if self._opened:
            await self._pool.close()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Async]:
        """Give a connection."""
        if not self._opened:
            await self._pool.open()  # whoever comes meanwhile opens it too, which is nothing
            self._opened = True
        await self._turn()
        try:
            with translated(self._address):
                async with self._pool.connection() as connection:
                    if not self._keeps_plans:
                        connection.prepare_threshold = None
                    try:
                        yield connection
                    except psycopg.Error as error:
                        await self.hear(connection, error)
                        raise
        finally:
            self._turns.release()

    async def hear(self, connection: Async, error: BaseException) -> None:
        """Let go of a connection whose plans do not hold, so that whoever asks again gets another."""
        if isinstance(error, _NOT_OURS):
            self._keeps_plans = False
        if isinstance(error, (*_NOT_OURS, psycopg.errors.FeatureNotSupported)):
            await connection.close()

    async def _turn(self) -> None:
        waiting = None
        if self._turns.locked() and self.most < self._address.pool:
            waiting = asyncio.get_running_loop().call_later(_LONG_SECONDS, self._grow)
        try:
            await self._turns.acquire()
        finally:
            if waiting is not None:
                waiting.cancel()

    def _grow(self) -> None:
        if self.most < self._address.pool:
            self.most += 1
            self._turns.release()

    async def _configure(self, connection: Async) -> None:
        await configure(connection)
        if self._keeps_plans and await _is_direct(connection):
            await connection.execute(_PLANS)
            connection.prepare_threshold = _ASKED_BEFORE


async def _is_direct(connection: Async) -> bool:
    """Say whether the server's process that was spoken to first is the one that answers: no pooler stands between."""
    [(pid,)] = await (await connection.execute(_PID)).fetchall()
    return bool(pid == connection.info.backend_pid)
