"""Journals written by every release are read, checked and continued by this one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import events
from holdfast.core.checksum import ZERO, StoredEntry, check_chain
from holdfast.core.derive import derived_random, derived_uuid, idempotency_key
from holdfast.core.entry import KINDS, RunStarted, encode_body, read_entry
from holdfast.core.fold import RunState, fold
from holdfast.core.ids import RunId
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SqliteStore
from holdfast.store.value import Commit, Committed, Created, NewRun, RunRow
from holdfast.testing import MovingClock
from holdfast.testing.contract.story import a_worker
from tests.histories import tales
from tests.histories.make import export

HERE = Path(__file__).parent
RELEASES = sorted(path.name for path in HERE.iterdir() if (path / "journals.json").exists())
JOURNALS: dict[str, dict[str, Any]] = {
    release: json.loads((HERE / release / "journals.json").read_text("utf-8")) for release in RELEASES
}
every_release = pytest.mark.parametrize("release", RELEASES)


def rows_of(journal: dict[str, Any]) -> list[StoredEntry]:
    """Return a kept journal's rows."""
    return [
        StoredEntry(seq, kind, version, at, enc, body.encode(), bytes.fromhex(checksum))
        for seq, kind, version, at, enc, body, checksum in journal["entries"]
    ]


@pytest.fixture(autouse=True)
def nothing_performed() -> None:
    """Begin with no step performed, and let every tale through."""
    tales.performed.clear()
    tales.hurdle.set()


@pytest.fixture
def kept(tmp_path: Path, release: str) -> Path:
    """A copy of the store that a release left."""
    return Path(shutil.copy(HERE / release / "store.db", tmp_path / "store.db"))


def test_this_release_has_kept_its_journals() -> None:
    """A release without journals could not be checked by the next one."""
    assert hf.__version__ in RELEASES
    kept = {row.kind for journal in JOURNALS[hf.__version__].values() for row in rows_of(journal)}
    assert kept == {kind.__name__ for kind in tales.KINDS}


@every_release
async def test_a_kept_store_opens_and_holds_the_same_bytes(release: str, kept: Path) -> None:
    """Whatever migrations have come since, every entry is what it was, byte for byte."""
    store = await SqliteStore.open(str(kept))
    assert json.loads(json.dumps(await export(store))) == JOURNALS[release]
    await store.close()


@every_release
async def test_nothing_is_wrong_with_a_kept_store(release: str, kept: Path) -> None:
    """Rows, checksums, blobs and folds of every run add up."""
    async with hf.open(f"sqlite:///{kept}", work=False) as runtime:
        assert [finding async for finding in runtime.client.verify()] == []


@every_release
def test_every_kept_entry_is_read_and_folded(release: str) -> None:
    """The chain holds, each row is one of today's facts, and today's form of it has the same bytes."""
    for journal in JOURNALS[release].values():
        run, rows, state = RunId(journal["run"]), rows_of(journal), RunState()
        assert check_chain(run, ZERO, rows, 0).hex() == journal["head"]
        for row in rows:
            entry = read_entry(run, row)
            state = fold(state, entry)
            if row.version == KINDS[row.kind].version:
                assert encode_body(type(entry)(**own_fields(entry))) == row.body
        assert state.status == journal["status"]


def own_fields(entry: Any) -> dict[str, Any]:
    """Return the fields of an entry that stand in its body."""
    return {name: getattr(entry, name) for name in entry.__struct_fields__ if name not in ("id", "run", "seq", "at")}


DIED = "the process died before the outcome was recorded"
RESUMED: dict[str, tuple[str, list[str]]] = {
    "cancelled by its code": ("went on", ["stop"]),
    "cut in a once step": (f"step 0/send#1 may or may not have happened: {DIED}", []),
    "waiting for a person": ("sent by hand", []),
    "waiting for a retry": ("attempt 2", ["flaky"]),
    "with blobs": ("131074", ["stop"]),
}
"""How the interrupted ones end, and what is performed for it."""


@every_release
@pytest.mark.parametrize("key", RESUMED)
async def test_a_kept_run_goes_on_where_it_was_left(release: str, kept: Path, key: str) -> None:
    """What was recorded is not performed again; what was open is continued by its policy."""
    clock = MovingClock()
    clock.advance(7200)
    result, performed = RESUMED[key]
    (tale,) = [tale for tale in tales.TALES if tale.name == JOURNALS[release][key]["name"]]
    async with hf.open(await SqliteStore.open(str(kept), clock=clock), hf.App(tale, version=tales.VERSION)) as runtime:
        run = await runtime.get(key=key, of=tale)
        if key == "waiting for a person":
            await run.resolve("0/send#1", "sent by hand", by="ann")
        assert str(await run.result(timeout=20)) == result
        assert [finding async for finding in runtime.client.verify(run.id)] == []
    assert tales.performed == performed


@every_release
async def test_a_kept_run_gets_the_same_keys_ids_and_chance(release: str, kept: Path) -> None:
    """What is derived and not recorded is derived alike by every release."""
    journal = JOURNALS[release]["cut in a step"]
    started = read_entry(journal["run"], rows_of(journal)[0])
    assert isinstance(started, RunStarted)
    clock = MovingClock()
    app = hf.App(tales.ship, version=tales.VERSION)
    async with hf.open(await SqliteStore.open(str(kept), clock=clock), app) as runtime:
        run = await runtime.get(key="cut in a step", of=tales.ship)
        parts = (await run.result(timeout=20)).split("; ")
    seed = started.seed
    assert parts[0] == "350"
    assert parts[1] == idempotency_key(seed, "0/reserve#1")
    assert parts[3:5] == ["LookupError: no such street", "attempt 2"]
    chance = derived_random(seed, "0").random()
    assert parts[5] == f"2026-01-01 {chance:.12f} {derived_uuid(seed, '0/uuid#1')}"
    assert tales.performed == ["stop"]


@every_release
async def test_a_finished_journal_without_its_ending_ends_alike(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaying all recorded steps performs nothing and comes to the recorded result."""
    journal = JOURNALS[release]["finished"]
    rows = rows_of(journal)
    started, finished = read_entry(journal["run"], rows[0]), read_entry(journal["run"], rows[-1])
    assert isinstance(started, RunStarted)
    assert isinstance(finished, events.RunFinished)
    store = MemoryStore(clock=MovingClock())
    row = RunRow(
        run=RunId(journal["run"]), number=0, tenant=started.tenant, name=started.name, digest=started.digest,
        created_at=rows[0].at, updated_at=rows[0].at, key=started.key, code=started.code, due_at=rows[0].at,
    )  # fmt: skip
    created = await store.create(NewRun(row=row, first=rows[0]), worker=await a_worker(store))
    assert isinstance(created, Created)
    assert created.lease is not None
    rest = Commit(after=1, previous=rows[0].checksum, entries=rows[1:-1])
    assert await store.commit(created.lease, rest) == Committed(len(rows) - 1)
    await store.void(created.lease.worker, why="test")
    async with hf.open(store, hf.App(tales.ship, version=tales.VERSION)) as runtime:
        assert await (await runtime.get(journal["run"])).result(timeout=20) == finished.value
    assert tales.performed == []
