"""Opening a SQLite file: ours is brought up to date in one piece, and nobody else's is touched."""

import os
import sqlite3
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from holdfast.core.errors import Misuse, StoreClosed, StoreRefused, StoreUnavailable
from holdfast.core.ids import new_worker_id
from holdfast.core.limit import Limit
from holdfast.store.memory import MemoryStore
from holdfast.store.rows import FIXED, MOVING, first_row, fixed_of, guard, moving_of, seal
from holdfast.store.schema import APPLICATION_ID, migrations
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.database import INSERT_ENTRY
from holdfast.store.value import Committed, Granted, RunFilter
from holdfast.testing.contract.story import SERVES, Pen, a_lease, a_run, a_worker, journal_of, words

ROOT = Path(__file__).resolve().parents[2]


def contents(folder: Path) -> dict[str, str]:
    """Return the digest of every file in a folder."""
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.is_file()}


def execute(path: Path, *statements: str) -> None:
    """Run statements on a file, as some other program would."""
    connection = apsw.Connection(str(path))
    for sql in statements:
        connection.execute(sql)
    connection.close()


def visit(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a visitor to its end."""
    command = [sys.executable, "-m", "tests.contract.visitor", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


async def use(path: Path) -> None:
    """Open the store, write and read back."""
    store = await SqliteStore.open(str(path))
    pen = Pen(store, await a_lease(store))
    assert await store.commit(pen.lease, pen.next("word")) == Committed(2)
    assert words(await journal_of(store, pen.lease.row.run)) == ["word"]
    assert await store.check() == []
    await store.close()


async def test_a_store_is_the_same_store_when_it_is_opened_again(tmp_path: Path) -> None:
    """The id is for a store's whole life, and what was written stays."""
    path = str(tmp_path / "store.db")
    store = await SqliteStore.open(path)
    pen = Pen(store, await a_lease(store))
    await store.commit(pen.lease, pen.next("word"))
    await store.close()
    again = await SqliteStore.open(path)
    assert (again.id, again.epoch) == (store.id, 1)
    assert words(await journal_of(again, pen.lease.row.run)) == ["word"]
    await again.close()


OLD = range(1, len(migrations("sqlite")))


def old_store(path: Path, version: int) -> None:
    """Make the file that Holdfast made when it knew only so many migrations, with one run in it."""
    new = a_run(MemoryStore())
    execute(path, "PRAGMA journal_mode=WAL", *migrations("sqlite")[:version])
    execute(
        path,
        f"PRAGMA application_id={APPLICATION_ID}",
        f"PRAGMA user_version={version}",
        f"INSERT INTO hf_store (one, id, epoch, created_at, next_run) VALUES (1, '{new_worker_id()}', 1, 1, 65)",
    )
    stored = first_row(new, 1, claimed=False)
    fixed, moving = fixed_of(stored), moving_of(stored)
    marks = ", ".join("?" * (len(fixed) + len(moving)))
    connection = apsw.Connection(str(path))
    connection.execute(
        f"INSERT INTO hf_runs ({FIXED}, {MOVING}, inbox_seq, control_seq, seen_seq, inbox_sum, guard) "
        f"VALUES ({marks}, 0, 0, 0, 0, {guard(seal(fixed), moving)})",
        (*fixed, *moving),
    )
    connection.execute(INSERT_ENTRY, (1, *new.first))
    connection.close()


@pytest.mark.parametrize("version", OLD)
async def test_an_older_store_is_migrated_and_keeps_its_runs(tmp_path: Path, version: int) -> None:
    """An upgrade is opening the store: what is new can be used, and what was there goes on."""
    path = tmp_path / "store.db"
    old_store(path, version)
    store = await SqliteStore.open(str(path))
    (lease,) = await store.claim(await a_worker(store), SERVES, limit=9)
    assert await store.acquire(lease, "0/call#1", Limit("one", at_once=1)) == Granted()
    assert await store.commit(lease, Pen(store, lease).next("word", freed=["0/call#1"])) == Committed(2)
    assert words(await journal_of(store, lease.row.run)) == ["word"]
    assert await store.check() == []
    await store.close()


async def test_a_kill_before_any_statement_of_a_migration_leaves_a_usable_file(tmp_path: Path) -> None:
    """Whichever statement was the last, the next opening migrates, and the run is there."""
    folder = tmp_path / "old"
    folder.mkdir()
    old_store(folder / "old.db", OLD[-1])
    done = visit("die", str(tmp_path), str(folder / "old.db"))
    opened = done.stdout.split()
    assert len(opened) > 5, done.stderr
    assert set(opened) == {"True"}
    store = await SqliteStore.open(str(tmp_path / f"{len(opened) // 2}.db"))
    assert len(await store.list(RunFilter())) == 1
    await store.close()


async def test_a_kill_before_any_statement_of_the_first_opening_leaves_a_usable_file(tmp_path: Path) -> None:
    """Whichever statement of the migration was the last, the next opening makes the store."""
    done = visit("die", str(tmp_path))
    opened = done.stdout.split()
    assert len(opened) > 20, done.stderr
    assert set(opened) == {"True"}
    # One of those that died in the middle of the migration is used, too.
    await use(tmp_path / "20.db")


@pytest.mark.parametrize("version", [len(migrations("sqlite")) + 1, 99])
async def test_a_newer_schema_is_refused_with_what_to_do(tmp_path: Path, version: int) -> None:
    """A store written by a newer Holdfast is left alone, and the error says how to go on."""
    path = tmp_path / "store.db"
    await use(path)
    execute(path, f"PRAGMA user_version={version}")
    before = contents(tmp_path)
    with pytest.raises(StoreRefused, match="upgrade Holdfast"):
        await SqliteStore.open(str(path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE songs (title TEXT)", "INSERT INTO songs VALUES ('Lili')"],
        ["PRAGMA application_id=7", "CREATE TABLE songs (title TEXT)"],
        ["PRAGMA application_id=7", "PRAGMA user_version=1"],
        ["PRAGMA journal_mode=WAL", "CREATE TABLE songs (title TEXT)"],
        ["CREATE TABLE hf_runs (number INTEGER)"],
    ],
    ids=["tables", "application id", "only an application id", "in WAL mode", "tables that look like ours"],
)
async def test_another_programs_database_is_refused_untouched(tmp_path: Path, statements: list[str]) -> None:
    """A wrong address changes nothing: not a byte, not the journal mode, no file beside it."""
    path = tmp_path / "other.db"
    execute(path, *statements)
    before = contents(tmp_path)
    with pytest.raises(StoreRefused, match="not a Holdfast store"):
        await SqliteStore.open(str(path))
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    "body", [b"Dear diary,\n" * 100, b"SQLite format 3\x00" + b"\xff" * 4096], ids=["text", "junk"]
)
async def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, body: bytes) -> None:
    """What is not a database is not made one."""
    path = tmp_path / "notes.txt"
    path.write_bytes(body)
    with pytest.raises(StoreRefused):
        await SqliteStore.open(str(path))
    assert contents(tmp_path) == {"notes.txt": sha256(body).hexdigest()}


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    """A file that somebody made by `touch` or `mktemp` holds nothing that could be lost."""
    path = tmp_path / "store.db"
    path.touch()
    await use(path)


