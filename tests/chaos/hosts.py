"""A server and workers on a store that are killed and come again."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.chaos.judge import Broken
from tests.chaos.kills import scratch

_SERVER: Final = 0
"""Its place; the workers have those after it."""


class Hosts:
    """A server and workers that are killed and come again; `nursery` forks them."""

    def __init__(self, nursery: "subprocess.Popen[str]", address: str, *, workers: int, twin: str) -> None:
        self._nursery, self._address, self._twin = nursery, address, twin
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self._all = [self._start(place) for place in range(1 + workers)]
        self.kills = 0
        self.server_kills = 0

    def __len__(self) -> int:
        return len(self._all)

    def _start(self, place: int) -> str:
        words = ["work", self._address] if place else ["serve", self._address, str(self.port), self._twin]
        number = self._ask(*words)
        if not number:
            raise Broken(f"a process ended before it was ready: {words}")
        return number

    def _ask(self, *words: str) -> str:
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(" ".join(words) + "\n")
        self._nursery.stdin.flush()
        return self._nursery.stdout.readline().strip()

    def kill(self, place: int) -> None:
        """Kill one, and start it again."""
        died_by = self._ask("kill", self._all[place])
        if died_by != str(signal.SIGKILL.value):
            raise Broken(f"{'a worker' if place else 'the server'} had ended by itself: {died_by}")
        self._all[place] = self._start(place)
        self.kills += 1
        self.server_kills += place == _SERVER


@contextmanager
def hosted(address: str, *, workers: int = 2, twin: str = "none") -> Iterator[Hosts]:
    """Give a server and workers on a store; none outlives this."""
    with (
        scratch() as folder,
        subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.watched"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            # Where workers on PostgreSQL keep their locks: they go with the trial.
            env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        ) as nursery,
    ):  # fmt: skip
        yield Hosts(nursery, address, workers=workers, twin=twin)
