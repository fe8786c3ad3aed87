"""A store on a disk that is full or read-only, as far as it can be tried without one."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.connection import prepare, translate
from holdfast.testing.contract.story import Pen, a_lease, journal_of, words
from tests.contract.test_sqlite_opening import use


def _answer(monkeypatch: pytest.MonkeyPatch, *, block_bytes: int = 4096, free: int = 1 << 20, flag: int = 0) -> None:
    """Let the machine say this of every file system."""
    found = os.statvfs_result((block_bytes, block_bytes, 1 << 20, free, free, 1000, 900, 900, flag, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: found)


@pytest.mark.parametrize("error", [apsw.IOError("disk I/O error"), apsw.CantOpenError("unable to open database file")])
def test_an_error_that_came_of_a_full_disk_says_so(monkeypatch: pytest.MonkeyPatch, error: apsw.Error) -> None:
    """SQLite calls it an I/O error when the index of its log finds no room; people must be told what to do."""
    _answer(monkeypatch, free=3)
    assert str(translate("/somewhere/a.db", error)) == "the disk that holds /somewhere/a.db is full"
    _answer(monkeypatch)
    assert "full" not in str(translate("/somewhere/a.db", error))


def test_an_error_that_came_of_a_read_only_disk_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A store that cannot be made there, and a log that cannot be read there, are told apart."""
    _answer(monkeypatch, flag=os.ST_RDONLY)
    error = apsw.CantOpenError("unable to open database file")
    assert str(translate("/somewhere/a.db", error)) == "/somewhere/a.db cannot be written: it is read-only"
    (tmp_path / "a.db-wal").write_bytes(b"a log")
    assert "a.db-wal cannot be read there without" in str(translate(str(tmp_path / "a.db"), error))


async def test_a_full_disk_of_small_blocks_is_refused_before_it_kills(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where blocks are smaller than pages, SQLite's mapped index would end the process by a SIGBUS."""
    _answer(monkeypatch, block_bytes=1024, free=9)
    with pytest.raises(StoreUnavailable, match=r"holds .*a\.db is full"):
        await SqliteStore.open(str(tmp_path / "a.db"))
    _answer(monkeypatch, block_bytes=1024)
    await use(tmp_path / "a.db")


async def test_a_closed_store_on_a_read_only_disk_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No log is there and none can be made: it is read without, and a write is refused in words."""
    path = tmp_path / "a ?%b.db"
    store = await SqliteStore.open(str(path))
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next("word"))
    await store.close()
    _answer(monkeypatch, flag=os.ST_RDONLY)
    frozen = await SqliteStore.open(str(path))
    assert sorted(os.listdir(tmp_path)) == [path.name]
    assert words(await journal_of(frozen, pen.lease.row.run)) == ["word"]
    assert await frozen.check() == []
    with pytest.raises(StoreUnavailable, match="cannot be written: it is read-only"):
        await frozen.commit(pen.lease, pen.next("more"))
    await frozen.close()


def _copy(path: str, to: str) -> None:
    """Copy the files of an open store as they are, in a process of its own: this one must not open them."""
    for suffix in ("", "-wal", "-shm"):
        subprocess.run(["cp", path + suffix, to + suffix], check=True)


class _ReadOnly(apsw.VFS):
    """Opens every file to read only, as a read-only file system does."""

    def __init__(self) -> None:
        super().__init__("read-only", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        asked = flags[0] & ~(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE) | apsw.SQLITE_OPEN_READONLY
        own = [asked, 0]
        file = apsw.VFSFile("unix", name, own)
        flags[1] = own[1]
        return file


@pytest.fixture
def read_only_files() -> Iterator[None]:
    """Every file is opened to read only."""
    usual = apsw.vfs_names()[0]
    vfs = _ReadOnly()
    yield
    vfs.unregister()
    assert apsw.vfs_names()[0] == usual


async def test_the_store_of_a_killed_process_on_a_read_only_disk_can_be_opened(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Its log and the index of that are there, so SQLite can read; more is not asked of it."""
    path, left = str(tmp_path / "a.db"), str(tmp_path / "left.db")
    store = await SqliteStore.open(path)
    _copy(path, left)
    await store.close()
    request.getfixturevalue("read_only_files")
    connection, known, _ = prepare(left, lambda: 1)
    assert connection.readonly("main")
    assert known == store.id
    # Taking the log into the file is tried at the end, in vain; only this VFS tells.
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close()
