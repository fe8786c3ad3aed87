"""Indexes that have lost a run, and pages that can be read but not written."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged, StoreRefused
from holdfast.core.ids import RunId, WorkerId, id_bytes
from holdfast.engine import worker
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from tests.damage import tamper

_WAIT_SECONDS: Final = 20.0
_NOBODY: Final = 999
"""The number of no worker."""


def say(word: str) -> str:
    """Return something too long for a page."""
    return word * 2000


def sign(word: str) -> str:
    """Leave it unknown whether it was done."""
    raise ConnectionError("cut off")


@hf.durable
async def tale(ctx: hf.Context, word: str) -> str:
    """Record a step."""
    return (await ctx.step(say, word))[: len(word)]


@hf.durable
async def doubted(ctx: hf.Context, word: str) -> str:
    """Wait for a person."""
    return await ctx.step(sign, word, effect="once", in_doubt="wait")


_APP: Final = hf.App(tale, doubted, version="1")
_SERVES: Final = {"tale": "1", "doubted": "1"}


@asynccontextmanager
async def opened(path: Path, *, work: bool = True) -> AsyncIterator[hf.Runtime]:
    """Open a store that need not be synced, in bounded time."""
    store = await SqliteStore.open(str(path), synchronous="OFF")
    async with hf.open(store, _APP, work=work) as runtime, asyncio.timeout(3 * _WAIT_SECONDS):
        yield runtime


async def queue(path: Path, words: Iterable[str]) -> dict[str, RunId]:
    """Make a store in which these runs wait to be driven."""
    async with opened(path, work=False) as runtime:
        return {word: (await runtime.start(tale, word, key=word)).id for word in words}


async def answer(path: Path, word: str) -> Any:
    """Ask for a run by its key, as a program does that starts again."""
    async with opened(path) as runtime:
        return await (await runtime.start(tale, word, key=word)).result(timeout=_WAIT_SECONDS)


@contextmanager
def without_index(path: Path, name: str) -> Iterator[None]:
    """Hide an index from whoever changes rows in the meantime, so that it does not learn of it."""
    [row] = tamper.query(path, "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_master WHERE name = ?", [name])
    _edit_schema(path, "DELETE FROM sqlite_master WHERE name = ?", [name])
    yield
    _edit_schema(path, "INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql) VALUES (?, ?, ?, ?, ?)", row)


def _edit_schema(path: Path, sql: str, parameters: Sequence[Any]) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(sql, parameters)


def own(path: Path, run: RunId, owner: int | None) -> None:
    """Change who has the lease of a run; its row's checksum does not cover that."""
    tamper.change(path, "UPDATE hf_runs SET owner = ? WHERE run = ?", [owner, id_bytes(run)])


def lose_owned(path: Path, run: RunId) -> None:
    """Let the index of owners not know a run whose owner is dead."""
    with without_index(path, "hf_runs_owner"):
        own(path, run, _NOBODY)


def loser(index: str) -> Callable[[Path, RunId], None]:
    """Return what lets an index of free runs not know one."""

    def lose(path: Path, run: RunId) -> None:
        own(path, run, _NOBODY)
        with without_index(path, index):
            own(path, run, None)

    return lose


async def claimable(store: SqliteStore) -> list[RunId]:
    """Return the runs that a worker gets."""
    await store.register(WorkerId("w"), lock=None)
    return [lease.row.run for lease in await store.claim(WorkerId("w"), _SERVES, limit=10)]


@pytest.mark.parametrize("lose", [loser("hf_runs_due"), lose_owned], ids=["due", "owner"])
async def test_a_run_that_an_index_lost_is_driven_all_the_same(
    tmp_path: Path, lose: Callable[[Path, RunId], None]
) -> None:
    """P5: the rows are looked through, so no damage to an index leaves a run waiting without end."""
    path = tmp_path / "store.db"
    ids = await queue(path, ["one", "two", "three"])
    lose(path, ids["two"])
    store = await SqliteStore.open(str(path))
    assert ids["two"] not in await claimable(store), "the index still knows it"
    await store.void(WorkerId("w"), why="test")
    await store.close()
    assert await answer(path, "two") == "two"


async def test_a_post_that_an_index_lost_wakes_its_run_all_the_same(tmp_path: Path) -> None:
    """A person's word reaches its run although the index of runs with posts does not know of it."""
    path = tmp_path / "store.db"
    async with opened(path) as runtime:
        run = await runtime.start(doubted, "one", key="one")
        await soon_in_doubt(run)
    async with opened(path, work=False) as runtime:
        await (await runtime.get(run.id)).resolve("0/sign#1", "signed by hand")
    loser("hf_runs_posted")(path, run.id)
    async with opened(path) as runtime:
        assert await (await runtime.get(run.id)).result(timeout=_WAIT_SECONDS) == "signed by hand"


