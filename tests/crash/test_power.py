"""Power loss: a recording gives the images that a disk could hold, and a program that syncs too little is caught."""

import mmap
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from holdfast.testing.disk import SECTOR_BYTES, Metadata, Unmodelled
from holdfast.testing.inspection import ImageFailed, inspect_images
from holdfast.testing.killer import Killer
from holdfast.testing.power import Acks, Image, Recording, image_named, images, read_tree, record

ROWS = 24
Pair = tuple[Killer, Killer]
BOTH = pytest.mark.parametrize("metadata", list(Metadata))


@pytest.fixture(scope="module")
def killers() -> Iterator[Pair]:
    """The servers on which images are checked, two at a time."""
    with Killer(preload=[__name__]) as one, Killer(preload=[__name__]) as other:
        yield one, other


@pytest.fixture
def killer(killers: Pair) -> Killer:
    """The server whose trials are recorded."""
    return killers[0]


Recorded = Callable[..., Recording]


@pytest.fixture
def recorded(killer: Killer, tmp_path: Path) -> Recorded:
    """Return a function that records a program below, called with its directory and its acks' path."""
    directory = tmp_path / "recorded"
    directory.mkdir()

    def run(program: Callable[..., None], *args: object) -> Recording:
        acks = tmp_path / "acks"
        return record(killer, program, str(directory), str(acks), *args, directory=directory, acks=acks)

    return run


def every(recording: Recording, metadata: Metadata = Metadata.STRICT) -> list[Image]:
    """Return as many images as chance finds in a small recording."""
    return list(images(recording, seed=1, limit=400, metadata=metadata))


def after(recording: Recording, ack: str, metadata: Metadata = Metadata.STRICT) -> list[Image]:
    """Return the images that a power loss after an ack could leave."""
    return [image for image in every(recording, metadata) if ack in image.acks]


def commit_rows(directory: str, ledger: str, synchronous: str) -> None:
    """Insert rows one commit at a time, with checkpoints in between, and acknowledge each."""
    acks = Acks(ledger)
    database = apsw.Connection(f"{directory}/db")
    database.pragma("journal_mode", "wal")
    database.pragma("synchronous", synchronous)
    database.pragma("wal_autocheckpoint", 12)
    database.execute("CREATE TABLE rows (n INTEGER PRIMARY KEY, body BLOB)")
    for row in range(ROWS):
        database.execute("INSERT INTO rows VALUES (?, ?)", (row, bytes(700)))
        acks.ack(str(row))
    database.close()


def rows_are_there(directory: str, acks: tuple[str, ...]) -> None:
    """Raise unless the database is sound and holds every acknowledged row."""
    database = apsw.Connection(f"{directory}/db")
    assert database.pragma("integrity_check") == "ok"
    made = database.table_exists(None, "rows")
    rows = [row for (row,) in database.execute("SELECT n FROM rows ORDER BY n")] if made else []
    assert rows == list(range(len(rows)))
    assert len(rows) >= len(acks), f"acknowledged {len(acks)} rows, found {len(rows)}"


@BOTH
def test_a_database_that_syncs_each_commit_loses_no_acknowledged_row(
    recorded: Recorded, killers: Pair, metadata: Metadata
) -> None:
    """SQLite at FULL keeps its word in every image, so the images ask for nothing that no program could give."""
    recording = recorded(commit_rows, "full")
    assert len(recording.acks) == ROWS
    shown = images(recording, seed=7, limit=250, metadata=metadata)
    inspection = inspect_images(shown, rows_are_there, killers=killers)
    inspection.passed()
    assert (inspection.images, inspection.disks) == (250, 250)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("synchronous", ["normal", "off"])
def test_its_twin_that_syncs_too_little_is_caught_by_the_same_check(
    recorded: Recorded, killers: Pair, synchronous: str, seed: int
) -> None:
    """A check that cannot fail proves nothing: whatever the seed, a few images are enough to catch the loss."""
    shown = images(recorded(commit_rows, synchronous), seed=seed, limit=30)
    inspection = inspect_images(shown, rows_are_there, killers=killers)
    assert len(inspection.refusals) >= 10
    with pytest.raises(ImageFailed, match=r"acknowledged \d+ rows, found \d+"):
        inspection.passed()


def overwrite(directory: str, ledger: str) -> None:
    """Write three sectors and sync them, then write over them, over half a sector more, and do not sync."""
    acks = Acks(ledger)
    file = os.open(f"{directory}/file", os.O_CREAT | os.O_RDWR)
    os.pwrite(file, b"a" * 3 * SECTOR_BYTES, 0)
    os.fsync(file)
    top = os.open(directory, os.O_RDONLY)
    os.fsync(top)
    acks.ack("synced")
    os.pwrite(file, b"b" * (3 * SECTOR_BYTES + 100), 0)


