"""The world outside of a program under trial: a ledger that no death takes back, and a clock that only it moves."""

import itertools
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from holdfast.store import point

FLIGHT_MICROS: Final = 2_000_000
"""How long after its sender's death a request that was under way still acts."""
_FIRST_MICROS: Final = 1_767_225_600_000_000
_START_MICROS: Final = 1000

Line = Mapping[str, Any]


def read_ledger(path: str | os.PathLike[str]) -> list[Line]:
    """Return every line of a ledger; one that a kill cut short would not be a line, and raises."""
    file = Path(path)
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


class World:
    """What a program meets outside of its store, seen by one process of it.

    Every line is one append to a file, so it outlives the process and a power loss; a request whose sender died before
    it was performed is performed two seconds later, whoever looks. Time stands still but for a microsecond a look,
    and `wait_until` moves it: the first process of a program and its last see one and the same time pass.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = read_ledger(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        latest = max((line["t"] for line in self._lines), default=_FIRST_MICROS)
        self._ticks = itertools.count(latest + _START_MICROS)
        self._flight = threading.RLock()
        self.note("start")

    def close(self) -> None:
        """Let go of the ledger."""
        os.close(self._file)

    def now(self) -> int:
        """Return the time in µs; no two looks see the same."""
        return next(self._ticks)

    def note(self, what: str, **facts: Any) -> None:
        """Append one line."""
        line = {"t": self.now(), "what": what, **facts}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._lines.append(line)

    def wait_until(self, at: int) -> None:
        """Let time pass; not while a request is under way."""
        with self._flight:
            if at > self.now():
                self._ticks = itertools.count(at)
            self.note("time")

    @contextmanager
    def performing(self, effect: str, order: str, **facts: Any) -> Iterator[None]:
        """Send a request and wait for its answer; the process may die before, between and after."""
        with self._flight:
            point.reached(f"{effect} about to be sent")
            self.note("request", effect=effect, order=order, **facts)
            point.reached(f"{effect} sent")
            yield
            self.note("performed", effect=effect, order=order)
            point.reached(f"{effect} performed")

    def happened(self, effect: str, order: str) -> bool:
        """Look, as anyone can from outside, whether an effect has happened by now."""
        acts_at = landing(self._lines, effect, order)
        return acts_at is not None and acts_at <= self.now()


def landing(lines: Sequence[Line], effect: str, order: str) -> int | None:
    """Return when a request acted or will act; None if none was sent."""
    sent = False
    for line in lines:
        mine = line.get("effect") == effect and line.get("order") == order
        if mine and line["what"] == "performed":
            return int(line["t"])
        sent = sent or (mine and line["what"] == "request")
        if sent and line["what"] == "start":
            return int(line["t"]) + FLIGHT_MICROS
    return None
