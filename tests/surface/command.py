"""Running `holdfast`: in this process, quickly, or as a process that can be killed."""

import json
import os
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import click
import pytest

from holdfast.cli import commands, main

SECONDS = 30.0
_HERE = click.Context(commands)
COMMANDS = {name: command for name in commands.list_commands(_HERE) if (command := commands.get_command(_HERE, name))}
"""All of them, by name and in their order."""


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """The one JSON value on stdout."""
        return json.loads(self.out)

    @property
    def values(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The error that a command with --json told last on stderr."""
        return json.loads(self.err.splitlines()[-1])["error"]


@contextmanager
def bounded() -> Iterator[None]:
    """Fail what waits for ever."""

    def stop(*_: object) -> None:
        raise AssertionError(f"it was not over after {SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Shell:
    """Runs commands in this process; what they import is forgotten afterwards."""

    def __init__(self, folder: Path, capture: Any) -> None:
        self.folder, self._capture = folder, capture

    def __call__(self, *words: object) -> Ran:
        self._capture.readouterr()
        before, path = set(sys.modules), list(sys.path)
        try:
            with bounded(), pytest.raises(SystemExit) as ended:
                main([str(word) for word in words])
        finally:
            sys.path[:] = path
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", "")).startswith(str(self.folder)):
                    del sys.modules[name]
        assert isinstance(ended.value.code, int)
        said = self._capture.readouterr()
        return Ran(ended.value.code, said.out, said.err)

    def copied(self, line: str, **instead: str) -> Ran:
        """Run a command line as a person would who copied it from the screen."""
        words = shlex.split(line)
        assert words[0] == "holdfast"
        return self(*(instead.get(word, word) for word in words[1:]))

    def ledger(self) -> list[str]:
        """Return what the program really did, in order."""
        path = self.folder / "ledger.txt"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [line.partition(" ")[2] for line in lines]

    def start(self, *words: str, environment: dict[str, str] | None = None) -> "Started":
        """Start a process that can be killed."""
        return self._start([sys.executable, "-m", "holdfast", *words], environment)

    def start_python(self, program: str) -> "Started":
        """Start a program of the folder."""
        return self._start([sys.executable, program], None)

    def _start(self, command: list[str], environment: dict[str, str] | None) -> "Started":
        process = subprocess.Popen(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})}, preexec_fn=_hear_interrupts,
        )  # fmt: skip
        return Started(process)

    def run_python(self, program: str) -> "subprocess.CompletedProcess[str]":
        """Run a program of the folder to its end."""
        command = [sys.executable, program]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS, check=False)


def _hear_interrupts() -> None:
    """Undo what a background job inherits: an ignored Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Started:
    """A `holdfast` of its own process."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self._said = {"out": b"", "err": b""}

    def wait_for(self, text: str, *, on: str = "err") -> None:
        """Return when it has said `text`; fail if it ends or is silent for too long."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        stream = self.process.stderr if on == "err" else self.process.stdout
        give_up = time.monotonic() + SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            while text.encode() not in self._said[on]:
                assert selector.select(max(0.0, give_up - time.monotonic())), f"it never said {text!r}: {self._said}"
                read = os.read(stream.fileno(), 65536)
                assert read, f"it ended without saying {text!r}: {self._said}"
                self._said[on] += read

    def read_line(self) -> str:
        """Return the first line that it prints."""
        self.wait_for("\n", on="out")
        return self._said["out"].partition(b"\n")[0].decode()

    def end(self, number: int | None = None) -> Ran:
        """Send a signal, if any, and return how it ended."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS)
        said = self._said["out"] + out, self._said["err"] + err
        return Ran(self.process.returncode, said[0].decode(), said[1].decode())


def damage(store: Path, run: str, seq: int) -> None:
    """Alter one byte of an entry behind the store's back."""
    database = apsw.Connection(str(store))
    where = "WHERE seq = ? AND run = (SELECT number FROM hf_runs WHERE run = ?)"
    place = (seq, bytes.fromhex(run.replace("-", "")))
    [(body,)] = database.execute(f"SELECT body FROM hf_entries {where}", place).fetchall()
    assert isinstance(body, bytes)
    altered = bytes([*body[:-2], body[-2] ^ 1, body[-1]])
    database.execute(f"UPDATE hf_entries SET body = ? {where}", (altered, *place))
    assert database.changes() == 1
    database.close()


def run_ids(lines: Sequence[Any]) -> list[str]:
    """Return the ids of listed runs."""
    return [line["id"] for line in lines]
