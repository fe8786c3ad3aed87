"""Finding a run by its id or its key, without believing an index that damage has led astray."""

from typing import Final

import apsw
from msgspec.structs import replace

from holdfast.core.errors import Damaged
from holdfast.core.ids import RunId, id_bytes, id_text
from holdfast.store.rows import SELECT, read_row
from holdfast.store.sqlite.fetch import Row, fetch
from holdfast.store.value import RunRow

Asked = apsw.Connection | apsw.Cursor
BY_NUMBER: Final = SELECT + "NOT INDEXED WHERE r.number = ?"
# As many as a page of the index can hold, on either side.
_NEIGHBOURS: Final = """
    SELECT * FROM (SELECT run, number FROM hf_runs WHERE run >= ?1 ORDER BY run LIMIT 256)
    UNION ALL SELECT * FROM (SELECT run, number FROM hf_runs WHERE run < ?1 ORDER BY run DESC LIMIT 256)
"""


def find_run(asked: Asked, run: RunId) -> RunRow | None:
    """Return a run's row, or None if there is no such run.

    Not found and damaged are two answers: a run whose entry in the index was altered is still here.
    """
    raw = id_bytes(run)
    rows = fetch(asked, SELECT + "WHERE r.run = ?", (raw,))
    if rows and rows[0][1] == raw:
        return read_row(rows[0])
    if rows:
        row = read_row(rows[0])
        return replace(row, run=run, damage=row.damage or "the index that finds it leads to another run")
    # An altered entry stands where the right one stood, or leads past its page's others: look at the place itself.
    neighbours = fetch(asked, _NEIGHBOURS, (raw,))
    after = sum(key >= raw for key, _ in neighbours if isinstance(key, bytes))
    near = {number for _, number in (*neighbours[:1], *neighbours[after : after + 1])}
    for key, number in neighbours:
        if key == raw or number in near:
            found = fetch(asked, BY_NUMBER, (number,))
            if found and found[0][1] == raw:
                return replace(read_row(found[0]), damage="the index that finds it does not know it")
    return None


class Known:
    """A key that was used before: its run, what it stands for, and the run's row if there is one."""

    __slots__ = ("conversation", "digest", "name", "row", "run")

    def __init__(self, run: RunId, row: RunRow | None, name: str, digest: str, conversation: str | None) -> None:
        self.run, self.row, self.name, self.digest, self.conversation = run, row, name, digest, conversation


def find_key(asked: Asked, tenant: str, key: str) -> Known | None:
    """Return what a key belongs to, or None if it was never used.

    Looked up in two trees, so that damage to one does not start a second run; a sound row is believed before the
    tombstone, which has no checksum.

    Raises:
        Damaged: the key is known, but neither tree tells what it belongs to.
    """
    tombstones = fetch(
        asked, "SELECT run, name, digest, conversation FROM hf_keys WHERE tenant = ? AND key = ?", (tenant, key)
    )
    rows = fetch(asked, SELECT + "WHERE r.tenant = ? AND r.key = ?", (tenant, key))
    row = read_row(rows[0]) if rows else None
    named = _named(tombstones[0]) if tombstones else None
    if (row is None or not _is_sound(row, tenant, key)) and named is not None:
        row = find_run(asked, named) or row
    if row is not None and _is_sound(row, tenant, key):
        return Known(row.run, row, row.name, row.digest, row.conversation)
    if named is not None:
        if row is not None and row.run != named:
            row = replace(row, run=named, damage=row.damage or "its key leads to another run")
        return Known(named, row, *tombstones[0][1:])
    if tombstones or row is not None:
        raise Damaged(run=row.run if row is not None else "", seq=None, what=f"key {key!r} is known, but not its run")
    return None


def _is_sound(row: RunRow, tenant: str, key: str) -> bool:
    return not row.damage and (row.tenant, row.key) == (tenant, key)


def _named(tombstone: Row) -> RunId | None:
    raw = tombstone[0]
    return id_text(raw) if isinstance(raw, bytes) and len(raw) == 16 else None
