"""An archive file is only ever added to, by one at a time, in whole runs."""

import os
from pathlib import Path

import pytest

from holdfast.client.archive import check_archive, export_run, read_archive
from holdfast.client.archiving import ArchiveFile
from holdfast.core.errors import Conflict, InvalidInput, StoreUnavailable
from holdfast.core.ids import RunId
from holdfast.store.memory import MemoryStore
from tests.unit.endings import LARGE, an_ended_run


async def record(store: MemoryStore, run: RunId) -> bytes:
    """Return a run's lines in one piece."""
    return b"".join([line async for line in export_run(store, run)])


async def some_records(count: int) -> list[bytes]:
    """Return the lines of several runs."""
    store = MemoryStore()
    return [await record(store, await an_ended_run(store, f"run {number}")) for number in range(count)]


def add(path: Path, *records: bytes) -> None:
    """Add runs to an archive and see them onto the disk."""
    file = ArchiveFile(str(path))
    try:
        for lines in records:
            for line in lines.splitlines(keepends=True):
                file.write(line)
            file.whole()
        file.sync()
    finally:
        file.close()


async def test_an_archive_grows_by_what_is_added(tmp_path: Path) -> None:
    """What was in it stays as it was, byte for byte, and nothing else is left beside it."""
    path = tmp_path / "runs.jsonl"
    one, two, three = await some_records(3)
    add(path, one)
    add(path, two, three)
    assert path.read_bytes() == one + two + three
    assert os.listdir(tmp_path) == ["runs.jsonl"]
    assert len(list(read_archive(str(path)))) == 3


async def test_a_new_archive_has_its_name_only_when_a_whole_run_is_on_disk(tmp_path: Path) -> None:
    """Nobody finds an archive under its name that holds less than it was said to."""
    path = tmp_path / "runs.jsonl"
    (lines,) = await some_records(1)
    file = ArchiveFile(str(path))
    file.write(lines)
    assert not path.exists()
    file.whole()
    assert not path.exists()
    file.sync()
    assert path.read_bytes() == lines
    file.close()


async def test_what_did_not_become_whole_is_taken_back(tmp_path: Path) -> None:
    """A run that turns out to be damaged leaves no line behind, and the next one follows the last whole one."""
    path = tmp_path / "runs.jsonl"
    one, two, three = await some_records(3)
    file = ArchiveFile(str(path))
    file.write(one)
    file.whole()
    file.write(two[:100])
    file.back()
    file.write(three)
    file.whole()
    file.write(two[:-10])
    file.sync()
    file.close()
    assert path.read_bytes() == one + three


def test_an_archive_to_which_nothing_is_added_is_not_made(tmp_path: Path) -> None:
    """A clean-up that finds nothing leaves no empty file."""
    add(tmp_path / "runs.jsonl")
    assert os.listdir(tmp_path) == []


async def test_what_a_dead_writer_left_is_moved_aside_and_the_rest_stays(tmp_path: Path) -> None:
    """However far it came with its last run: the archive is whole again, and not a byte is thrown away."""
    one, two, three = await some_records(3)
    for number, length in enumerate(range(1, len(two), 97)):
        path = tmp_path / str(number) / "runs.jsonl"
        path.parent.mkdir()
        path.write_bytes(one + two[:length])
        assert list(check_archive(str(path)))
        add(path, three)
        assert path.read_bytes() == one + three
        assert path.with_name("runs.jsonl.torn").read_bytes() == two[:length]


async def test_a_torn_run_of_many_blocks_is_moved_aside_too(tmp_path: Path) -> None:
    """Where the last whole run ends is found however much stands behind it."""
    store = MemoryStore()
    (one,) = await some_records(1)
    large = await record(store, await an_ended_run(store, input=b'"' + b"x" * 3_000_000 + b'"'))
    path = tmp_path / "runs.jsonl"
    path.write_bytes(one + large[:-50])
    add(path, one)
    assert path.read_bytes() == one + one
    assert path.with_name("runs.jsonl.torn").read_bytes() == large[:-50]


async def test_what_a_dead_writer_began_under_no_name_is_not_in_the_next_archive(tmp_path: Path) -> None:
    """Its runs were not deleted, since the archive never had its name."""
    path = tmp_path / "runs.jsonl"
    one, two = await some_records(2)
    path.with_name("runs.jsonl.partial").write_bytes(one + two[:50])
    add(path, two)
    assert path.read_bytes() == two
    assert os.listdir(tmp_path) == ["runs.jsonl"]


async def test_an_archive_that_still_has_its_first_name_too_is_not_emptied(tmp_path: Path) -> None:
    """A writer died while it took that name away, and the archive was moved since: both names mean its runs."""
    one, two = await some_records(2)
    path, moved = tmp_path / "runs.jsonl", tmp_path / "moved.jsonl"
    path.with_name("runs.jsonl.partial").write_bytes(one)
    os.link(path.with_name("runs.jsonl.partial"), moved)
    add(path, two)
    assert moved.read_bytes() == one
    assert path.read_bytes() == two
    os.link(path, path.with_name("runs.jsonl.partial"))
    add(path, one)
    assert path.read_bytes() == two + one
    assert sorted(os.listdir(tmp_path)) == ["moved.jsonl", "runs.jsonl"]


async def test_two_do_not_write_one_archive(tmp_path: Path) -> None:
    """Whoever comes second is refused at once, whether the archive has its name or not yet."""
    path = tmp_path / "runs.jsonl"
    (one,) = await some_records(1)
    first = ArchiveFile(str(path))
    with pytest.raises(Conflict, match="another process"):
        ArchiveFile(str(path))
    first.write(one)
    first.whole()
    first.sync()
    with pytest.raises(Conflict, match="another process"):
        ArchiveFile(str(path))
    first.close()
    add(path, one)


async def test_a_file_that_was_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """The name is taken only if nobody else has it."""
    path = tmp_path / "runs.jsonl"
    (one,) = await some_records(1)
    file = ArchiveFile(str(path))
    file.write(one)
    file.whole()
    path.write_text("precious")
    with pytest.raises(Conflict, match="meanwhile"):
        file.sync()
    file.close()
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["runs.jsonl"]


@pytest.mark.parametrize("text", ["precious", "{}\n", '{"type":"end"}\n', "\x1f\x8b"])
def test_a_file_that_is_no_archive_is_left_alone(tmp_path: Path, text: str) -> None:
    """A slip in the name costs nothing."""
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="not an archive"):
        ArchiveFile(str(path))
    assert path.read_text() == text


def test_what_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    """A folder, a folder that is not there, and what is no file at all."""
    for path in (tmp_path, tmp_path / "nowhere" / "runs.jsonl", Path("/dev/null")):
        with pytest.raises(InvalidInput):
            ArchiveFile(str(path))


def test_a_full_disk_is_told_and_leaves_no_name(tmp_path: Path) -> None:
    """An archive that cannot be written stops what waits for it."""
    path = tmp_path / "runs.jsonl"
    file = ArchiveFile(str(path))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._file)
    os.close(full)
    with pytest.raises(StoreUnavailable, match="No space left"):
        file.write(LARGE)
    file.close()
    assert not path.exists()