async def soon_in_doubt(run: hf.Run[Any]) -> None:
    """Wait until a run rests."""
    async for event in run.events():
        if isinstance(event, hf.events.RunParked):
            return


async def test_a_run_that_a_damaged_index_calls_due_is_not_claimed_before_its_time(tmp_path: Path) -> None:
    """The row says when a run may be claimed, and its checksum covers that; the index only says where to look."""
    path = tmp_path / "store.db"
    async with opened(path, work=False) as runtime:
        await runtime.start(tale, "first", key="first")
        later = await runtime.start(tale, "later", key="later", delay=3600)
        due = await runtime.start(tale, "due", key="due")
    [[due_at]] = tamper.query(path, "SELECT due_at FROM hf_runs WHERE run = ?", [id_bytes(due.id)])
    old, new = (due_at.to_bytes(8, "big") + bytes([_number(path, run.id)]) for run in (due, later))
    IndexPage(path, "hf_runs_due").exchange(old, new)
    store = await SqliteStore.open(str(path))
    await store.register(WorkerId("w"), lock=None)
    early = [lease.row.key for lease in await store.claim(WorkerId("w"), _SERVES, limit=10)]
    assert len(await store.scrub()) == 1
    mended = [lease.row.key for lease in await store.claim(WorkerId("w"), _SERVES, limit=10)]
    row = await store.get(later.id)
    await store.close()
    assert (early, mended) == (["first"], ["due"])
    assert row is not None
    assert (row.status, row.damage) == (hf.Status.QUEUED, ""), "a sound run was set aside"


async def test_a_scrub_finds_what_an_index_lost_and_says_so_once(tmp_path: Path) -> None:
    """The index is made again from the rows, after which a claim finds the run and there is nothing more to mend."""
    path = tmp_path / "store.db"
    ids = await queue(path, ["one", "two"])
    loser("hf_runs_due")(path, ids["one"])
    store = await SqliteStore.open(str(path))
    assert await store.scrub() == ["the indexes of the runs had lost 1, and were made again from their rows"]
    assert await store.scrub() == ()
    assert sorted(await claimable(store)) == sorted(ids.values())
    await store.close()
    assert tamper.query(path, "PRAGMA integrity_check") == [("ok",)]


