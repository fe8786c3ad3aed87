"""Chunks of one lease: numbered over all its streams, gathered for tens of milliseconds, the first sent at once."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast.core.codec import encode
from holdfast.core.errors import StoreError
from holdfast.engine.payload import Secrets
from holdfast.store.protocol import Store
from holdfast.store.value import Lease, NewChunk

_GATHER_SECONDS: Final = 0.03


class Chunks:
    """The previews that one owner of a run sends."""

    def __init__(self, store: Store, lease: Lease, secrets: Secrets, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._lease, self.secrets, self.loop = store, lease, secrets, loop
        self._number = 0
        self._waiting: list[NewChunk] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Future[Any]] = set()

    def add(self, step: str, attempt: int, offset: int, body: bytes) -> None:
        """Queue a chunk; the first of its stream goes out at once."""
        self._number += 1
        self._waiting.append(NewChunk(self._number, step, attempt, offset, body))
        if offset == 0:
            self._send()
        elif self._timer is None:
            self._timer = self.loop.call_later(_GATHER_SECONDS, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            chunks, self._waiting = self._waiting, []
            try:
                sending = self._store.chunks(self._lease, chunks)
            except StoreError:
                return  # a lost preview is no failure: the entry tells the truth
            if isinstance(sending, asyncio.Future):
                self._sending.add(sending)
                sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Future[Any]") -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # neither is one that was lost later

    def forget(self, step: str) -> None:
        """Drop what waits for a step, whose entry comes now."""
        self._waiting = [chunk for chunk in self._waiting if chunk.step != step]


class Stream:
    """The chunks of one attempt at one step; it ends before the attempt's entry is written."""

    __slots__ = ("_attempt", "_chunks", "_home", "_offset", "_open", "_step")

    def __init__(self, chunks: Callable[[], Chunks], step: str, attempt: int) -> None:
        self._chunks, self._step, self._attempt = chunks, step, attempt
        self._home = threading.get_ident()
        self._offset = 0
        self._open = True

    def emit(self, value: Any) -> None:
        """Queue a chunk; may be called from any thread. After the attempt has ended it is dropped.

        Raises:
            InvalidValue: it is not data.
        """
        chunks = self._chunks()
        body = chunks.secrets.redact(encode(value, f"a chunk of step {self._step}"))
        if threading.get_ident() == self._home:
            self._add(chunks, body)  # on the loop already: no hop through it
        else:
            chunks.loop.call_soon_threadsafe(self._add, chunks, body)

    def _add(self, chunks: Chunks, body: bytes) -> None:
        if self._open:
            chunks.add(self._step, self._attempt, self._offset, body)
            self._offset += 1

    @property
    def is_open(self) -> bool:
        """True until the attempt's entry is written."""
        return self._open

    def close(self) -> bool:
        """End the stream; True if chunks of it must be dropped."""
        self._open = False
        if self._offset:
            self._chunks().forget(self._step)
        return self._offset > 0
