"""Forks on SQLite: a run whose journal begins with another's entries, by reference."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.checksum import Share
from holdfast.core.ids import RunId, id_bytes, id_text
from holdfast.store.rows import first_row, fixed_of, guard, moving_of, seal
from holdfast.store.sqlite.beside import add_post, move_budget
from holdfast.store.sqlite.conversing import take_turn
from holdfast.store.sqlite.creating import insert_run
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import Row, fetch
from holdfast.store.sqlite.lookup import Asked, find_run
from holdfast.store.value import BaseMoved, Created, Existing, Forked, NewFork, NewRun, RunRow

_SHARES: Final = "SELECT up_to, owner, base FROM hf_lineage WHERE run = ? ORDER BY up_to"
_SHARE: Final = "INSERT INTO hf_lineage (run, up_to, owner, base, word) VALUES (?, ?, ?, ?, ?)"
_LAST: Final = "NOT EXISTS (SELECT 1 FROM hf_lineage n WHERE n.run = l.run AND n.up_to > l.up_to)"
_OF_WORD: Final = f"""
    SELECT r.run FROM hf_lineage l JOIN hf_runs r ON r.number = l.run WHERE l.owner = ? AND l.word = ? AND {_LAST}
"""
_FORKED: Final = f"""
    SELECT r.run, l.base, l.up_to, l.word FROM hf_lineage l JOIN hf_runs r ON r.number = l.run
     WHERE l.owner = (SELECT number FROM hf_runs WHERE run = ?) AND {_LAST} ORDER BY r.run
"""
_FORKS: Final = f"""
    SELECT r.run, l.base, l.up_to, l.word FROM hf_runs r JOIN hf_lineage l ON l.run = r.number
     WHERE r.run IN (SELECT unhex(value) FROM json_each(?)) AND {_LAST}
"""
_UNNAME: Final = "UPDATE hf_runs SET key = NULL, guard = ? WHERE number = ?"
_MOVE_KEY: Final = "UPDATE hf_keys SET run = ? WHERE tenant = ? AND key = ?"


def fork(db: Db, new: NewFork) -> Created | Existing | BaseMoved:
    """Write a fork and what it shares, unless its base is not as it was seen."""
    base, at = find_run(db.cursor, new.base), new.first.seq - 1
    if base is None or base.damage:
        return BaseMoved()
    shares = db.rows(_SHARES, (base.number,))
    owner, owner_id = next(((o, raw) for up_to, o, raw in shares if at <= up_to), (base.number, id_bytes(base.run)))
    stands = db.rows("SELECT checksum FROM hf_entries WHERE run = ? AND seq = ?", (owner, at))
    if stands != [(new.previous,)]:
        return BaseMoved()
    known = db.rows(_OF_WORD, (owner, new.word)) if new.word is not None else []
    if known:
        run = id_text(known[0][0])
        return Existing(run, find_run(db.cursor, run))
    wanted = replace(new.row, number=db.take_number())
    if wanted.conversation is not None:
        wanted = take_turn(db, wanted)
    row = first_row(NewRun(row=wanted, first=new.first), wanted.number, claimed=False)
    if row.key is not None:
        _move_key(db, base, row)
    insert_run(db, row, None)
    for up_to, of, raw in shares:
        if up_to < at:
            db.rows(_SHARE, (row.number, up_to, of, raw, None))
    db.rows(_SHARE, (row.number, at, owner, owner_id, new.word))
    db.entries.append((row.number, *new.first))
    for post in new.posts:
        add_post(db, post, new.first.at)
    if new.budget:
        move_budget(db, row.number, new.budget)
    return Created(row, None)


def _move_key(db: Db, base: RunRow, row: RunRow) -> None:
    unnamed = replace(base, key=None)
    db.rows(_UNNAME, (guard(seal(fixed_of(unnamed)), moving_of(unnamed)), base.number))
    db.rows(_MOVE_KEY, (id_bytes(row.run), row.tenant, row.key))


def made(db: Db, new: NewFork) -> Created | None:
    """Say whether a fork of unknown outcome took: nobody else can have made a run of this id."""
    row = find_run(db.cursor, new.row.run)
    return Created(row, None) if row is not None else None


def shares_of(asked: Asked, number: int) -> tuple[list[Share], list[int]]:
    """Return what a run has of others, and the numbers of those; empty for one that is no fork."""
    # What damage made unreadable is nobody's share: the chain will not hold without it, and says where.
    rows = [row for row in fetch(asked, _SHARES, (number,)) if tuple(map(type, row)) == (int, int, bytes)]
    return [Share(up_to, id_text(raw)) for up_to, _, raw in rows], [owner for _, owner, _ in rows]


def forks(asked: Asked, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
    """Return where those of these runs begin that are forks."""
    ids = msgspec.json.encode([id_bytes(run).hex() for run in runs]).decode()
    return _read(fetch(asked, _FORKS, (ids,)))


def forked(asked: Asked, run: RunId) -> Mapping[RunId, Forked]:
    """Return the forks of a run, the oldest first."""
    return _read(fetch(asked, _FORKED, (id_bytes(run),)))


def _read(rows: Sequence[Row]) -> Mapping[RunId, Forked]:
    sound = [row for row in rows if tuple(map(type, row[:3])) == (bytes, bytes, int)]
    return {id_text(run): Forked(id_text(base), at, word) for run, base, at, word in sound}
