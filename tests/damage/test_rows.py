"""A row that is not what was written: its run is set aside by name, and the others go on."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import holdfast as hf
from holdfast.core.errors import Damaged
from holdfast.store.sqlite import SqliteStore
from tests.damage import specimen, tamper
from tests.damage.conftest import Specimen
from tests.damage.specimen import APP, BOUND_SECONDS, INPUTS, judge

TABLES: Final = (
    "hf_runs", "hf_entries", "hf_blobs", "hf_blob_refs", "hf_posts", "hf_keys", "hf_workers", "hf_store",
)  # fmt: skip
SEED: Final = 20261115


async def test_the_specimen_itself_tells_the_truth(original: Specimen, fresh: Callable[[], Path]) -> None:
    """What the tests below compare with: undamaged, every run gives its answer and verify is silent."""
    said = await judge(fresh(), original.ids)
    assert said.wrong == []
    assert (set(said.same), said.named, said.refused, said.findings) == (set(INPUTS), {}, "", [])


@pytest.mark.parametrize("table", TABLES)
async def test_a_change_of_any_kind_in_any_column_is_harmless_or_named(
    original: Specimen, fresh: Callable[[], Path], table: str
) -> None:
    """P7: a damaged row stops its own run with its name, before any new effect, and touches no other run."""
    flips = tamper.of_every_kind(original.path, table, seed=SEED)
    applied = 0
    for flip in flips:
        path = fresh()
        if not flip.apply(path):
            continue
        applied += 1
        said = await judge(path, original.ids)
        assert said.wrong == [], str(flip)
        assert len(said.named) <= (2 if flip.column == "run" else 1), str(flip)
        assert said.refused == "" or table == "hf_store", str(flip)
        assert set(said.same) | set(said.named) == set(INPUTS) or said.refused, str(flip)
    assert applied >= len(flips) // 2


@pytest.mark.parametrize("column", ["kind", "version", "at", "enc", "body", "checksum"])
async def test_verify_names_the_run_and_the_entry_that_was_changed(
    original: Specimen, fresh: Callable[[], Path], column: str
) -> None:
    """`verify` points at the entry itself, not somewhere behind it."""
    numbers = dict(tamper.query(original.path, "SELECT number, lower(hex(run)) FROM hf_runs"))
    for flip in tamper.of_every_kind(original.path, "hf_entries", seed=SEED + 1, bits=1):
        if flip.column != column:
            continue
        path = fresh()
        assert flip.apply(path)
        [[run, seq]] = tamper.query(path, "SELECT run, seq FROM hf_entries WHERE id = ?", [flip.where[0][1]])
        said = await judge(path, original.ids)
        assert said.wrong == []
        assert [(found[0] or "").replace("-", "") for found in said.findings] == [numbers[run]], str(flip)
        assert [found[1] for found in said.findings] == [seq], str(flip)


def entries_of(path: Path, key: str) -> list[tuple[int, int]]:
    """Return the ids and numbers of a run's entries."""
    return tamper.query(
        path,
        "SELECT e.id, e.seq FROM hf_entries e JOIN hf_runs r ON r.number = e.run WHERE r.key = ? ORDER BY e.seq",
        [key],
    )


def cut_tail(path: Path, key: str) -> None:
    """Take the last entry away."""
    tamper.change(path, "DELETE FROM hf_entries WHERE id = ?", [entries_of(path, key)[-1][0]])


def drop_middle(path: Path, key: str) -> None:
    """Take an entry out of the middle."""
    tamper.change(path, "DELETE FROM hf_entries WHERE id = ?", [entries_of(path, key)[1][0]])


def drop_first(path: Path, key: str) -> None:
    """Take the first entry away."""
    tamper.change(path, "DELETE FROM hf_entries WHERE id = ?", [entries_of(path, key)[0][0]])


def drop_all(path: Path, key: str) -> None:
    """Take the whole journal away."""
    for entry, _ in entries_of(path, key):
        tamper.change(path, "DELETE FROM hf_entries WHERE id = ?", [entry])


def close_gap(path: Path, key: str) -> None:
    """Take an entry out of the middle and renumber what follows."""
    drop_middle(path, key)
    for entry, seq in entries_of(path, key)[1:]:
        tamper.change(path, "UPDATE hf_entries SET seq = ? WHERE id = ?", [seq - 1, entry])


def repeat_entry(path: Path, key: str) -> None:
    """Put an entry there a second time, at the end."""
    first, last = entries_of(path, key)[1], entries_of(path, key)[-1]
    tamper.change(
        path,
        "INSERT INTO hf_entries (run, seq, kind, version, at, enc, body, checksum) "
        "SELECT run, ?, kind, version, at, enc, body, checksum FROM hf_entries WHERE id = ?",
        [last[1] + 1, first[0]],
    )


