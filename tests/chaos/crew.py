"""Workers in processes of their own, as whoever plays a trial holds them: told to halt, stopped, frozen, killed."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tests.rigs.stopping import Freezer, family, stopped

ROOT: Final = Path(__file__).resolve().parents[2]
SECONDS: Final = 30.0
"""How long anything may take before it counts as never."""

Line = Mapping[str, Any]
Wrap = Callable[[Sequence[str]], Sequence[str]]
"""Turns a command into one that runs elsewhere: on another host, in a container."""


class Silent(Exception):
    """A worker did not say in time what it had to say; what it said instead is told."""


class Hand:
    """One worker's process."""

    def __init__(
        self, name: str, process: "subprocess.Popen[bytes]", line: socket.socket, heard: threading.Condition, log: Path
    ) -> None:
        self.name, self.process, self._line, self._heard, self._log = name, process, line, heard, log
        self.said: list[str] = []
        """All that it told since it was last asked to forget."""
        self.worker = ""
        """The id under which it works, as far as it told."""
        threading.Thread(target=self._listen, name=f"hand {name}", daemon=True).start()

    def _listen(self) -> None:
        with self._line.makefile() as lines:
            for words in lines:
                with self._heard:
                    self.said.append(words.strip())
                    if words.startswith(("serving", "returned")):
                        self.worker = words.split()[1]
                    self._heard.notify_all()

    def order(self, words: str) -> None:
        """Tell it something, heard once it goes on if it stands still."""
        self._line.sendall(f"{words}\n".encode())

    def halt(self, place: str, nth: int = 1) -> None:
        """Let it halt at its nth arrival at a place from now on; return when it knows."""
        with self._heard:
            self.said.clear()
        self.order(f"halt {place} {nth}")
        self.wait_for("halt done")

    def wait_for(self, words: str, seconds: float = SECONDS) -> None:
        """Return when it has said words that begin so.

        Raises:
            Silent: it never did.
        """
        with self._heard:
            if not self._heard.wait_for(lambda: self.has_said(words), seconds):
                raise Silent(f"{self.name} never said {words!r} but {self.said}")

    def has_said(self, words: str) -> bool:
        """Say whether it said words that begin so."""
        return any(said.startswith(words) for said in self.said)

    @contextmanager
    def standing_still(self, *, frozen: bool = False) -> Iterator[None]:
        """Stop it for a while: by a signal, or with all that it started by the freezer, which only root has."""
        if not frozen or os.geteuid() != 0:
            with stopped(self.process.pid):
                yield
            return
        with Freezer() as freezer:
            for member in family(self.process.pid):
                freezer.add(member)
            freezer.freeze()
            yield

    def log(self) -> str:
        """Return what it wrote to its standard streams."""
        return self._log.read_text("utf-8", "replace")

    def kill(self) -> None:
        """End it as nothing can be refused."""
        self.process.kill()
        self.process.wait(SECONDS)
        self._line.close()


@dataclass(frozen=True, slots=True)
class Berth:
    """Where workers work: the store, the ledger beside it, and how long a lease lasts there."""

    store: str
    ledger: Path
    lease_seconds: float
    twin: str = ""
    think_seconds: float = 0.0
    """How long a tale takes before its effect."""


class Crew:
    """The workers of a trial; none outlives it. Usable in `with`."""

    def __init__(self, berth: Berth) -> None:
        self.berth = berth
        self.hands: list[Hand] = []
        self.heard = threading.Condition()
        self._lines: list[Line] = []
        self._read = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for hand in self.hands:
            hand.kill()

    def launch(
        self, *names: str, wrap: Wrap = list, environment: Mapping[str, str] | None = None, store: str | None = None
    ) -> list[Hand]:
        """Start workers at one moment, and return them when all of them serve; `environment` adds to ours."""
        started = [self._start(name, wrap, environment, store or self.berth.store) for name in names]
        for hand in started:
            hand.wait_for("serving")
        return started

    def replace(self, hand: Hand, name: str) -> None:
        """Kill a worker and start another in its place, which serves a while later."""
        self.hands.remove(hand)
        hand.kill()
        self._start(name, list, None, self.berth.store)

    def _start(self, name: str, wrap: Wrap, environment: Mapping[str, str] | None, store: str) -> Hand:
        ours, theirs = socket.socketpair()
        # Where workers on PostgreSQL keep their locks: they go with the trial.
        around = {**os.environ, "XDG_RUNTIME_DIR": str(self.berth.ledger.parent), **(environment or {})}
        given = {
            "store": store, "ledger": str(self.berth.ledger), "lease_seconds": self.berth.lease_seconds,
            "think_seconds": self.berth.think_seconds, "twin": self.berth.twin, "name": name, "line": theirs.fileno(),
        }  # fmt: skip
        command = wrap([sys.executable, "-m", "tests.chaos.hand", json.dumps(given)])
        path = self.berth.ledger.with_suffix(f".{name}.log")
        with theirs, path.open("ab") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=around,
            )  # fmt: skip
        self.hands.append(Hand(name, process, ours, self.heard, path))
        return self.hands[-1]

    def first_at(self, place: str, seconds: float = SECONDS) -> Hand:
        """Return the worker that has halted at a place, when one has.

        Raises:
            Silent: none did.
        """
        with self.heard:
            self.heard.wait_for(lambda: any(hand.has_said(f"at {place}") for hand in self.hands), seconds)
            for hand in self.hands:
                if hand.has_said(f"at {place}"):
                    return hand
        raise Silent(f"nobody came to {place}: {[(hand.name, hand.said) for hand in self.hands]}")

    def ledger(self) -> Sequence[Line]:
        """Return what was done and acknowledged so far."""
        if self.berth.ledger.exists():
            with self.berth.ledger.open("rb") as file:
                file.seek(self._read)
                fresh = file.read()
            # What is being appended at this moment is no line yet.
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read += len(whole)
            self._lines += [json.loads(line) for line in whole.splitlines()]
        return self._lines

    def lines_of(self, number: int) -> list[Line]:
        """Return the ledger's lines about one run."""
        return [line for line in self.ledger() if line["number"] == number]