async def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    """The error says what the address is."""
    with pytest.raises(StoreRefused, match="is a folder"):
        await SqliteStore.open(str(tmp_path))


async def test_a_missing_folder_is_unavailable_and_not_made(tmp_path: Path) -> None:
    """A typing error in a path does not scatter folders."""
    with pytest.raises(StoreUnavailable, match="check that the folder exists"):
        await SqliteStore.open(str(tmp_path / "nowhere" / "store.db"))
    assert contents(tmp_path) == {}
    assert not (tmp_path / "nowhere").exists()


async def test_a_store_made_while_its_header_is_looked_at_is_not_taken_for_anothers(tmp_path: Path) -> None:
    """The look before opening reads twice; a store that comes into being between the two is ours."""
    path = tmp_path / "store.db"
    path.touch()
    made: list[int] = []

    def before(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        if len(made) == 1:
            made.append(visit("open", str(path)).returncode)
        elif not made:
            made.append(-1)
        return True

    def trace(connection: apsw.Connection) -> None:
        connection.exec_trace = before

    apsw.connection_hooks.append(trace)
    try:
        store = await SqliteStore.open(str(path))
    finally:
        apsw.connection_hooks.remove(trace)
    assert made == [-1, 0]
    await store.close()


async def test_closing_finishes_what_is_queued(tmp_path: Path) -> None:
    """A commit that was asked for is written, even if nobody waits for it any more."""
    path = str(tmp_path / "store.db")
    store = await SqliteStore.open(path)
    pen = Pen(store, await a_lease(store))
    asked = [store.commit(pen.lease, pen.next(str(n))) for n in range(3)]
    await store.close()
    assert [await pending for pending in asked] == [Committed(2), Committed(3), Committed(4)]
    again = await SqliteStore.open(path)
    assert words(await journal_of(again, pen.lease.row.run)) == ["0", "1", "2"]
    await again.close()


async def test_a_closed_store_says_so(tmp_path: Path) -> None:
    """Every verb of a closed store is refused, and blames no disk for it; closing it twice is nothing."""
    store = await SqliteStore.open(str(tmp_path / "store.db"))
    lease = await a_lease(store)
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed, match="closed"):
        await store.get(lease.row.run)
    with pytest.raises(StoreClosed, match="closed"):
        await a_lease(store, lease.worker)