def test_an_unsynced_write_is_torn_at_sectors_and_nowhere_else(recorded: Recorded) -> None:
    """Each sector is old or new; what lies past the old end is new, zero or not there."""
    found = set()
    for image in after(recorded(overwrite), "synced"):
        content = image.tree["file"]
        assert content is not None
        parts = [content[at : at + SECTOR_BYTES] for at in range(0, len(content), SECTOR_BYTES)]
        assert all(part in (b"a" * SECTOR_BYTES, b"b" * SECTOR_BYTES) for part in parts[:3])
        assert b"".join(parts[3:]) in (b"", b"b" * 100, bytes(100))
        found.add("".join(chr(part[0]) if part[0] else "0" for part in parts))
    assert {"aaa", "bbbb", "aba", "bab", "aaab", "aaa0", "bbb"} <= found


@BOTH
def test_what_was_synced_is_in_every_image(recorded: Recorded, metadata: Metadata) -> None:
    """Nothing that follows a sync takes back what the sync made certain."""
    for image in after(recorded(overwrite), "synced", metadata):
        content = image.tree["file"]
        assert content is not None
        assert len(content) >= 3 * SECTOR_BYTES
        assert set(content[: 3 * SECTOR_BYTES]) <= {ord("a"), ord("b")}


def replace_file(directory: str, ledger: str, care: str) -> None:
    """Replace a file by way of a temporary one, with the care taken that is named."""
    acks = Acks(ledger)
    temporary = Path(directory, "temporary")
    file = os.open(temporary, os.O_CREAT | os.O_WRONLY)
    os.write(file, b"new")
    if "file" in care:
        os.fsync(file)
    temporary.rename(Path(directory, "file"))
    if "directory" in care:
        os.fsync(os.open(directory, os.O_RDONLY))
    if "neighbour" in care:
        os.fsync(os.open(f"{directory}/neighbour", os.O_RDONLY))
    acks.ack("replaced")


def contents(shown: list[Image]) -> set[bytes | None]:
    """Return what `file` is found to hold; None where it is missing."""
    return {image.tree.get("file") for image in shown}


@pytest.fixture
def old_files(tmp_path: Path) -> None:
    """Files that were there before the program began, and so are certain."""
    for name in ("file", "neighbour"):
        path = tmp_path / "recorded" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")


@pytest.mark.parametrize(
    ("care", "metadata", "found"),
    [
        ("file, directory", Metadata.STRICT, {b"new"}),
        ("file, directory", Metadata.ORDERED, {b"new"}),
        ("file", Metadata.STRICT, {b"old", b"new"}),
        ("file", Metadata.ORDERED, {b"old", b"new"}),
        ("file, neighbour", Metadata.STRICT, {b"old", b"new"}),
        ("file, neighbour", Metadata.ORDERED, {b"new"}),
        ("directory", Metadata.STRICT, {b"", b"\0\0\0", b"new"}),
    ],
)
def test_a_rename_is_certain_once_its_directory_is_synced(
    recorded: Recorded, old_files: None, care: str, metadata: Metadata, found: set[bytes]
) -> None:
    """A rename that was not synced may be lost, a sync of a neighbour helps only if names are ordered, and a name can
    arrive before its file's data."""
    assert contents(after(recorded(replace_file, care), "replaced", metadata)) == found


def fill_new_directory(directory: str, ledger: str, sync_top: bool) -> None:
    """Make a directory with a synced file in it, and sync it; sync the directory around it only if told to."""
    acks = Acks(ledger)
    inner = Path(directory, "inner")
    inner.mkdir()
    file = os.open(inner / "file", os.O_CREAT | os.O_WRONLY)
    os.write(file, b"new")
    os.fsync(file)
    os.fsync(os.open(inner, os.O_RDONLY))
    if sync_top:
        os.fsync(os.open(directory, os.O_RDONLY))
    acks.ack("made")


@pytest.mark.parametrize(
    ("sync_top", "trees"),
    [(True, [{"inner": None, "inner/file": b"new"}]), (False, [{}, {"inner": None, "inner/file": b"new"}])],
)
def test_a_file_is_found_only_if_its_directory_is(
    recorded: Recorded, sync_top: bool, trees: list[dict[str, bytes | None]]
) -> None:
    """A directory that was not synced into its parent is lost with all that was synced inside it."""
    shown = after(recorded(fill_new_directory, sync_top), "made")
    assert sorted((dict(image.tree) for image in shown), key=len) == trees