def swap_entries(path: Path, key: str) -> None:
    """Exchange two entries' places."""
    (one, one_seq), (other, other_seq) = entries_of(path, key)[1:3]
    for entry, seq in ((one, -1), (other, one_seq), (one, other_seq)):
        tamper.change(path, "UPDATE hf_entries SET seq = ? WHERE id = ?", [seq, entry])


def take_other_runs_entry(path: Path, key: str) -> None:
    """Put another run's last entry in the place of this one's."""
    mine, theirs = entries_of(path, key)[-1][0], entries_of(path, "half again")[-1][0]
    tamper.change(
        path,
        "UPDATE hf_entries SET (kind, version, at, enc, body, checksum) = "
        "(SELECT kind, version, at, enc, body, checksum FROM hf_entries WHERE id = ?) WHERE id = ?",
        [theirs, mine],
    )


def forget_last_commit(path: Path, key: str) -> None:
    """Set the row back to where it was before the last entry, checksum and all, and keep the entry."""
    [[number, head]] = tamper.query(
        path,
        "SELECT r.number, e.checksum FROM hf_runs r JOIN hf_entries e ON e.run = r.number AND e.seq = r.last_seq - 1 "
        "WHERE r.key = ?",
        [key],
    )
    tamper.change(path, "UPDATE hf_runs SET last_seq = last_seq - 1, head = ? WHERE number = ?", [head, number])
    tamper.reseal(path, number)


def lose_tail_and_reseal(path: Path, key: str) -> None:
    """Cut the tail and leave the row as it is, sealed anew: a sound row over a short journal."""
    cut_tail(path, key)
    [[number]] = tamper.query(path, "SELECT number FROM hf_runs WHERE key = ?", [key])
    tamper.reseal(path, number)


def change_head_and_reseal(path: Path, key: str) -> None:
    """Give the row another head, and seal it anew."""
    [[number]] = tamper.query(path, "SELECT number FROM hf_runs WHERE key = ?", [key])
    tamper.change(path, "UPDATE hf_runs SET head = zeroblob(16) WHERE number = ?", [number])
    tamper.reseal(path, number)


def swap_journals(path: Path, key: str) -> None:
    """Give two runs each other's entries."""
    other = "half again"
    [[one]] = tamper.query(path, "SELECT number FROM hf_runs WHERE key = ?", [key])
    [[two]] = tamper.query(path, "SELECT number FROM hf_runs WHERE key = ?", [other])
    mine, theirs = entries_of(path, key), entries_of(path, other)
    for entries, number in ((mine, -1), (theirs, one), (mine, two)):
        for entry, _ in entries:
            tamper.change(path, "UPDATE hf_entries SET run = ? WHERE id = ?", [number, entry])


DEEDS: Final = (
    cut_tail, drop_middle, drop_first, drop_all, close_gap, repeat_entry, swap_entries, take_other_runs_entry,
    forget_last_commit, lose_tail_and_reseal, change_head_and_reseal, swap_journals,
)  # fmt: skip


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("key", ["done", "failed", "half", "answered"])
async def test_a_journal_that_does_not_add_up_is_set_aside(
    original: Specimen, fresh: Callable[[], Path], deed: Callable[[Path, str], None], key: str
) -> None:
    """P2: entries are 1..N, no hole, no repeat, each bound to its run and its place, and the row knows the last."""
    path = fresh()
    deed(path, key)
    said = await judge(path, original.ids)
    assert said.wrong == []
    assert said.refused == ""
    assert original.ids[key] in [found[0] for found in said.findings]
    # Of a run that has ended only the ending is read again: it is the truth, or it is refused.
    assert key in said.named or (key in said.same and key in ("done", "failed"))
    assert set(said.named) <= ({key, "half again"} if deed is swap_journals else {key})


async def test_a_run_set_aside_for_damage_stays_so_and_can_still_be_looked_at(
    original: Specimen, fresh: Callable[[], Path]
) -> None:
    """Damage is a named state: listed with its reason, readable as far as it goes, and never driven again."""
    path = fresh()
    drop_middle(path, "half")
    for _ in range(2):
        async with hf.open(await SqliteStore.open(str(path)), APP) as runtime:
            run = await runtime.start(*_start("half"), key="half")
            with pytest.raises(hf.RunError, match="damaged") as caught:
                await run.result(timeout=BOUND_SECONDS)
            assert caught.value.status == hf.Status.QUARANTINED
            info = await run.info()
            assert (info.status, info.key) == (hf.Status.QUARANTINED, "half")
            assert info.reason.startswith("damaged")
            assert "entry 2" in info.reason
            [listed] = [each for each in await runtime.runs(status="quarantined") if each.id == run.id]
            assert listed.reason == info.reason
            with pytest.raises(Damaged) as damaged:
                async for _event in run.events():
                    pass
            assert (damaged.value.run, damaged.value.seq) == (run.id, 2)


