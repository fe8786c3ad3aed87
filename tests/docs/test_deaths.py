"""What the page of guarantees says of deaths: one table is died through, the other has tests that hold each line."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from holdfast.testing.killer import AtPoint, Killer
from tests.docs.dying import play
from tests.docs.pages import DOCS, ROOT

_TITLE: Final = "## What happens when X dies at Y"
_EFFECTS: Final = ("repeat", "keyed", "once")
_PLACES: Final = {
    "before the step is asked for": AtPoint(1, "the step is asked for"),
    "after the intent, as the effect begins": AtPoint(1, "the effect begins"),
    "inside the effect": AtPoint(1, "the effect is under way"),
    "between the effect and its result": AtPoint(1, "the result is about to be written"),
    "after the result": AtPoint(1, "the result is there"),
}
_RECOVERIES: Final = (None, AtPoint(1, "before"), AtPoint(1, "after"), AtPoint(2, "before"), AtPoint(2, "after"))
_ACTS: Final = "crash/test_kill_matrix.py::test_an_act_killed_at_any_of_its_points_ends_as_if_unbroken"
_HELD: Final[Mapping[str, Sequence[str]]] = {
    "process killed while the run waits": (
        _ACTS,
        "engine/test_waits.py::test_a_deadline_does_not_slide_when_its_worker_dies",
    ),
    "killed after a signal or an answer was sent": (
        _ACTS,
        "crash/test_fleet_posts.py::test_no_post_that_races_a_park_is_lost",
    ),
    "killed in the middle of `ctx.gather` or `ctx.map`": (
        _ACTS,
        "engine/test_branches.py::test_once_steps_of_branches_cut_by_a_death_are_each_in_doubt",
    ),
    "killed while it spawns a child": (_ACTS,),
    "killed after a cancel was accepted": (
        _ACTS,
        "engine/test_cancel_runs.py::test_a_worker_that_dies_right_after_the_cancel_leaves_the_clean_up_to_the_next",
    ),
    "process killed inside a transaction step": (
        _ACTS,
        "engine/test_transaction.py::test_a_shutdown_in_its_middle_leaves_both_or_neither",
    ),
    "power loss": ("crash/test_power_loss.py::test_nothing_acknowledged_is_lost_with_the_power",),
    "killed while the store is being made or migrated": (
        "contract/test_sqlite_opening.py::test_a_kill_before_any_statement_of_the_first_opening_leaves_a_usable_file",
        "contract/test_sqlite_opening.py::test_a_kill_before_any_statement_of_a_migration_leaves_a_usable_file",
    ),
    "process frozen, then woken": (
        "crash/test_fleet_zombies.py::test_whoever_wakes_after_being_declared_dead_writes_nothing_and_serves_again",
        "engine/test_contender.py::test_a_held_lock_is_a_sign_of_life_where_no_thread_beats",
    ),
    "the event loop blocked by your code": (
        "engine/test_pulse.py::test_the_pulse_beats_while_the_loop_is_blocked",
        "engine/test_pulse.py::test_a_blocked_loop_is_reported_once_with_the_lines_that_block_it",
    ),
    "a worker declared dead that lives": (
        "engine/test_leases.py::test_a_worker_whose_row_is_gone_works_on_under_another_id",
        "crash/test_fleet_zombies.py::test_whoever_wakes_after_being_declared_dead_writes_nothing_and_serves_again",
    ),
    "the machine started again": (
        "engine/test_lock.py::test_a_lock_of_another_boot_proves_nothing",
        "engine/test_contender.py::test_a_free_lock_is_proof_at_once",
    ),
    "disk full": ("crash/test_disk_faults.py::test_a_full_disk_is_said_and_loses_nothing",),
    "a failed sync": ("crash/test_disk_faults.py::test_a_failed_sync_loses_nothing_that_was_acknowledged",),
    "... and if that fails too": (
        "surface/test_run.py::test_a_store_that_fails_under_a_run_ends_the_command_and_tells_the_way_on",
    ),
    "an entry's bytes damaged": (
        "damage/test_rows.py::test_verify_names_the_run_and_the_entry_that_was_changed",
        "damage/test_rows.py::test_a_journal_that_does_not_add_up_is_set_aside",
    ),
    "a run's row damaged": ("damage/test_rows.py::test_a_change_of_any_kind_in_any_column_is_harmless_or_named",),
    "an index damaged": (
        "damage/test_indexes.py::test_a_run_that_an_index_lost_is_driven_all_the_same",
        "damage/test_indexes.py::test_a_run_that_its_key_knows_and_its_id_does_not_is_damaged",
    ),
    "the file is something else, or newer": (
        "contract/test_sqlite_opening.py::test_another_programs_database_is_refused_untouched",
        "contract/test_sqlite_opening.py::test_a_newer_schema_is_refused_with_what_to_do",
    ),
    "the lock folder deleted while workers live": (
        "engine/test_lock.py::test_a_missing_file_proves_nothing_and_is_not_made",
        "engine/test_lock.py::test_without_a_lock_file_only_a_silent_worker_is_given_up",
    ),
    "the clock jumps": ("crash/test_fleet_world.py::test_wrong_clocks_neither_double_a_lease_nor_ring_a_timer_early",),
}


def _tables() -> Sequence[Sequence[Sequence[str]]]:
    """Return the section's tables: the cells of their rows, without their headings."""
    text = (DOCS / "guarantees.md").read_text("utf-8").partition(_TITLE)[2].partition("\n## ")[0]
    tables: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        if not inside:
            tables.append([])
            inside = True
        tables[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
    return [table[2:] for table in tables]


def _cells() -> Mapping[tuple[str, str], str]:
    """Return the first table: where the process is killed and the step's effect, and what the page says of it."""
    rows = [(place, zip(_EFFECTS, cells, strict=True)) for place, *cells in _tables()[0]]
    return {(place, effect): cell for place, cells in rows for effect, cell in cells}


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    """A server that forks the processes that die here."""
    with Killer(preload=["tests.docs.dying"], seam="holdfast.store.point:reached") as killer:
        yield killer


def _seen(ledger: Path, called_before: int, result: str) -> str:
    """Say in the page's words what came of the step, by what was noted outside."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    calls = [line["key"] for line in lines if line["what"] == "called"]
    assert len(set(calls)) == 1, "a step has one idempotency key"
    if result == "in doubt":
        assert len(calls) == called_before, "a step in doubt is not performed again"
        return "in doubt"
    assert result == "acted"
    if len(calls) > called_before:
        return "performed" if called_before == 0 else "performed again"
    return "returned, not performed"


def _calls(ledger: Path) -> int:
    return ledger.read_text().count('"called"') if ledger.exists() else 0


@pytest.mark.parametrize("effect", _EFFECTS)
@pytest.mark.parametrize("place", _PLACES)
def test_each_cell_of_the_table_of_deaths_is_what_happens(
    killer: Killer, tmp_path: Path, place: str, effect: str
) -> None:
    """By real kills: of the process at that place, and of the next one while it recovers."""
    promised = _cells()[place, effect].removesuffix(", same idempotency key")
    for number, recovery in enumerate(_RECOVERIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert killer.run(play, str(folder), effect, die=_PLACES[place]).killed
        called = _calls(folder / "ledger")
        if recovery is not None:
            killer.run(play, str(folder), effect, die=recovery)
        result = killer.run(play, str(folder), effect).result()
        assert _seen(folder / "ledger", called, result) == promised, f"with {recovery}"


def test_the_first_table_has_every_place_and_every_effect() -> None:
    """So that no cell stands there untried."""
    assert list(_cells()) == [(place, effect) for place in _PLACES for effect in _EFFECTS]


def test_each_line_about_another_failure_is_held_by_tests_that_are_there() -> None:
    """A line that is added or reworded must name what holds it, and a test that goes takes its line along."""
    assert list(_HELD) == [row[0] for row in _tables()[1]]
    for tests in _HELD.values():
        for test in tests:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
            names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
            assert name in names, f"{test} is gone"