def make_two(directory: str, ledger: str) -> None:
    """Make two empty files, one after the other, without a sync."""
    acks = Acks(ledger)
    for name in ("first", "second"):
        Path(directory, name).touch()
    acks.ack("made")


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        (Metadata.ORDERED, {"", "first", "first second"}),
        (Metadata.STRICT, {"", "first", "second", "first second"}),
    ],
)
def test_ordered_names_arrive_in_order_and_strict_ones_in_any(
    recorded: Recorded, metadata: Metadata, found: set[str]
) -> None:
    """A journaling file system never shows the second name without the first; POSIX does not promise that."""
    assert {" ".join(sorted(image.tree)) for image in after(recorded(make_two), "made", metadata)} == found


def move_and_make_again(directory: str, ledger: str) -> None:
    """Move a file to another directory, make a new one under its old name, and sync the old place before the new."""
    acks = Acks(ledger)
    other = Path(directory, "other")
    other.mkdir()
    Path(directory, "file").rename(other / "moved")
    Path(directory, "file").touch()
    for place in (directory, other):
        os.fsync(os.open(place, os.O_RDONLY))
    acks.ack("synced")


def test_a_name_given_anew_outlives_the_move_of_its_old_file(recorded: Recorded, old_files: None) -> None:
    """The move becomes certain after the new name does, and must not take it away."""
    found = [{"neighbour": b"old", "other": None, "other/moved": b"old", "file": b""}]
    assert [image.tree for image in after(recorded(move_and_make_again), "synced")] == found


def move_and_sync_one(directory: str, ledger: str, synced: str) -> None:
    """Move a file to another directory and sync one of the two."""
    acks = Acks(ledger)
    other = Path(directory, "other")
    other.mkdir()
    os.fsync(os.open(directory, os.O_RDONLY))
    Path(directory, "file").rename(other / "moved")
    os.fsync(os.open(Path(directory, synced), os.O_RDONLY))
    acks.ack("moved")


@pytest.mark.parametrize(("synced", "found"), [("other", {"other/moved"}), (".", {"file", "other/moved"})])
def test_a_move_is_certain_once_the_directory_it_went_to_is_synced(
    recorded: Recorded, old_files: None, synced: str, found: set[str]
) -> None:
    """Syncing only where the file came from may lose the move, but never the file."""
    shown = after(recorded(move_and_sync_one, synced), "moved")
    assert {path for image in shown for path in image.tree if path.endswith(("file", "moved"))} == found
    assert all(len(image.tree) == 3 for image in shown)


def write_over(directory: str, ledger: str) -> None:
    """Write a file anew in its place, having failed to remove and to make what cannot be."""
    acks = Acks(ledger)
    with pytest.raises(FileNotFoundError):
        Path(directory, "missing").unlink()
    with pytest.raises(FileExistsError):
        Path(directory, "file").touch(exist_ok=False)
    Path(directory, "file").write_bytes(b"new")
    acks.ack("written")


def test_a_file_written_over_in_its_place_may_be_found_empty(recorded: Recorded, old_files: None) -> None:
    """The truncation can arrive without the data, and calls that failed leave no trace."""
    assert contents(after(recorded(write_over), "written")) == {b"old", b"", bytes(3), b"new"}


def write_short(directory: str, ledger: str) -> None:
    """Write to a file that may not grow as long as that."""
    Acks(ledger)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    assert os.write(os.open(f"{directory}/file", os.O_CREAT | os.O_WRONLY), b"x" * 150) == 100


def test_a_short_write_is_recorded_as_short(recorded: Recorded) -> None:
    """No image may hold bytes that the kernel refused to take."""
    assert max(len(content or b"") for content in contents(every(recorded(write_short)))) == 100


def shrink(directory: str, ledger: str) -> None:
    """Cut a file short, drop another, and make a third longer, without a sync."""
    acks = Acks(ledger)
    file = os.open(f"{directory}/file", os.O_RDWR)
    os.ftruncate(file, 1)
    Path(directory, "neighbour").unlink()
    os.posix_fallocate(os.open(f"{directory}/longer", os.O_CREAT | os.O_RDWR), 0, 4)
    acks.ack("shrunk")


def test_sizes_and_removals_may_be_lost_as_well(recorded: Recorded, old_files: None) -> None:
    """A truncation, a removal and a new size are changes like any other."""
    shown = after(recorded(shrink), "shrunk")
    assert contents(shown) == {b"old", b"o"}
    assert {image.tree.get("neighbour") for image in shown} == {b"old", None}
    assert {image.tree.get("longer") for image in shown} == {None, b"", bytes(4)}


