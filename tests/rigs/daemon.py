"""A program that runs beside the tests as an ordinary user, is heard as it speaks, and dies with them."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from holdfast.testing import ptrace

LOOPBACK: Final = "127.0.0.1"
ORDINARY_USER: Final = "nobody"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_LEAST_MEMORY_BYTES: Final = 1 << 30


class Failed(RuntimeError):
    """A program did not start or did not stop; what it said is why."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def own_folder(prefix: str, *, inside: Path | None = None) -> Path:
    """Make a folder that `as_ordinary_user` may write in, in memory if much fits there and no other place is given.

    Tests kill processes, never the machine, so they need no disk.
    """
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > _LEAST_MEMORY_BYTES
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=inside or (memory if roomy else None)))
    if os.geteuid() == 0:
        shutil.chown(folder, ORDINARY_USER)
    return folder


def as_ordinary_user() -> dict[str, Any]:
    """Return what makes a subprocess of root one of an ordinary user's; some programs refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": ORDINARY_USER, "group": pwd.getpwnam(ORDINARY_USER).pw_gid, "extra_groups": []}


class Daemon:
    """A program that can be started again and again; it dies with the thread that started it."""

    def __init__(self, *, folder: Path, ready: str) -> None:
        self._folder, self._ready = folder, ready
        self._process: subprocess.Popen[str] | None = None
        self.log = Log()

    @property
    def running(self) -> bool:
        """True while its first process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its first process, the parent of all others."""
        assert self._process is not None
        return self._process.pid

    def start(self, command: Sequence[str | os.PathLike[str]]) -> None:
        """Return when it says that it is ready.

        Raises:
            Failed: it never said so.
        """
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=self._folder,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
            start_new_session=True,
            preexec_fn=_die_with_parent,
            **as_ordinary_user(),
        )
        assert self._process.stdout is not None
        self.log.follow(self._process.stdout)
        if not self.log.wait_for(self._ready, _START_SECONDS):
            self.stop(signal.SIGKILL)
            raise Failed(f"{command[0]} did not start\n{self.log.latest}")

    def stop(self, by: signal.Signals) -> None:
        """Send a signal and wait for the end.

        Raises:
            Failed: it did not end and was killed.
        """
        if self._process is None:
            return
        self._process.send_signal(by)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise Failed(f"it did not stop\n{self.log.latest}") from error
        finally:
            self.log.close()
            self._process = None


class Log:
    """What a program says, read as it comes; the end of its output ends every wait for a word of it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._since = 0
        self._over = False
        self._more = threading.Condition()
        self._reading: threading.Thread | None = None

    @property
    def text(self) -> str:
        """All that was ever said."""
        return "".join(self._lines)

    @property
    def latest(self) -> str:
        """What was said since the last start."""
        return "".join(self._lines[self._since :])

    def follow(self, stream: IO[str]) -> None:
        """Read a fresh start's words until they end."""
        self._since, self._over = len(self._lines), False
        self._reading = threading.Thread(target=self._read, args=(stream,), name="log", daemon=True)
        self._reading.start()

    def close(self) -> None:
        """Wait for the last words of a program that has ended."""
        if self._reading is not None:
            self._reading.join(_STOP_SECONDS)

    def wait_for(self, words: str, seconds: float) -> bool:
        """Return whether these words were said since the last start, as soon as they are."""
        with self._more:
            self._more.wait_for(lambda: self._over or words in self.latest, seconds)
            return words in self.latest

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._more:
                    self._lines.append(line)
                    self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()


def _die_with_parent() -> None:
    ptrace.die_with_parent()
