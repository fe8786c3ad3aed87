"""Creating a run, once for its key."""

from typing import Final

from msgspec.structs import replace

from holdfast.core.ids import WorkerId, id_bytes, id_text
from holdfast.store.protocol import Created, Existing, KeyTaken, Lease, NewRun, RunRow
from holdfast.store.sqlite.beside import add_blobs
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.rows import FIXED, MOVING, SELECT, first_row, fixed_of, guard, moving_of, read_row, seal

_INSERT_RUN: Final = (
    f"INSERT INTO hf_runs ({FIXED}, {MOVING}, owner, inbox_seq, control_seq, seen_seq, guard) "
    f"VALUES ({', '.join('?' * (FIXED.count(',') + MOVING.count(',') + 2))}, ?, 0, 0, 0, ?)"
)
_ONE: Final = SELECT + "WHERE r.run = ?"


def create(db: Db, new: NewRun, worker: WorkerId | None, at: int) -> Created | Existing | KeyTaken:
    """Write a run and its first entry, unless its key is known."""
    wanted = new.row
    if wanted.key is not None:
        known = _known_key(db, wanted)
        if known is not None:
            return known
    number = wanted.number or db.take_number()
    owner = db.worker_number(worker) if worker is not None else None
    row = first_row(new, number, claimed=owner is not None)
    fixed, moving = fixed_of(row), moving_of(row)
    db.rows(_INSERT_RUN, (*fixed, *moving, owner, guard(seal(fixed), moving)))
    if wanted.key is not None:
        db.rows(
            "INSERT INTO hf_keys (tenant, key, run, name, digest, conversation) VALUES (?, ?, ?, ?, ?, ?)",
            (wanted.tenant, wanted.key, id_bytes(wanted.run), wanted.name, wanted.digest, wanted.conversation),
        )
    db.entries.append((number, *new.first))
    if new.blobs:
        add_blobs(db, row, [new.first], new.blobs)
    if owner is None or worker is None:
        return Created(row, None)
    row = replace(row, owner=worker)
    return Created(row, Lease(row, worker, row.fence, "started", new.first))


def created(db: Db, new: NewRun, worker: WorkerId | None) -> Created | None:
    """Say whether a create of unknown outcome took: nobody else can have made a run of this id."""
    rows = db.rows(_ONE, (id_bytes(new.row.run),))
    if not rows:
        return None
    row = read_row(rows[0])
    leased = worker is not None and row.owner == worker
    return Created(row, Lease(row, worker, row.fence, "started") if leased and worker else None)


def _known_key(db: Db, wanted: RunRow) -> Existing | KeyTaken | None:
    tombstone = db.rows(
        "SELECT run, name, digest, conversation FROM hf_keys WHERE tenant = ? AND key = ?", (wanted.tenant, wanted.key)
    )
    # Looked up twice, in two trees: damage to one must not start a second run for a key.
    rows = db.rows(SELECT + "WHERE r.tenant = ? AND r.key = ?", (wanted.tenant, wanted.key))
    row = read_row(rows[0]) if rows else None
    if not tombstone and row is None:
        return None
    run, name, digest, conversation = (
        (id_text(tombstone[0][0]), *tombstone[0][1:])
        if tombstone
        else (row.run, row.name, row.digest, row.conversation)  # type: ignore[union-attr]
    )
    pairs = (("name", name, wanted.name), ("input", digest, wanted.digest))
    differs = tuple(what for what, has, wants in pairs if has != wants)
    if conversation != wanted.conversation:
        differs = (*differs, "conversation")
    return KeyTaken(run, differs) if differs else Existing(run, row)