def acknowledge_unsynced(directory: str, ledger: str) -> None:
    """Acknowledge a write that was never synced."""
    acks = Acks(ledger)
    Path(directory, "file").write_bytes(b"new")
    acks.ack("written")


def test_a_disk_comes_with_the_most_that_was_acknowledged(recorded: Recorded) -> None:
    """The empty disk is fine before the ack and a loss after it, and it is the loss that must be shown."""
    shown = every(recorded(acknowledge_unsynced))
    assert [image.acks for image in shown if image.tree == {}] == [("written",)]
    assert len({image.digest for image in shown}) == len(shown)


def acknowledge_synced(directory: str, ledger: str) -> None:
    """Acknowledge only what is synced, name and all."""
    acks = Acks(ledger)
    file = os.open(f"{directory}/file", os.O_CREAT | os.O_WRONLY)
    os.fsync(os.open(directory, os.O_RDONLY))
    os.write(file, b"new")
    os.fsync(file)
    acks.ack("written")


def test_an_image_does_not_claim_acks_that_came_after_its_next_sync(recorded: Recorded) -> None:
    """A program that keeps its word must not be accused."""
    shown = every(recorded(acknowledge_synced))
    assert {image.acks for image in shown if image.tree.get("file") != b"new"} == {()}
    assert ("written",) in {image.acks for image in shown if image.tree.get("file") == b"new"}


def test_the_same_seed_gives_the_same_images_and_a_name_gives_its_image(recorded: Recorded, tmp_path: Path) -> None:
    """What was found can be looked at again, from the recording and the image's name."""
    recording = recorded(commit_rows, "full")
    first, second, other = (list(images(recording, seed=seed, limit=60)) for seed in (3, 3, 4))
    assert first == second
    assert first != other
    recording.save(tmp_path / "recording")
    loaded = Recording.load(tmp_path / "recording")
    assert [image_named(loaded, image.name) for image in first] == first


def test_an_image_is_written_as_it_is_described(recorded: Recorded, tmp_path: Path) -> None:
    """What the check opens is the tree that the image holds."""
    for image in after(recorded(fill_new_directory, False), "made"):
        place = tmp_path / image.name
        image.write_to(place)
        assert read_tree(place) == image.tree


def test_shared_memory_of_the_database_is_left_out(recorded: Recorded) -> None:
    """The -shm file is memory with a name: after a power loss SQLite makes it anew."""
    names = {name for image in every(recorded(commit_rows, "full")) for name in image.tree}
    assert names == {"db", "db-wal", "db-journal"}


def write_by_mapping(directory: str, ledger: str) -> None:
    """Write to a file by way of shared memory."""
    Acks(ledger)
    file = os.open(f"{directory}/file", os.O_CREAT | os.O_RDWR)
    os.ftruncate(file, mmap.PAGESIZE)
    mmap.mmap(file, mmap.PAGESIZE)[0] = 1


def test_a_program_that_writes_by_mapping_is_refused(recorded: Recorded) -> None:
    """No image would be true if writes went by unseen, so none is made."""
    with pytest.raises(Unmodelled, match="mmap"):
        every(recorded(write_by_mapping))


def test_acks_inside_the_image_are_refused(killer: Killer, tmp_path: Path) -> None:
    """The note of what was acknowledged must not be lost with the disk."""
    with pytest.raises(ValueError, match="outside"):
        record(killer, shrink, str(tmp_path), str(tmp_path / "acks"), directory=tmp_path, acks=tmp_path / "acks")


checked = 0


def check_once(directory: str, acks: tuple[str, ...]) -> None:
    """Raise if this process has checked an image before; die on every disk that has a file."""
    global checked
    checked += 1
    assert checked == 1
    if Path(directory, "file").exists():
        os.kill(os.getpid(), signal.SIGSEGV)


def test_each_image_is_checked_in_a_process_of_its_own(recorded: Recorded, killers: Pair) -> None:
    """A check that leaves state behind, or dies, spoils no other image's check."""
    shown = every(recorded(acknowledge_unsynced))
    inspection = inspect_images(iter(shown), check_once, killers=killers)
    assert inspection.images == len(shown)
    assert len(inspection.refusals) == sum("file" in image.tree for image in shown)
    assert inspect_images(shown, check_once, killers=killers[:1], stop_after=1).images < len(shown)
    assert all("ended with -11" in refusal.error for refusal in inspection.refusals)
