"""What an archive holds of a run, and what it notices."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from holdfast.client.archive import ArchivedRun, check_archive, export_run, read_archive
from holdfast.core.checksum import StoredEntry, checksum
from holdfast.core.errors import Damaged, InvalidInput, NotFound
from holdfast.core.ids import RunId, id_bytes, new_run_id
from holdfast.store.memory import MemoryStore
from holdfast.store.value import Commit
from holdfast.testing.contract.story import Pen, a_lease, row_of
from tests.unit.endings import LARGE, an_ended_run


async def lines_of(store: MemoryStore, run: RunId) -> list[bytes]:
    """Return a run's lines."""
    return [line async for line in export_run(store, run)]


def written(folder: Path, *lines: bytes, name: str = "runs.jsonl") -> str:
    """Return the path of an archive of these lines."""
    path = folder / name
    path.write_bytes(b"".join(lines))
    return str(path)


def findings(path: str) -> list[tuple[str | None, int | None]]:
    """Return where something is wrong."""
    return [(finding.run, finding.seq) for finding in check_archive(path)]


async def test_a_run_read_from_an_archive_is_the_run_that_the_store_had(tmp_path: Path) -> None:
    """Row, entries and blobs come back byte for byte."""
    store = MemoryStore()
    run = await an_ended_run(store, "one", '\N{SNOWMAN} "two"\n', input=LARGE, key="k")
    row = await row_of(store, run)
    (found,) = read_archive(written(tmp_path, *await lines_of(store, run)))
    assert found.run == run
    assert (found.store, found.epoch) == (store.id, 1)
    assert found.row == msgspec.structs.replace(row, number=0, owner=None, stalls=found.row.stalls)
    assert list(found.entries) == store._entries[run]
    assert found.blobs == {row.digest: LARGE}


async def test_an_entry_is_readable_in_its_line(tmp_path: Path) -> None:
    """Whoever has only a JSON tool can read an archive."""
    store = MemoryStore()
    run = await an_ended_run(store, "hello")
    kinds = [json.loads(line) for line in await lines_of(store, run)]
    assert [line["type"] for line in kinds] == ["run", "entry", "entry", "entry", "end"]
    assert kinds[2]["body"]["value"] == "hello"


async def test_a_body_that_is_not_plain_json_comes_back_exactly(tmp_path: Path) -> None:
    """A line break inside an entry's bytes breaks no line of the archive."""
    store = MemoryStore()
    lease = await a_lease(store)
    body = b'{"step": "0/emit#1",\n "name": "emit", "value": 1}'
    head = checksum(id_bytes(lease.row.run), 2, 5, 1, "Emitted", 0, lease.row.head, body)
    odd = StoredEntry(2, "Emitted", 1, 5, 0, body, head)
    await store.commit(lease, Commit(after=1, previous=lease.row.head, entries=[odd]))
    (found,) = read_archive(written(tmp_path, *await lines_of(store, lease.row.run)))
    assert found.entries[1] == odd


async def test_an_open_run_is_exported_as_it_stood(tmp_path: Path) -> None:
    """What is committed while the lines are written is not half in them."""
    store = MemoryStore()
    lease = await a_lease(store)
    pen = Pen(store, lease)
    await store.commit(lease, pen.next("before"))
    lines = export_run(store, lease.row.run)
    first = await anext(lines)
    await store.commit(lease, pen.next("after"))
    (found,) = read_archive(written(tmp_path, first, *[line async for line in lines]))
    assert (found.row.last_seq, len(found.entries)) == (2, 2)


async def test_archives_can_be_joined_and_packed(tmp_path: Path) -> None:
    """An archive is its runs one after another, so `cat` and `gzip` make archives of archives."""
    store = MemoryStore()
    runs = [await an_ended_run(store, "a"), await an_ended_run(store, "b", input=LARGE)]
    lines = [line for run in runs for line in await lines_of(store, run)]
    packed = gzip.compress(b"".join(lines[:5])) + gzip.compress(b"".join(lines[5:]))
    assert [run.run for run in read_archive(written(tmp_path, *lines))] == runs
    assert [run.run for run in read_archive(written(tmp_path, packed, name="runs.gz"))] == runs
    assert findings(written(tmp_path, packed[:-20], name="cut.gz"))[-1][0] in (runs[1], None)


