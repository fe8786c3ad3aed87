"""Chunks of one lease: numbered over all its streams, gathered for tens of milliseconds, the first sent at once."""

import asyncio
from typing import Any, Final

from holdfast.core.codec import encode
from holdfast.engine.payload import Secrets
from holdfast.store.protocol import Lease, NewChunk, Store

_GATHER_SECONDS: Final = 0.03


class Chunks:
    """The previews that one owner of a run sends."""

    def __init__(self, store: Store, lease: Lease, secrets: Secrets, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._lease, self._secrets, self._loop = store, lease, secrets, loop
        self._number = 0
        self._offsets: dict[tuple[str, int], int] = {}
        self._waiting: list[NewChunk] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Future[Any]] = set()

    def emit(self, step: str, attempt: int, value: Any) -> None:
        """Queue a chunk; may be called from any thread.

        Raises:
            InvalidValue: it is not data.
        """
        body = self._secrets.redact(encode(value, f"a chunk of step {step}"))
        self._loop.call_soon_threadsafe(self._add, step, attempt, body)

    def _add(self, step: str, attempt: int, body: bytes) -> None:
        self._number += 1
        offset = self._offsets.get((step, attempt), 0)
        self._offsets[step, attempt] = offset + 1
        self._waiting.append(NewChunk(self._number, step, attempt, offset, body))
        if offset == 0:
            self._send()
        elif self._timer is None:
            self._timer = self._loop.call_later(_GATHER_SECONDS, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            chunks, self._waiting = self._waiting, []
            sending = self._store.chunks(self._lease, chunks)
            if isinstance(sending, asyncio.Future):
                self._sending.add(sending)
                sending.add_done_callback(self._sent)

    def _sent(self, sending: "asyncio.Future[Any]") -> None:
        self._sending.discard(sending)
        if not sending.cancelled():
            sending.exception()  # a lost preview is no failure: the entry tells the truth

    def close(self, step: str) -> bool:
        """Forget what waits for `step`, whose entry comes now; True if any of its chunks must be dropped."""
        self._waiting = [chunk for chunk in self._waiting if chunk.step != step]
        return any(key[0] == step for key in self._offsets)
