"""Run numbers kept at hand, so that a run can be leased before it is created."""

import asyncio
from typing import Final

from holdfast.store.sqlite.writer import Do, Writer

_SPARE: Final = 256


class Spare:
    """The numbers that one process has taken and not used."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._numbers: list[int] = []
        self._refilling = False

    def take(self) -> int | None:
        """Return a number that no run has; None when there is none at hand."""
        if len(self._numbers) < _SPARE // 4:
            self.refill()
        return self._numbers.pop() if self._numbers else None

    def refill(self) -> None:
        """Take more numbers, in the background; one request at a time."""
        if not self._refilling:
            self._refilling = True
            self._writer.submit(Do(lambda db: db.take_numbers(_SPARE))).add_done_callback(self._refilled)

    def _refilled(self, taken: "asyncio.Future[list[int]]") -> None:
        self._refilling = False
        if taken.exception() is None:
            self._numbers = taken.result() + self._numbers
