"""A flipped bit in the write-ahead log, and the ends of logs that only look like one."""

import asyncio
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import apsw
import pytest

import holdfast as hf
from holdfast.core.errors import StoreRefused
from holdfast.store.sqlite.log import lost_commit
from tests.damage.test_raw_file import ask, tale

_PAGE: Final = 512
_HEADER: Final = 32
_FRAME: Final = 24 + _PAGE
_SEED: Final = 20261115


@dataclass(frozen=True)
class Image:
    """A database file and its log, as a crash leaves them."""

    database: bytes
    log: bytes

    def lost(self, folder: Path) -> int | None:
        """Open it with SQLite, and look behind the end that SQLite finds."""
        path = folder / "image.db"
        path.write_bytes(self.database)
        Path(f"{path}-wal").write_bytes(self.log)
        Path(f"{path}-shm").unlink(missing_ok=True)
        connection = apsw.Connection(str(path))
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
            known, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        finally:
            connection.close()
        return lost_commit(_reader(self.log), len(self.log), _reader(self.database), _PAGE, max(known, 0))

    def commits(self) -> list[int]:
        """Return the numbers of the present log's frames that end a commit."""
        salt = self.log[16:24]
        return [
            number
            for number, begin in enumerate(range(_HEADER, len(self.log) - _FRAME + 1, _FRAME), start=1)
            if self.log[begin + 8 : begin + 16] == salt and struct.unpack_from(">I", self.log, begin + 4)[0]
        ]

    def with_log(self, begin: int, new: bytes) -> "Image":
        """Return it with other bytes at a place in the log."""
        return Image(self.database, self.log[:begin] + new + self.log[begin + len(new) :])

    def flipped(self, place: int, bit: int) -> "Image":
        """Return it with one bit of the log flipped."""
        return self.with_log(place, bytes([self.log[place] ^ (1 << bit)]))


def _reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda begin, size: data[begin : begin + size].ljust(size, b"\0")


