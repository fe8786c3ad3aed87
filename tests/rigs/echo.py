"""A process and its child that answer what they are asked: run it as a program, with two sockets' numbers."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pair:
    """A parent and its child, as one can talk to them."""

    pid: int
    lines: Sequence[socket.socket]

    def answers(self, *, within: float) -> list[bool]:
        """Ask both, and say of each whether it answered in time."""
        for line in self.lines:
            line.settimeout(within)
            line.sendall(b"?")
        return [_answered(line) for line in self.lines]

    def hears(self, *, within: float) -> list[bool]:
        """Say of each whether an answer that was owed came in time."""
        for line in self.lines:
            line.settimeout(within)
        return [_answered(line) for line in self.lines]


def _answered(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b"!"
    except TimeoutError:
        return False


@contextmanager
def echoing() -> Iterator[Pair]:
    """Run a pair until the end of the block."""
    pairs = [socket.socketpair() for _ in range(2)]
    numbers = [theirs.fileno() for _, theirs in pairs]
    command = [sys.executable, str(Path(__file__)), *map(str, numbers)]
    process = subprocess.Popen(command, pass_fds=numbers)
    ours = [mine for mine, _ in pairs]
    for _, theirs in pairs:
        theirs.close()
    try:
        yield Pair(process.pid, ours)
    finally:
        for line in ours:
            line.close()
        process.wait(10)


def _answer(number: int, other: int) -> None:
    os.close(other)
    line = socket.socket(fileno=number)
    while line.recv(1):
        line.sendall(b"!")


if __name__ == "__main__":
    first, second = map(int, sys.argv[1:])
    if os.fork() == 0:
        _answer(second, first)
    else:
        _answer(first, second)
        os.wait()