async def test_a_scrub_goes_through_all_runs_stretch_by_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store of many runs is looked through a piece at a time, to its end and from its beginning again."""
    monkeypatch.setattr("holdfast.store.sqlite.driver._STRETCH", 2)
    path = tmp_path / "store.db"
    ids = await queue(path, [f"word {number}" for number in range(7)])
    for lost in sorted(ids.values(), key=lambda run: _number(path, run)):
        loser("hf_runs_due")(path, lost)
        store = await SqliteStore.open(str(path))
        mended = [await store.scrub() for _ in range(5)]
        await store.close()
        assert sum(map(len, mended)) == 1
    store = await SqliteStore.open(str(path))
    # More looks than one round has.
    assert [await store.scrub() for _ in range(11)] == [()] * 11
    await store.close()


def _number(path: Path, run: RunId) -> int:
    [[number]] = tamper.query(path, "SELECT number FROM hf_runs WHERE run = ?", [id_bytes(run)])
    return int(number)


async def test_a_sound_store_has_nothing_to_scrub(tmp_path: Path) -> None:
    """Runs that are queued, owned, woken by a post and ended are where their indexes say."""
    path = tmp_path / "store.db"
    async with opened(path) as runtime:
        run = await runtime.start(doubted, "one", key="one")
        await soon_in_doubt(run)
        await runtime.run(tale, "ended", key="ended")
    async with opened(path, work=False) as runtime:
        await (await runtime.get(run.id)).resolve("0/sign#1", "signed by hand")
    await queue(path, ["two", "three"])
    store = await SqliteStore.open(str(path))
    assert await store.scrub() == ()
    await store.register(WorkerId("w"), lock=None)
    assert len(await store.claim(WorkerId("w"), _SERVES, limit=2)) == 2
    assert await store.scrub() == ()
    await store.close()


async def test_a_store_in_memory_has_nothing_to_scrub() -> None:
    """What has no indexes cannot lose anything in them."""
    store = MemoryStore()
    async with hf.open(store, _APP, work=False) as runtime:
        await runtime.start(tale, "one", key="one")
        assert await store.scrub() == ()


# A run that its id does not find


class IndexPage:
    """The page of an index, in a store so small that it has one."""

    def __init__(self, path: Path, name: str = "sqlite_autoindex_hf_runs_1") -> None:
        self._path = path
        [[page_bytes]] = tamper.query(path, "PRAGMA page_size")
        [[root]] = tamper.query(path, "SELECT rootpage FROM sqlite_master WHERE name = ?", [name])
        self._begin = (root - 1) * page_bytes
        self._page = bytearray(path.read_bytes()[self._begin : self._begin + page_bytes])

    def place(self, run: RunId) -> int:
        """Return where the id of a run stands in the page."""
        return self._page.index(id_bytes(run))

    def flip(self, place: int, bit: int) -> None:
        """Flip a bit of the page."""
        self._page[place] ^= 1 << bit
        self._write()

    def exchange(self, old: bytes, new: bytes) -> None:
        """Put other bytes where these stand."""
        place = self._page.index(old)
        self._page[place : place + len(old)] = new
        self._write()

    def drop(self, run: RunId) -> None:
        """Take a run out of the page, as a lost write would."""
        count = int.from_bytes(self._page[3:5], "big")
        cells = [int.from_bytes(self._page[8 + 2 * n : 10 + 2 * n], "big") for n in range(count)]
        # Its entry is the one that begins last before its id.
        cells.remove(max(cell for cell in cells if cell < self.place(run)))
        self._page[3:5] = (count - 1).to_bytes(2, "big")
        self._page[8 : 8 + 2 * count] = b"".join(cell.to_bytes(2, "big") for cell in cells) + bytes(2)
        self._write()

    def _write(self) -> None:
        with self._path.open("r+b") as file:
            file.seek(self._begin)
            file.write(self._page)


@pytest.mark.parametrize("word", ["one", "three", "five"], ids=["first", "middle", "last"])
async def test_a_run_whose_id_was_altered_in_the_index_is_damaged_and_not_unknown(tmp_path: Path, word: str) -> None:
    """Not found and damaged are two answers: only the first may start afresh."""
    path = tmp_path / "store.db"
    ids = await queue(path, ["one", "two", "three", "four", "five"])
    whole = path.read_bytes()
    for byte in range(16):
        path.write_bytes(whole)
        index = IndexPage(path)
        index.flip(index.place(ids[word]) + byte, byte % 8)
        store = await SqliteStore.open(str(path), synchronous="OFF")
        row = await store.get(ids[word])
        others = [await store.get(run) for run in ids.values() if run != ids[word]]
        await store.close()
        assert row is not None, f"byte {byte}"
        assert row.damage, f"byte {byte}"
        assert all(other is not None for other in others), f"byte {byte}"


async def test_a_run_that_its_key_knows_and_its_id_does_not_is_damaged(tmp_path: Path) -> None:
    """Whoever starts it again, or looks for it by its key, is told so instead of waiting for a run that is unknown."""
    path = tmp_path / "store.db"
    ids = await queue(path, ["one", "two", "three"])
    IndexPage(path).drop(ids["two"])
    async with opened(path, work=False) as runtime:
        with pytest.raises(Damaged, match=f"run {ids['two']}: the index that finds it does not know it"):
            await runtime.start(tale, "two", key="two")
        with pytest.raises(Damaged, match=f"run {ids['two']}: "):
            await runtime.get(key="two")
        assert (await runtime.start(tale, "one", key="one")).id == ids["one"]
        assert [finding async for finding in runtime.client.verify()]


# Pages that can be read and not written


def break_free_list(path: Path) -> None:
    """Let the file's header name a free page that there is not: everything can be read, and nothing can grow."""
    with path.open("r+b") as file:
        file.seek(32)
        file.write((1 << 30).to_bytes(4, "big") + (1).to_bytes(4, "big"))


def make_roomy(path: Path) -> None:
    """Make the file of a store to come with pages on which a row can grow without another page."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA page_size=4096")
        connection.execute("PRAGMA journal_mode=WAL")


def forbid(path: Path, what: str) -> None:
    """Let SQLite refuse a write, as it does where it finds the page damaged."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TRIGGER forbidden BEFORE {what} BEGIN SELECT RAISE(ABORT, 'forbidden'); END")


