"""Opening a SQLite store: durability settings, migrations, and the only place that knows apsw's errors."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

import apsw
import uuid_utils

from holdfast.core.errors import StoreError, StoreRefused, StoreUnavailable
from holdfast.core.ids import is_id
from holdfast.store import schema
from holdfast.store.sqlite import disk, guard
from holdfast.store.sqlite.fetch import Row, fetch
from holdfast.store.sqlite.log import lost_commit

BUSY_MS: Final = 30_000
_DATABASE, _LOG = 0, 1
_OPEN_SECONDS: Final = 30.0
_PAGE_BYTES: Final = 1024
"""A message of a kilobyte leaves no room for a fourth on a page of four, and every empty table takes a page."""
_BYTES_BETWEEN_CHECKPOINTS: Final = 16_000 * 1024
_OURS: Final = r"""
    SELECT type, name, tbl_name, sql FROM sqlite_master
     WHERE name LIKE 'hf\_%' ESCAPE '\' OR name LIKE 'sqlite\_autoindex\_hf\_%' ESCAPE '\'
"""
_CATCH_UP: Final = """
    UPDATE hf_store SET next_run = 1 + max(
        (SELECT coalesce(max(number), 0) FROM hf_runs), (SELECT coalesce(max(run), 0) FROM hf_entries))
     WHERE next_run <= (SELECT max(number) FROM hf_runs) OR next_run <= (SELECT max(run) FROM hf_entries)
"""


@contextmanager
def translated(path: str) -> Iterator[None]:
    """Turn apsw's errors into ours."""
    try:
        yield
    except apsw.Error as error:
        raise translate(path, error) from error


def translate(path: str, error: apsw.Error) -> StoreError:
    """Return our error for one of apsw's."""
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreRefused(f"{path} is damaged as a database: {error}")
        case apsw.FullError():
            return StoreUnavailable(disk.full(path))
        case apsw.ReadOnlyError():
            return StoreUnavailable(disk.read_only(path))
        case apsw.CantOpenError():
            cannot = f"{path} cannot be opened: check that the folder exists and is yours to write"
            return StoreUnavailable(disk.complaint(path) or cannot)
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailable(f"{path} stayed locked by another process")
        case apsw.SQLError() | apsw.MismatchError() | apsw.ConstraintError():
            return StoreRefused(f"{path} does not have the tables and rows of a Holdfast store: {error}")
        case apsw.IOError():
            return StoreUnavailable(disk.complaint(path) or f"reading or writing {path} failed: {error}")
        case _:
            return StoreUnavailable(f"{path}: {type(error).__name__}: {error}")


def is_busy(error: apsw.Error) -> bool:
    """Say whether another process merely holds the lock."""
    return isinstance(error, apsw.BusyError | apsw.LockedError)


def connect(path: str, *, create: bool = False, synchronous: str = "FULL") -> apsw.Connection:
    """Return a connection with our settings; the file must exist unless `create`."""
    connection = disk.open_file(path, create=create)
    try:
        connection.set_busy_timeout(BUSY_MS)
        if not connection.readonly("main"):
            # Of a new file only: a page keeps the size that it was made with.
            connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            _switch_to_wal(connection)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
        connection.execute("PRAGMA cell_size_check=ON")
        connection.execute("PRAGMA trusted_schema=OFF")
        page_bytes: Any = connection.execute("PRAGMA page_size").fetchall()[0][0]
        connection.execute(f"PRAGMA wal_autocheckpoint={_BYTES_BETWEEN_CHECKPOINTS // page_bytes}")
    except BaseException:
        connection.close()
        raise
    return connection


