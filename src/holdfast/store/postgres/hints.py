"""Hints between processes: sent after a commit, many at a time; heard on one connection, however many watch."""

import asyncio
import contextlib
from typing import Any, Final

import psycopg

from holdfast.core.errors import StoreUnavailable
from holdfast.core.ids import RunId, id_bytes, id_text, new_worker_id
from holdfast.store.bell import Bells
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.connection import Async, connect, quoted

_GATHER_SECONDS: Final = 0.01
_MOST_IN_HINT: Final = 220
"""A hint is at most 8,000 bytes."""
_DUE: Final = "-"
_PING: Final = "."
_HEARD_SECONDS: Final = 5.0
_DEAF_SECONDS: Final = 0.25
"""How often a process that hears nothing, as behind a pooler, looks by itself."""
_RETRY_SECONDS: Final = 0.5
# A notification is written to the log like a commit; to wait until it is on disk would be to hold up the commits.
_NOTIFY: Final = b"SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)"


class Hints:
    """Tells other processes which runs moved, and rings this one's bells for what they tell.

    A hint may be lost, doubled or late: whoever waits looks by himself now and then. NOTIFY is never in a commit,
    where it would make every worker of the database wait for every other.
    """

    def __init__(self, address: Address, bells: Bells) -> None:
        self._address, self._bells = address, bells
        self._me = str(new_worker_id()).replace("-", "")[:12]
        self._channel = f"{address.schema}_hints"[:63]
        self._waiting: set[RunId | None] = set()
        self._pinging = False
        self._wake = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._hearing: asyncio.Task[None] | None = None
        self.heard = True
        """True while what is told is heard, by the word that this process sends to itself."""
        self._answered = False

    def tell(self, run: RunId | None) -> None:
        """Let other processes know that a run moved, or that something may be claimed."""
        self._waiting.add(run)
        self._speak()

    def _speak(self) -> None:
        self._wake.set()
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="holdfast hints")

    def listen(self) -> None:
        """Begin to hear; again is nothing."""
        if self._hearing is None:
            self._hearing = asyncio.get_running_loop().create_task(self._hear(), name="holdfast listen")

    async def close(self) -> None:
        """Stop both."""
        for task in (self._sending, self._hearing):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _send(self) -> None:
        connection: Async | None = None
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                words = self._words()
                try:
                    connection = connection or await connect(self._address)
                    for first in range(0, len(words), _MOST_IN_HINT):
                        told = " ".join([self._me, *words[first : first + _MOST_IN_HINT]])
                        await connection.execute(_NOTIFY, [self._channel, told])
                    # The first goes at once; what comes shortly after it goes together.
                    await asyncio.sleep(_GATHER_SECONDS)
                except (psycopg.Error, OSError, StoreUnavailable):
                    # They were hints: who waits for them looks by himself.
                    await _close(connection)
                    connection = None
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            await _close(connection)

    def _words(self) -> list[str]:
        """Return what is to be told, and begin anew."""
        words = [_DUE if run is None else id_bytes(run).hex() for run in self._waiting]
        if self._pinging:
            words.append(_PING)
        self._waiting, self._pinging = set(), False
        return words

    async def _hear(self) -> None:
        connection: Async | None = None
        try:
            while True:
                try:
                    connection = await connect(self._address, self._address.listen)
                    await connection.execute(f"LISTEN {quoted(self._channel)}".encode())
                    # What moved before this was heard by nobody.
                    self._bells.ring_all()
                    await self._follow(connection)
                except (psycopg.Error, OSError, StoreUnavailable):
                    self.heard = False
                    self._bells.ring_all()
                    await _close(connection)
                    connection = None
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            await _close(connection)

    async def _follow(self, connection: Async) -> None:
        while True:
            self._answered = False
            self._pinging = True
            self._speak()
            async for hint in connection.notifies(timeout=_HEARD_SECONDS if self.heard else _DEAF_SECONDS):
                self._ring(hint)
            self.heard = self._answered
            if not self.heard:
                self._bells.ring_all()
            await connection.execute(b"SELECT 1")

    def _ring(self, hint: Any) -> None:
        sender, *words = hint.payload.split(" ")
        if sender == self._me:
            self._answered = self._answered or _PING in words
            return
        for word in words:
            # A word of another version's, or another process's question to itself, is none.
            with contextlib.suppress(ValueError):
                self._bells.ring(None if word == _DUE else id_text(bytes.fromhex(word)))


async def _close(connection: Async | None) -> None:
    if connection is not None:
        with contextlib.suppress(psycopg.Error, OSError):
            await connection.close()