async def test_a_run_that_cannot_be_written_is_set_aside_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller learns that it is damaged, without a wait for the next look after the dead."""
    monkeypatch.setattr(worker, "_REAP_SECONDS", 1000.0)
    path = tmp_path / "store.db"
    make_roomy(path)
    await queue(path, ["one", "two", "three"])
    break_free_list(path)
    async with opened(path) as runtime:
        for word in ("one", "two", "three"):
            run = await runtime.get(key=word)
            with pytest.raises(hf.RunError, match="quarantined: damaged: driving it failed again and again: Store"):
                await run.result(timeout=_WAIT_SECONDS)


async def test_the_caller_of_a_run_that_can_neither_be_written_nor_set_aside_is_told(tmp_path: Path) -> None:
    """Where not even the row can say that the run is damaged, the wait itself does."""
    path = tmp_path / "store.db"
    await queue(path, ["one"])
    forbid(path, "INSERT ON hf_entries WHEN NEW.kind <> 'RunStarted'")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TRIGGER too BEFORE UPDATE OF status ON hf_runs BEGIN SELECT RAISE(ABORT, 'forbidden'); END"
        )
    with pytest.raises(StoreRefused, match="forbidden"):
        await answer(path, "one")


async def test_the_caller_of_a_run_that_cannot_be_claimed_is_told(tmp_path: Path) -> None:
    """A worker that cannot claim anything says why to whoever waits for a run that it should drive."""
    path = tmp_path / "store.db"
    await queue(path, ["one"])
    forbid(path, "UPDATE OF owner ON hf_runs WHEN NEW.owner IS NOT NULL")
    with pytest.raises(StoreRefused, match="forbidden"):
        await answer(path, "one")


async def test_a_run_that_is_being_driven_is_waited_for_although_nothing_can_be_claimed(tmp_path: Path) -> None:
    """P7: damage that stops one run touches no other."""
    path = tmp_path / "store.db"
    reached, may_end = asyncio.Event(), asyncio.Event()

    @hf.durable
    async def slow(ctx: hf.Context) -> str:
        reached.set()
        await may_end.wait()
        return "done"

    await queue(path, ["one"])
    forbid(path, "UPDATE OF owner ON hf_runs WHEN NEW.owner IS NOT NULL")
    store = await SqliteStore.open(str(path), synchronous="OFF")
    async with hf.open(store, hf.App(tale, slow, version="1")) as runtime, asyncio.timeout(3 * _WAIT_SECONDS):
        run = await runtime.start(slow)
        await reached.wait()
        waiting = asyncio.ensure_future(run.result(timeout=_WAIT_SECONDS))
        with pytest.raises(StoreRefused, match="forbidden"):
            await (await runtime.get(key="one")).result(timeout=_WAIT_SECONDS)
        may_end.set()
        assert await waiting == "done"


# Rows that cannot be read


async def test_a_page_of_ended_runs_that_cannot_be_read_keeps_no_other_run_waiting(tmp_path: Path) -> None:
    """The look through the rows comes upon it at every start; the runs that are due are driven all the same."""
    path = tmp_path / "store.db"
    async with opened(path) as runtime:
        await asyncio.gather(*(runtime.run(tale, f"ended {number}", key=f"ended {number}") for number in range(40)))
    await queue(path, ["due"])
    [[run]] = tamper.query(path, "SELECT run FROM hf_runs WHERE key = 'ended 3'")
    break_page(path, run, b"tale")
    assert await answer(path, "due") == "due"


async def test_a_run_whose_journal_is_on_an_unreadable_page_is_set_aside_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damage is no fault of the program's: one line says it, and drawing stacks holds up no other run."""
    path = tmp_path / "store.db"
    await queue(path, ["one"])
    break_page(path, b"RunStarted", b"")
    with pytest.raises(hf.RunError, match="quarantined: damaged: driving it failed again and again: StoreRefused"):
        await answer(path, "one")
    said = capsys.readouterr().err
    assert "the run cannot be read" in said
    assert "Traceback" not in said


def break_page(path: Path, what: bytes, beside: bytes) -> None:
    """Make a table's page unreadable that has something, with something else not far behind it."""
    [[page_bytes]] = tamper.query(path, "PRAGMA page_size")
    raw = bytearray(path.read_bytes())
    # A leaf of a table begins with 13.
    places = [place for place in _places(raw, what) if beside in raw[place : place + 60]]
    page = next(place // page_bytes * page_bytes for place in places if raw[place // page_bytes * page_bytes] == 13)
    raw[page] = 77
    path.write_bytes(raw)


def _places(raw: bytearray, what: bytes) -> Iterator[int]:
    place = raw.find(what)
    while place >= 0:
        yield place
        place = raw.find(what, place + 1)
