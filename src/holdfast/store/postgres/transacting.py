"""Steps in a transaction: the user's function in a thread, on a connection of its own, with the entry to come."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import psycopg

from holdfast.core.errors import InvalidInput, StoreUnavailable
from holdfast.store import point
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.arrays import Integers
from holdfast.store.postgres.connection import Names, Plain, connect_plain, is_lost, translate
from holdfast.store.postgres.ops import LOCK, TAKEN, CommitOp
from holdfast.store.postgres.rich import Rich
from holdfast.store.postgres.transaction import ARRIVED, AWAIT, PostgresTransaction
from holdfast.store.postgres.writer import Refused
from holdfast.store.protocol import Transaction
from holdfast.store.value import Commit, Lease, Outcome

_AT_ONCE: Final = 4
_LIMITS: Final = b"SET LOCAL idle_in_transaction_session_timeout = %d"

Made = Callable[[Commit], CommitOp]


class Transactions:
    """Runs such steps, a few at a time; a connection is kept for the next one unless it failed."""

    def __init__(self, address: Address, names: Names, rich: Rich) -> None:
        self._address, self._names, self._rich = address, names, rich
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="holdfast transaction")
        self._idle: list[Plain] = []

    async def run(
        self, lease: Lease, work: Callable[[Transaction], Commit], made: Made, *, deadline_seconds: float
    ) -> tuple[CommitOp | None, Outcome]:
        """Call `work` and commit what it returns; nothing is written if it raises or is refused."""
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._threads, self._run, lease, work, made, deadline_seconds))

    async def close(self) -> None:
        """Wait for what runs, and let go of the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        for connection in self._idle:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def _run(
        self, lease: Lease, work: Callable[[Transaction], Commit], made: Made, seconds: float
    ) -> tuple[CommitOp | None, Outcome]:
        connection = self._idle.pop() if self._idle else connect_plain(self._address)
        op: list[CommitOp] = []
        try:
            outcome = self._transact(connection, lease, work, made, seconds, op)
            self._idle.append(connection)
            return op[0], outcome
        except TimeoutError:
            # The step's own, although it is an OSError.
            self._idle.append(connection)
            raise
        except (psycopg.Error, OSError) as error:
            lost = is_lost(connection, error)
            self._discard(connection)
            if lost and op and self._took(op[0]):
                return op[0], op[0].committed()
            raise translate(self._address, error) from error
        except Refused as refused:
            self._idle.append(connection)
            return (op[0] if op else None), refused.outcome
        except BaseException:
            if connection.closed or connection.broken:
                self._discard(connection)
            else:
                self._idle.append(connection)
            raise

    def _transact(
        self, connection: Plain, lease: Lease, work: Callable[[Transaction], Commit], made: Made, seconds: float,
        op: list[CommitOp],
    ) -> Any:  # fmt: skip
        with connection.transaction():
            # Whoever dies inside must not hold anybody up for longer than he might have taken.
            connection.execute(_LIMITS % int(1000 * seconds + 5000))
            awaited = [lease.row.number, self._next(connection, lease)]
            connection.execute(self._names(AWAIT), awaited)
            transaction = PostgresTransaction(connection, seconds)
            try:
                change = work(transaction)
            finally:
                transaction.close()
            if transaction.late:
                raise TimeoutError(f"the transaction step took longer than {seconds:g} s")
            if connection.info.transaction_status != psycopg.pq.TransactionStatus.INTRANS:
                raise InvalidInput("a statement of the step failed, and with it the whole transaction: it is not done")
            connection.execute(b"RESET statement_timeout")
            op.append(made(change))
            point.reached("before")
            outcome = self._rich.write(connection, op[0])
            connection.execute(self._names(ARRIVED), awaited)
        point.reached("after")
        return outcome

    def _next(self, connection: Plain, lease: Lease) -> int:
        statement = self._names("SELECT last_seq + 1 FROM hf_runs WHERE number = $1")
        found = connection.execute(statement, [lease.row.number]).fetchone()
        return int(found[0]) if found else 1

    def _took(self, op: CommitOp) -> bool:
        """After an unknown outcome: look whether the entry is there, once the lost transaction has ended.

        Raises:
            StoreUnavailable: the server does not come back, so nobody knows.
        """
        numbers = Integers([op.values[0]])
        try:
            with connect_plain(self._address) as connection, connection.transaction():
                connection.execute(self._names(LOCK), [numbers])
                rows = connection.execute(
                    self._names(TAKEN), [numbers, Integers([op.values[4]])], binary=True
                ).fetchall()
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailable(str(translate(self._address, error))) from error
        return bool(rows) and op.took(rows[0])

    @staticmethod
    def _discard(connection: Plain) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
