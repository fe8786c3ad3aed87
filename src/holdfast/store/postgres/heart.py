"""A worker's pulse from a thread of its own, on a connection of its own."""

import contextlib
from typing import Final

import psycopg

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import WorkerId
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.connection import Names, Plain, connect_plain, translate
from holdfast.store.postgres.opening import MICROS

BEAT: Final = f"UPDATE hf_workers SET pulse = pulse + 1, beat_at = coalesce($2::bigint, {MICROS}) WHERE worker = $1"


class PostgresHeart:
    """Beats for one worker; the connection is made when it is needed, and again when it was lost."""

    def __init__(self, address: Address, names: Names, worker: WorkerId) -> None:
        self._address, self._statement, self._worker = address, names(BEAT), worker
        self._connection: Plain | None = None

    def beat(self) -> bool:
        """Beat and wait until it is known; False when the worker was declared dead."""
        try:
            if self._connection is None:
                self._connection = connect_plain(self._address)
            return self._connection.execute(self._statement, [self._worker, None]).rowcount == 1
        except (psycopg.Error, OSError) as error:
            self.close()
            raise StoreUnavailable(str(translate(self._address, error))) from error

    def close(self) -> None:
        """Let go of the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()