async def test_a_member_that_fails_spoils_no_neighbour_in_its_batch(tmp_path: Path) -> None:
    """A batch that fails is tried one by one: only the culprit's caller hears of it, and its own later commits."""
    store = await SqliteStore.open(str(tmp_path / "store.db"))
    pens = [Pen(store, await a_lease(store)) for _ in range(5)]
    commits = [pen.next("word") for pen in pens]
    broken = commits[2]
    broken.entries = [broken.entries[0]._replace(body=object())]  # type: ignore[arg-type]
    asked = [store.commit(pen.lease, commit) for pen, commit in zip(pens, commits, strict=True)]
    behind = store.commit(pens[2].lease, pens[2].next("behind it"))
    outcomes = [await pending for n, pending in enumerate(asked) if n != 2]
    assert outcomes == [Committed(2)] * 4
    with pytest.raises(TypeError):
        await asked[2]
    assert type(await behind).__name__ == "HeadMoved"
    for n, pen in enumerate(pens):
        assert words(await journal_of(store, pen.lease.row.run)) == ([] if n == 2 else ["word"])
    await store.close()


def check_refused(*names: str | bytes | Path) -> None:
    """Check that no name can be opened by the builtin."""
    for name in names:
        with pytest.raises(Misuse):
            open(name, "rb")  # noqa: SIM115 - it must not even open


class TestGuard:
    """Nothing else in this process may open the store's files while they are in use."""

    @pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
    async def test_a_plain_open_of_the_stores_files_is_refused(self, tmp_path: Path, suffix: str) -> None:
        """A handle that closes would drop the locks of the whole process, and acknowledged rows with them."""
        path = tmp_path / "store.db"
        store = await SqliteStore.open(str(path))
        name = f"{path}{suffix}"
        check_refused(name, os.fsencode(name), Path(name))
        with pytest.raises(Misuse):
            os.open(name, os.O_RDONLY)
        await store.close()

    async def test_a_second_copy_of_sqlite_is_refused(self, tmp_path: Path) -> None:
        """The standard library's SQLite does not know of our locks."""
        path = tmp_path / "store.db"
        store = await SqliteStore.open(str(path))
        for address, uri in ((str(path), False), (f"file:{path}?mode=ro", True), (f"file://{path}", True)):
            with pytest.raises(Misuse):
                sqlite3.connect(address, uri=uri)
        await store.close()

    async def test_another_name_of_the_same_file_is_refused_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A link or a relative path leads to the same locks."""
        path = tmp_path / "store.db"
        (tmp_path / "link").symlink_to(path)
        store = await SqliteStore.open(str(path))
        monkeypatch.chdir(tmp_path)
        check_refused("link", "store.db", "./store.db", "../" + tmp_path.name + "/store.db")
        await store.close()

    async def test_other_files_can_be_opened(self, tmp_path: Path) -> None:
        """Only the store is guarded."""
        store = await SqliteStore.open(str(tmp_path / "store.db"))
        (tmp_path / "notes.txt").write_text("fine")
        sqlite3.connect(tmp_path / "other.db").close()
        await store.close()

    async def test_the_guard_ends_with_the_last_opening(self, tmp_path: Path) -> None:
        """Two openings of one store are guarded until both are closed."""
        path = tmp_path / "store.db"
        one, two = await SqliteStore.open(str(path)), await SqliteStore.open(str(path))
        await one.close()
        with pytest.raises(Misuse):
            path.read_bytes()
        await two.close()
        assert path.read_bytes().startswith(b"SQLite format 3")