def _start(key: str) -> tuple[Any, ...]:
    function, args = INPUTS[key]
    return (function, *args)


async def test_a_run_whose_row_is_gone_is_not_started_again_under_its_key(
    original: Specimen, fresh: Callable[[], Path]
) -> None:
    """A key outlives its run: what it stood for is not done a second time because a row was lost."""
    path = fresh()
    tamper.change(path, "DELETE FROM hf_runs WHERE key = 'done'")
    async with hf.open(await SqliteStore.open(str(path)), APP) as runtime:
        with pytest.raises(hf.Conflict, match=original.ids["done"]) as refused:
            await runtime.start(*_start("done"), key="done")
        assert "holdfast verify" in refused.value.hint
        with pytest.raises(hf.Conflict):
            await runtime.start(specimen.done, "another order", key="done")
        found = [finding.what async for finding in runtime.client.verify()]
        assert any("no row" in what for what in found)


async def test_a_payload_stored_again_does_not_rely_on_a_damaged_blob(
    original: Specimen, fresh: Callable[[], Path]
) -> None:
    """Blobs are shared by content: a new run's result is readable even if an old copy of it was damaged."""
    path = fresh()
    [[digest]] = tamper.query(
        path,
        "SELECT b.digest FROM hf_blobs b JOIN hf_blob_refs f ON f.blob = b.id JOIN hf_runs r ON r.number = f.run "
        "WHERE r.key = 'done'",
    )
    tamper.change(path, "UPDATE hf_blobs SET body = zeroblob(length(body)) WHERE digest = ?", [digest])

    @hf.durable(name="same result")
    async def same_result(ctx: hf.Context) -> Any:
        return specimen.ANSWERS["done"]

    async with hf.open(await SqliteStore.open(str(path)), hf.App(same_result)) as runtime:
        run = await runtime.start(same_result)
        assert await run.result(timeout=BOUND_SECONDS) == specimen.ANSWERS["done"]


CHANGES_WHILE_LEASED: Final = {
    "last_seq": "last_seq + 1",
    "head": "zeroblob(16)",
    "fence": "fence + 1",
    "owner": "owner + 1",
    "inbox_seq": "inbox_seq + 1",
    "name": "'other'",
    "status": "'completed'",
}


@pytest.mark.parametrize("column", CHANGES_WHILE_LEASED)
async def test_a_row_changed_under_a_running_run_never_ends_in_a_wrong_answer(tmp_path: Path, column: str) -> None:
    """The statement is the check: a commit that meets a changed row is refused, or the change is found afterwards."""
    path = tmp_path / "store.db"
    reached, go = asyncio.Event(), asyncio.Event()
    calls = []

    async def pause() -> str:
        calls.append(1)
        reached.set()
        await go.wait()
        return "paused"

    @hf.durable(name="paused")
    async def paused(ctx: hf.Context) -> str:
        return await ctx.step(pause, effect="once")

    async with (
        asyncio.timeout(3 * BOUND_SECONDS),
        hf.open(await SqliteStore.open(str(path)), hf.App(paused)) as runtime,
    ):
        run = await runtime.start(paused, key="k")
        other = await runtime.start(paused, key="other")
        await reached.wait()
        # From another process: a second opening in this one would drop the store's locks.
        sql = f"UPDATE hf_runs SET {column} = {CHANGES_WHILE_LEASED[column]} WHERE key = 'k'"
        command = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(sys.argv[2]); c.commit(); c.close()"
        changing = await asyncio.create_subprocess_exec(sys.executable, "-c", command, str(path), sql)
        assert await changing.wait() == 0
        go.set()
        assert await other.result(timeout=BOUND_SECONDS) == "paused"
        assert await _answer(run) in ("paused", "damaged", "in doubt")
    assert len(calls) == 2


async def _answer(run: hf.Run[str]) -> str:
    try:
        return await run.result(timeout=BOUND_SECONDS)
    except (hf.RunError, Damaged) as error:
        if run.id in str(error):
            return "damaged" if "damaged" in str(error) or isinstance(error, Damaged) else "in doubt"
        raise
