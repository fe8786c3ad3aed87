"""A worker that plays generated programs, run as a program: its effects stand in a ledger outside, and it may die."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any, Final

import holdfast as hf
from tests.chaos import twins
from tests.simulation import acting

FLIGHT_SECONDS: Final = 0.3
"""How long an effect may be under way; here it has happened, or its process died before."""
_AT_ONCE: Final = 32


class Ledger:
    """A file that lines are appended to in one write each, which no death takes back or tears."""

    def __init__(self, path: str, who: str) -> None:
        self._path, self._who = path, who
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._lines: list[Any] = []
        self._read = 0

    def note(self, what: str, **facts: Any) -> None:
        """Append a line."""
        os.write(self._file, json.dumps({"what": what, "who": self._who, **facts}).encode() + b"\n")

    def lines(self) -> list[Any]:
        """Return every line so far, whoever wrote it."""
        with Path(self._path).open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        # What is being appended at this moment is no line yet.
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines

    def happened(self, place: str) -> bool:
        """Look up whether an effect has happened."""
        return any(line["what"] == "did" and line["place"] == place for line in self.lines())


class Mortal:
    """Notes effects, and dies around the nth of them, if it was told to."""

    def __init__(self, ledger: Ledger, dies_at: int, chance: Random) -> None:
        self._ledger, self._left, self._chance = ledger, dies_at, chance

    def note(self, what: str, **facts: Any) -> None:
        """Append a line; at the chosen effect the process ends before or after it."""
        if what == "did":
            self._left -= 1
            if self._left == 0 and self._chance.random() < 0.3:
                os.kill(os.getpid(), signal.SIGKILL)
        self._ledger.note(what, **facts)
        if what == "did" and self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


async def serve(store: str) -> None:
    """Work on a store until killed."""
    app = hf.App(*acting.CODES, version="1")
    async with hf.open(store, app, concurrency=_AT_ONCE):
        print("serving", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Begin as one JSON argument says."""
    given = json.loads(sys.argv[1])
    ledger = Ledger(given["ledger"], given["name"])
    mortal = Mortal(ledger, given["dies_at"], Random(given["name"]))
    acting.enter(acting.World(mortal.note, ledger.happened, FLIGHT_SECONDS))
    twins.apply(given["twin"], given["store"])
    asyncio.run(serve(given["store"]))


if __name__ == "__main__":
    main()