def _write(folder: Path, sizes: Sequence[int], *, checkpoint: int = 0) -> Iterator[Image]:
    """Commit as many rows as each size says, and yield the files after each commit."""
    path = folder / "made.db"
    connection = apsw.Connection(str(path))
    try:
        connection.execute(f"PRAGMA page_size={_PAGE}; PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL").fetchall()
        connection.execute(
            f"PRAGMA wal_autocheckpoint={checkpoint}; CREATE TABLE t (i INTEGER PRIMARY KEY, body)"
        ).fetchall()
        for size in sizes:
            with connection:
                for _ in range(size):
                    connection.execute("INSERT INTO t (body) VALUES (randomblob(300))")
            yield Image(path.read_bytes(), Path(f"{path}-wal").read_bytes())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A log of some forty commits that is in no part in the file yet."""
    return list(_write(tmp_path_factory.mktemp("log"), [1, 3] * 20))[-1]


@pytest.mark.parametrize("place", [0, 4, 9, 17, 24, 24 + _PAGE - 1], ids=["page", "size", "salt", "sum", "body", "end"])
def test_a_bit_flipped_in_any_frame_before_the_last_three_commits_shows(
    image: Image, tmp_path: Path, place: int
) -> None:
    """SQLite ends the log there without a word; what follows proves that commits were on disk."""
    commits = image.commits()
    assert len(commits) > 30
    for number in range(1, commits[-4] + 1):
        assert image.flipped(_HEADER + (number - 1) * _FRAME + place, 3).lost(tmp_path) is not None, number


@pytest.mark.parametrize("place", range(_HEADER))
def test_a_bit_flipped_in_the_header_shows(image: Image, tmp_path: Path, place: int) -> None:
    """A log without its header is an empty one to SQLite."""
    assert image.flipped(place, 5).lost(tmp_path) is not None


def test_an_end_torn_anywhere_in_the_last_commit_is_not_damage(image: Image, tmp_path: Path) -> None:
    """A crash may cut, empty or scramble whatever was not synced yet."""
    first, last = image.commits()[-2] + 1, image.commits()[-1]
    chance = random.Random(_SEED)
    for begin in range(_HEADER + (first - 1) * _FRAME, _HEADER + last * _FRAME, 37):
        rest = len(image.log) - begin
        assert Image(image.database, image.log[:begin]).lost(tmp_path) is None
        assert image.with_log(begin, bytes(rest)).lost(tmp_path) is None
        assert image.with_log(begin, chance.randbytes(min(64, rest))).lost(tmp_path) is None


def test_frames_of_a_former_log_are_not_lost_commits(tmp_path: Path) -> None:
    """A log that begins anew writes over the old one, whose rest stays behind its end."""
    wrapped = 0
    for image in _write(tmp_path, [1, 2, 5] * 40, checkpoint=20):
        assert image.lost(tmp_path) is None
        salts = {image.log[begin + 8 : begin + 16] for begin in range(_HEADER, len(image.log), _FRAME)}
        wrapped += len(salts) > 1
    assert wrapped > 20


def test_frames_of_a_torn_commit_that_others_were_written_over_are_not_lost_commits(
    image: Image, tmp_path: Path
) -> None:
    """After a crash SQLite goes on in the same log, with the same salt, over the torn frames."""
    torn = _HEADER + image.commits()[-2] * _FRAME
    path = tmp_path / "again.db"
    path.write_bytes(image.database)
    # The first frame of the last commit is gone, the others stand; two smaller commits go over them, the second torn.
    Path(f"{path}-wal").write_bytes(image.with_log(torn + 30, bytes(100)).log)
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA wal_autocheckpoint=0")
    for text in ("one", "two"):
        connection.execute("UPDATE t SET body = ? WHERE i = 1", (text,))
    after = Image(path.read_bytes(), Path(f"{path}-wal").read_bytes())
    connection.close()
    assert len(after.log) >= len(image.log)
    ends = [number for number in after.commits() if number > image.commits()[-2]]
    assert len(ends) == 3, "two new ends, and the old one behind them"
    assert after.lost(tmp_path) is None
    assert after.with_log(_HEADER + (ends[1] - 1) * _FRAME + 50, bytes(100)).lost(tmp_path) is None


def test_a_header_torn_when_the_log_began_anew_is_not_damage(tmp_path: Path) -> None:
    """All that the old frames hold is in the file by then; the new header was not synced yet."""
    path = tmp_path / "made.db"
    *_, image = _write(tmp_path, [1, 3, 1])
    path.write_bytes(image.database)
    Path(f"{path}-wal").write_bytes(image.log)
    connection = apsw.Connection(str(path))
    frames = len(image.log) // _FRAME
    assert connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall() == [(0, frames, frames)]
    before = Image(path.read_bytes(), Path(f"{path}-wal").read_bytes())
    connection.execute("INSERT INTO t (body) VALUES (1)")
    header = Path(f"{path}-wal").read_bytes()[:_HEADER]
    connection.close()
    assert header != before.log[:_HEADER]
    for torn in range(_HEADER + 1):
        assert before.with_log(0, header[:torn]).lost(tmp_path) is None


def test_a_store_whose_log_is_damaged_is_refused_and_not_changed(tmp_path: Path) -> None:
    """A known key would start a second run; the files stay as they are, for whoever can mend them."""
    path = asyncio.run(_left_open(tmp_path))
    log = Path(f"{path}-wal")
    raw = log.read_bytes()
    chance = random.Random(_SEED)
    kept = path.read_bytes()
    for _ in range(20):
        place = chance.randrange(_HEADER, len(raw) * 3 // 4)
        log.write_bytes(raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :])
        damaged = log.read_bytes()
        with pytest.raises(StoreRefused, match=r"-wal is damaged .* restore a backup"):
            asyncio.run(_open(path))
        assert (path.read_bytes(), log.read_bytes()) == (kept, damaged)
    log.write_bytes(raw)
    assert all(isinstance(answer, tuple) for key, answer in asyncio.run(ask(path)).items() if key != "verify")


async def _left_open(folder: Path) -> Path:
    """Copy a store while it is open, so that its runs are in the log alone."""
    path = folder / "copy.db"
    async with hf.open(f"sqlite:///{folder / 'open.db'}", hf.App(tale)) as runtime:
        for number in range(4):
            await runtime.run(tale, number, key=("tale", number))
        for suffix in ("", "-wal"):
            # By another process: a handle that this one closes would drop the store's locks.
            await anyio.run_process(["cp", f"{folder}/open.db{suffix}", f"{path}{suffix}"])
    assert os.path.getsize(f"{path}-wal") > 100_000
    return path


async def _open(path: Path) -> None:
    async with hf.open(f"sqlite:///{path}", hf.App(tale)):
        pass
