"""Creating a run, once for its key."""

from typing import Final

from msgspec.structs import replace

from holdfast.core.ids import WorkerId, id_bytes
from holdfast.store.rows import FIXED, MOVING, first_row, fixed_of, guard, moving_of, seal
from holdfast.store.sqlite.beside import add_blobs, move_budget
from holdfast.store.sqlite.conversing import is_free, take_turn
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.lookup import find_key, find_run
from holdfast.store.value import Busy, Created, Existing, KeyTaken, Lease, NewRun, RunRow

_INSERT_RUN: Final = (
    f"INSERT INTO hf_runs ({FIXED}, {MOVING}, owner, inbox_seq, control_seq, seen_seq, inbox_sum, behind, guard) "
    f"VALUES ({', '.join('?' * (FIXED.count(',') + MOVING.count(',') + 2))}, ?, 0, 0, 0, 0, ?, ?)"
)


def create(db: Db, new: NewRun, worker: WorkerId | None, at: int) -> Created | Existing | KeyTaken | Busy:
    """Write a run and its first entry, unless its key is known."""
    wanted = new.row
    if wanted.key is not None:
        known = _known_key(db, wanted)
        if known is not None:
            return known
    if new.if_idle and not is_free(db, wanted):
        return Busy()
    number = wanted.number or db.take_number()
    if wanted.conversation is not None:
        wanted = take_turn(db, replace(wanted, number=number))
        new = replace(new, row=wanted)
    owner = db.worker_number(worker) if worker is not None and not wanted.behind else None
    row = first_row(new, number, claimed=owner is not None)
    insert_run(db, row, owner)
    if wanted.key is not None:
        db.rows(
            "INSERT INTO hf_keys (tenant, key, run, name, digest, conversation) VALUES (?, ?, ?, ?, ?, ?)",
            (wanted.tenant, wanted.key, id_bytes(wanted.run), wanted.name, wanted.digest, wanted.conversation),
        )
    db.entries.append((number, *new.first))
    if new.blobs:
        add_blobs(db, row, [new.first], new.blobs)
    if new.budget:
        move_budget(db, number, new.budget)
    if owner is None or worker is None:
        return Created(row, None)
    row = replace(row, owner=worker)
    return Created(row, Lease(row, worker, row.fence, "started", new.first))


def insert_run(db: Db, row: RunRow, owner: int | None) -> None:
    """Write the row of a new run."""
    fixed, moving = fixed_of(row), moving_of(row)
    db.rows(_INSERT_RUN, (*fixed, *moving, owner, int(row.behind), guard(seal(fixed), moving)))


def created(db: Db, new: NewRun, worker: WorkerId | None) -> Created | None:
    """Say whether a create of unknown outcome took: nobody else can have made a run of this id."""
    row = find_run(db.cursor, new.row.run)
    if row is None:
        return None
    leased = worker is not None and row.owner == worker
    return Created(row, Lease(row, worker, row.fence, "started") if leased and worker else None)


def _known_key(db: Db, wanted: RunRow) -> Existing | KeyTaken | None:
    known = find_key(db.cursor, wanted.tenant, wanted.key or "")
    if known is None:
        return None
    pairs = (("name", known.name, wanted.name), ("input", known.digest, wanted.digest))
    differs = tuple(what for what, has, wants in pairs if has != wants)
    if known.conversation != wanted.conversation:
        differs = (*differs, "conversation")
    return KeyTaken(known.run, differs) if differs else Existing(known.run, known.row)