async def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    """No byte of a run can change without the run being named, or the line where a run should begin."""
    store = MemoryStore()
    first, second = await an_ended_run(store, "x", key="a"), await an_ended_run(store, "y")
    whole = b"".join([*await lines_of(store, first), *await lines_of(store, second)])
    begins = len(b"".join(await lines_of(store, first)))
    for place in range(begins, len(whole) - 1):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        found = findings(written(tmp_path, bytes(flipped)))
        assert found, f"byte {place} changed unnoticed: {bytes(flipped)[place - 20 : place + 20]!r}"
        assert first not in [run for run, _ in found]


@pytest.mark.parametrize("line", [1, 2, 3])
async def test_damage_is_named_by_run_and_entry_and_the_next_run_is_read(tmp_path: Path, line: int) -> None:
    """One damaged entry is found where it is; the runs around it are sound."""
    store = MemoryStore()
    runs = [await an_ended_run(store, text) for text in ("one", "two", "three")]
    lines = [await lines_of(store, run) for run in runs]
    lines[1][line] = lines[1][line].replace(b'"at":', b'"at":1')
    path = written(tmp_path, *[each for of_run in lines for each in of_run])
    seen: list[RunId] = []
    (finding,) = check_archive(path, seen=seen.append)
    assert (finding.run, finding.seq) == (runs[1], line)
    assert seen == [runs[0], runs[2]]
    with pytest.raises(Damaged, match=f"run {runs[1]}, entry {line}"):
        list(read_archive(path))


async def test_a_missing_line_is_noticed_wherever_it_was(tmp_path: Path) -> None:
    """A run without its first, its last or any other line is not whole."""
    store = MemoryStore()
    run = await an_ended_run(store, "one", input=LARGE)
    other = await lines_of(store, await an_ended_run(store, "two"))
    lines = await lines_of(store, run)
    assert findings(written(tmp_path, *lines, *other)) == []
    for gone in range(len(lines)):
        left = [line for number, line in enumerate(lines) if number != gone]
        assert findings(written(tmp_path, *other, *left, *other)), f"line {gone + 1} is not missed"
        assert findings(written(tmp_path, *other, *left)), f"line {gone + 1} is not missed at the end"


async def test_a_cut_archive_says_where(tmp_path: Path) -> None:
    """Writing that was interrupted leaves a run that is not whole, and it is named."""
    store = MemoryStore()
    sound, cut = await an_ended_run(store, "one"), await an_ended_run(store, "two")
    whole = b"".join([*await lines_of(store, sound), *await lines_of(store, cut)])
    begins = len(b"".join(await lines_of(store, sound)))
    for length in range(begins + 300, len(whole) - 2, 37):
        ((run, _),) = findings(written(tmp_path, whole[:length]))
        assert run in (cut, None)


@pytest.mark.parametrize("text", [b"", b"SQLite format 3\x00", b"{}\n", b'{"type":"entry"}\n', b"\x1f\x8b rubbish"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, text: bytes) -> None:
    """Nothing is said about the runs of a file that holds none."""
    with pytest.raises(InvalidInput, match="is not an archive"):
        list(check_archive(written(tmp_path, text)))


def test_an_archive_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A wrong name is not an empty archive."""
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        list(read_archive(str(tmp_path / "nothing.jsonl")))


async def test_an_archive_of_a_newer_version_is_not_guessed_at(tmp_path: Path) -> None:
    """A newer form is named as such."""
    store = MemoryStore()
    lines = await lines_of(store, await an_ended_run(store, "one"))
    newer = [*lines, lines[0].replace(b'"v":1', b'"v":2'), *lines[1:]]
    (finding,) = check_archive(written(tmp_path, *newer))
    assert "needs a newer Holdfast" in finding.what


async def test_a_damaged_run_is_not_exported(tmp_path: Path) -> None:
    """An archive vouches for what it holds, so nothing broken goes into it."""
    store = MemoryStore()
    run = await an_ended_run(store, "one", input=LARGE)
    row = await row_of(store, run)
    blobs = dict(store._blobs.bodies)
    store._blobs.bodies.clear()
    with pytest.raises(Damaged, match=f"blob {row.digest}"):
        await lines_of(store, run)
    store._blobs.bodies.update(blobs)
    store._entries[run][1] = store._entries[run][1]._replace(at=7)
    with pytest.raises(Damaged, match="entry 2"):
        await lines_of(store, run)
    with pytest.raises(NotFound):
        await lines_of(store, new_run_id())


def test_the_interface_that_others_rely_on() -> None:
    """The testing kit reads archives by these names."""
    assert ArchivedRun.__struct_fields__ == ("store", "epoch", "row", "entries", "blobs", "shares")