def _switch_to_wal(connection: apsw.Connection) -> None:
    # Switching to WAL answers BUSY at once whatever the timeout, so this loops.
    give_up = time.monotonic() + _OPEN_SECONDS
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchall()[0][0]
        except apsw.Error as error:
            if not is_busy(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise StoreRefused(f"{connection.filename} cannot use write-ahead logging here (it answered {mode!r})")
        return


def prepare(path: str, now: Callable[[], int], *, synchronous: str = "FULL") -> tuple[apsw.Connection, str, int]:
    """Open or create the store at `path`; return the connection, the store's id and its epoch.

    Raises:
        StoreRefused: the file is something else, newer, or corrupt.
        StoreUnavailable: it cannot be opened or stays locked.
    """
    with translated(path):
        fresh = not os.path.exists(path)
        if not fresh and os.path.isdir(path):
            raise StoreRefused(f"{path} is a folder; give the name of a file in it")
        if not fresh:
            _check_header(path)
        connection = connect(path, create=fresh, synchronous=synchronous)
        try:
            _migrate(connection, path, now)
            _check_tables(connection, path)
            rows = fetch(connection, "SELECT id, epoch, next_run FROM hf_store")
            if len(rows) != 1 or not is_id(rows[0][0]) or not all(_is_count(number) for number in rows[0][1:]):
                raise StoreRefused(f"{path} has no readable identity row")
            # A counter that damage has set back would give the next runs the numbers of others.
            if not connection.readonly("main"):
                connection.execute(_CATCH_UP)
        except BaseException:
            connection.close()
            raise
        return connection, rows[0][0], rows[0][1]


def _is_count(number: object) -> bool:
    return isinstance(number, int) and 1 <= number < 1 << 62


def _check_tables(connection: apsw.Connection, path: str) -> None:
    """Compare the tables with what the migrations make: SQLite believes a schema in which a bit was flipped."""
    if _tables(connection) != _made_by_migrations():
        raise StoreRefused(f"{path} does not have the tables that this version of Holdfast makes")


@cache
def _made_by_migrations() -> frozenset[Row]:
    connection = apsw.Connection(":memory:")
    try:
        for step in schema.migrations("sqlite"):
            connection.execute(step)
        return _tables(connection)
    finally:
        connection.close()


def _tables(connection: apsw.Connection) -> frozenset[Row]:
    return frozenset(fetch(connection, _OURS))


def _check_header(path: str) -> None:
    """Look before switching the journal mode: somebody else's database must not be changed by a wrong address."""
    connection = _look_only(path)
    try:
        connection.set_busy_timeout(BUSY_MS)
        # Tables first: a store that another process makes between the two looks then shows its id.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchall()[0][0]
        application = connection.execute("PRAGMA application_id").fetchall()[0][0]
        if application != schema.APPLICATION_ID and (tables or application):
            raise StoreRefused(f"{path} is a SQLite database, but not a Holdfast store")
        _check_log(connection, path)
    finally:
        connection.close()


def _look_only(path: str) -> apsw.Connection:
    has_log = os.path.exists(f"{path}-wal") and os.path.getsize(f"{path}-wal") > 0
    connection = disk.open_file(path)
    if has_log:
        # Closing it must not take a log into the file, and remove it, that may be damaged.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _check_log(connection: apsw.Connection, path: str) -> None:
    """Refuse a log in which commits are lost that were acknowledged."""
    log = f"{path}-wal"
    # Who has the file open in this process has looked already, and no other handle may be closed beside his.
    if not os.path.exists(log) or os.path.getsize(log) == 0 or guard.is_protected(path):
        return
    if connection.readonly("main"):
        return  # what SQLite knows of a log can only be asked where it may write
    try:
        connection.execute("BEGIN IMMEDIATE")
    except (apsw.BusyError, apsw.ReadOnlyError, apsw.CantOpenError):
        return  # a writer is at work, who has looked; or nobody can write
    other = _look_only(path)
    try:
        page_bytes: Any = other.execute("PRAGMA page_size").fetchall()[0][0]
        other.execute("SELECT count(*) FROM sqlite_master").fetchall()
        known, _ = other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        # Through SQLite's own handles: closing another one of the same file would drop its locks.
        database, frames = (partial(_bytes_of, other, which) for which in (_DATABASE, _LOG))
        lost = lost_commit(frames, os.path.getsize(log), database, page_bytes, max(known, 0))
    finally:
        other.close()
        connection.execute("ROLLBACK")
    if lost is not None:
        raise StoreRefused(
            f"the log {log} is damaged at a commit that later ones follow (frame {lost}): "
            "what was acknowledged since cannot be read. Nothing was changed; keep both files, and restore a backup"
        )


def _bytes_of(connection: apsw.Connection, which: int, begin: int, size: int) -> bytes:
    return connection.read("main", which, begin, size)[1]


def _migrate(connection: apsw.Connection, path: str, now: Callable[[], int]) -> None:
    steps = schema.migrations("sqlite")
    if _version(connection, path, len(steps)) == len(steps):
        return
    # Each migration is one transaction with its version: a kill in the middle leaves the version before it.
    while True:
        connection.execute("BEGIN IMMEDIATE")
        try:
            version = _version(connection, path, len(steps))
            if version == len(steps):
                connection.execute("COMMIT")
                return
            if version == 0 and _tables(connection):
                raise StoreRefused(f"{path} has tables of Holdfast's, but its header says that it has none")
            connection.execute(steps[version])
            if version == 0:
                connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
                row = (str(uuid_utils.uuid7()), now())
                connection.execute(
                    "INSERT INTO hf_store (one, id, epoch, created_at, next_run) VALUES (1, ?, 1, ?, 1)", row
                )
            connection.execute(f"PRAGMA user_version={version + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _version(connection: apsw.Connection, path: str, newest: int) -> int:
    version = connection.execute("PRAGMA user_version").fetchall()[0][0]
    if not isinstance(version, int) or version < 0:
        raise StoreRefused(f"{path} says that it has schema version {version}, which there never was")
    if version > newest:
        raise StoreRefused(
            f"{path} has schema version {version}, but this Holdfast knows {newest}: upgrade Holdfast, "
            "or use the store with the version that wrote it"
        )
    return version
