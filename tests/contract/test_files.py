"""The key-value store in plain files: the old value or the new one, and nothing else means none."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.core.errors import Damaged, InvalidInput, StoreUnavailable
from holdfast.store.files import FileStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "kept" / "here"


def the_file(folder: Path) -> Path:
    """Return the only file of a store."""
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("value", [b"", b"v", b"\x00\xff" * 100_000, b"holdfast-file-1\n"])
def test_what_was_put_is_got(folder: Path, value: bytes) -> None:
    """Read after write, by this object and by another one."""
    store = FileStore(folder)
    store.put("k", value)
    assert store.get("k") == value
    assert FileStore(folder).get("k") == value


def test_the_last_put_counts(folder: Path) -> None:
    """A value is replaced as a whole, and leaves one file."""
    store = FileStore(folder)
    for value in (b"a longer value", b"short", b""):
        store.put("k", value)
        assert store.get("k") == value
    assert len(list(folder.iterdir())) == 1


def test_not_found_is_an_answer(folder: Path) -> None:
    """None is said for a key without a value, and for nothing else."""
    store = FileStore(folder)
    assert store.get("k") is None
    store.put("other", b"v")
    assert store.get("k") is None


def test_a_deleted_key_is_not_found(folder: Path) -> None:
    """Deleting says whether there was something."""
    store = FileStore(folder)
    store.put("k", b"v")
    assert store.delete("k") is True
    assert store.delete("k") is False
    assert store.get("k") is None
    assert list(folder.iterdir()) == []


def test_keys_are_compared_byte_by_byte(folder: Path) -> None:
    """Keys that differ in case, in form or by a separator are different keys on every file system."""
    store = FileStore(folder)
    keys = ["a", "A", "a/b", "a:b", "a.b", "../a", "/a", "é", "e\u0301", " a", "a ", "x" * 512]
    for n, key in enumerate(keys):
        store.put(key, b"%d" % n)
    assert [store.get(key) for key in keys] == [b"%d" % n for n in range(len(keys))]


def test_no_key_shows_in_a_name_or_leads_out_of_the_folder(folder: Path) -> None:
    """Names are hashes: a key cannot be a path, and a listing tells nothing."""
    store = FileStore(folder)
    for key in ("../../escaped", "/etc/passwd", "conversation-of-ann"):
        store.put(key, b"v")
    assert all(len(path.stem) == 64 and set(path.stem) <= set("0123456789abcdef") for path in folder.iterdir())
    assert [path.name for path in folder.parent.iterdir()] == ["here"]


@pytest.mark.parametrize("key", ["", "x" * 513, "é" * 257, "a\x00b", "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(folder: Path, key: str) -> None:
    """Never replaced, cut or hashed into another key's place."""
    store = FileStore(folder)
    for verb in (lambda: store.get(key), lambda: store.put(key, b"v"), lambda: store.delete(key)):
        with pytest.raises(InvalidInput):
            verb()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut to nothing", "cut", "a bit", "longer", "another program's", "one byte"])
def test_a_damaged_file_is_never_taken_for_no_value(folder: Path, damage: str) -> None:
    """An unreadable value is an error; whoever starts afresh must have been told so."""
    store = FileStore(folder)
    store.put("k", b"the value")
    path = the_file(folder)
    raw = bytearray(path.read_bytes())
    match damage:
        case "cut to nothing":
            raw.clear()
        case "cut":
            del raw[-1]
        case "a bit":
            raw[-3] ^= 1
        case "longer":
            raw += b"!"
        case "another program's":
            raw[:] = b"{}"
        case "one byte":
            raw[:] = b"h"
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        store.get("k")
    store.put("k", b"mended")
    assert store.get("k") == b"mended"


def test_a_file_under_another_keys_name_is_damage(folder: Path) -> None:
    """A file that was copied or renamed does not answer for a key that is not its own."""
    store = FileStore(folder)
    store.put("a", b"of a")
    path = the_file(folder)
    store.put("b", b"of b")
    (other,) = (file for file in folder.iterdir() if file != path)
    other.write_bytes(path.read_bytes())
    with pytest.raises(Damaged, match="another key"):
        store.get("b")


def test_what_cannot_be_read_is_unavailable_and_not_none(folder: Path) -> None:
    """Not found, unreadable and corrupt are three answers."""
    store = FileStore(folder)
    store.put("k", b"v")
    path = the_file(folder)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable):
        store.get("k")
    with pytest.raises(StoreUnavailable):
        store.put("k", b"w")
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    """The error names the path."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match="file"):
        FileStore(tmp_path / "file" / "below")


def test_a_kill_in_the_middle_of_a_put_leaves_the_old_value_and_no_litter(folder: Path) -> None:
    """Whatever a dead writer left is swept by the next opening; the value is the last one that was put."""
    store = FileStore(folder)
    store.put("k", b"old")
    program = (
        "import os, sys\n"
        "from holdfast.store.files import FileStore\n"
        "from pathlib import Path\n"
        "Path.replace = lambda *names: os.kill(os.getpid(), 9)\n"
        "FileStore(sys.argv[1]).put('k', b'new')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(folder)], timeout=60, check=False)
    assert done.returncode == -9
    assert len(list(folder.iterdir())) == 2
    assert FileStore(folder).get("k") == b"old"
    assert len(list(folder.iterdir())) == 1


def test_a_leftover_that_bears_this_processs_number_is_swept(folder: Path) -> None:
    """In a container every process is number 1: a dead one's file is told by its lock, not by its number."""
    store = FileStore(folder)
    store.put("k", b"v")
    left = the_file(folder).with_suffix(f".{os.getpid()}.part")
    left.write_bytes(b"half")
    FileStore(folder)
    assert not left.exists()


def test_a_put_under_way_is_not_swept(folder: Path) -> None:
    """Opening the folder beside a writer takes nothing from under it, in the same process or another."""
    store = FileStore(folder)
    store.put("k", b"v")
    under_way = the_file(folder).with_suffix(".1.part")
    with under_way.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        FileStore(folder)
        assert under_way.exists()
    FileStore(folder)
    assert not under_way.exists()


def test_threads_that_put_one_key_at_once_never_mix(folder: Path) -> None:
    """Atomic: a reader sees one of the values that were put, whole, at every moment."""
    store = FileStore(folder)
    values = [bytes([n]) * 50_000 for n in range(4)]
    store.put("k", values[0])
    failures: list[BaseException] = []
    done = threading.Event()

    def write(value: bytes) -> None:
        try:
            for _ in range(25):
                store.put("k", value)
        except BaseException as error:
            failures.append(error)

    def read() -> None:
        try:
            while not done.is_set():
                assert FileStore(folder).get("k") in values
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(value,)) for value in values]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join(timeout=60)
    done.set()
    reader.join(timeout=60)
    assert failures == []
    assert len(list(folder.iterdir())) == 1
