"""Hearing that another process wrote to the file, and ringing for what that may have changed."""

import asyncio
from collections.abc import Container, Mapping
from typing import Final

from holdfast.core.errors import StoreError
from holdfast.core.ids import RunId
from holdfast.store.bell import Bell, Bells
from holdfast.store.sqlite.fetch import Row
from holdfast.store.sqlite.reading import Reader
from holdfast.store.sqlite.slots import Slots
from holdfast.store.sqlite.writer import Writer

_POLL_SECONDS: Final = 0.01


class Listener:
    """The ears of one process; they listen while anybody does. `own` are the runs that it drives itself."""

    def __init__(self, writer: Writer, reader: Reader, slots: Slots, bells: Bells, own: Container[RunId]) -> None:
        self._writer, self._reader, self._slots, self._bells, self._own = writer, reader, slots, bells, own
        self._stood: Mapping[RunId, Row] = {}
        self._poll: asyncio.Task[None] | None = None
        self._closed = False

    def watch(self, run: RunId | None, *, entries: bool) -> Bell:
        """Return a new bell, and listen."""
        if self._poll is None or self._poll.done():
            self._poll = asyncio.get_running_loop().create_task(self._listen(), name="holdfast listen")
        return self._bells.watch(run, entries=entries)

    async def _listen(self) -> None:
        """Ring when another process wrote to the file; ends when nobody listens."""
        while not self._closed:
            await asyncio.sleep(_POLL_SECONDS)
            if not self._bells:
                return
            self._writer.look()

    def others_wrote(self) -> None:
        """Ring after a commit of another process: for the runs that are waited for, only if they stand elsewhere."""
        self._bells.ring_but_waiting()
        # What this process drives moves by its own commits, which ring by themselves.
        waiting = [run for run in self._bells.waiting() if run not in self._own]
        stood = self._stood
        try:
            self._stood = self._reader.stands(waiting)
            self._slots.ring()
        except StoreError:
            self._bells.ring_all()
            return
        for run, stands in self._stood.items():
            if stood.get(run) != stands:
                self._bells.ring_moved(run)

    def close(self) -> None:
        """Listen no more."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
