"""Shelves in a SQLite file: each change is one op of the writer's, which shares its commit with others."""

from collections.abc import Sequence
from typing import Any, Final

from holdfast.store.shelf import Arrangement, Item, checked, checksum, end_of
from holdfast.store.sqlite.database import Db
from holdfast.store.sqlite.fetch import fetch
from holdfast.store.sqlite.reading import Reader
from holdfast.store.sqlite.writer import Do, Writer

_NUMBER: Final = "SELECT number FROM hf_shelves WHERE tenant = ? AND shelf = ?"
_BEGIN: Final = "INSERT INTO hf_shelves (tenant, shelf) VALUES (?, ?) RETURNING number"
_LAST: Final = "SELECT key FROM hf_items WHERE shelf = ? AND key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
_THERE: Final = "SELECT 1 FROM hf_items WHERE shelf = ? AND key = ?"
_COUNT: Final = "SELECT count(*) FROM hf_items WHERE shelf = ?"
_STANDS: Final = "SELECT 1 FROM hf_items WHERE shelf = ? AND key = ? AND checksum = ?"
_DROP: Final = "DELETE FROM hf_items WHERE shelf = ? AND key >= ? AND key < ?"
_ADD: Final = "INSERT INTO hf_items (shelf, key, body, checksum) VALUES (?, ?, ?, ?) ON CONFLICT (shelf, key) DO "
_PUT: Final = _ADD + "UPDATE SET body = excluded.body, checksum = excluded.checksum"
_ITEMS: Final = """
    SELECT key, body, checksum FROM hf_items
     WHERE shelf = (SELECT number FROM hf_shelves WHERE tenant = ? AND shelf = ?) AND key >= ? AND key < ?
     ORDER BY key DESC LIMIT ?
"""
_NAMES: Final = """
    SELECT shelf FROM hf_shelves WHERE tenant = ?1 AND shelf > ?2 AND substr(shelf, 1, length(?3)) = ?3
     ORDER BY shelf LIMIT ?4
"""
_COPY: Final = """
    INSERT INTO hf_items (shelf, key, body, checksum) SELECT ?, key, body, checksum FROM hf_items WHERE shelf = ?
     ORDER BY rowid
"""
_DIFFERS: Final = """
    SELECT 1 FROM hf_items WHERE shelf IN (?, ?) GROUP BY key, checksum HAVING count(*) < 2 LIMIT 1
"""
_DISCARD: Final = "DELETE FROM hf_items WHERE shelf = ?"
_END: Final = "DELETE FROM hf_shelves WHERE number = ?"


class SqliteShelves:
    """The shelves of one file."""

    def __init__(self, writer: Writer, reader: Reader) -> None:
        self._writer, self._reader = writer, reader

    async def arrange(self, tenant: str, shelf: str, change: Arrangement) -> bool:
        done: bool = await self._writer.submit(
            Do(lambda db: _arrange(db, tenant, shelf, change), settled=lambda db: _settled(db, tenant, shelf, change))
        )
        return done

    async def items(
        self, tenant: str, shelf: str, prefix: bytes, *, before: bytes | None = None, limit: int
    ) -> Sequence[Item]:
        end = end_of(prefix) if before is None else min(before, end_of(prefix))
        with self._reader.one() as connection:
            rows = fetch(connection, _ITEMS, (tenant, shelf, prefix, end, limit))
        return [checked(shelf, *row) for row in rows]

    async def names(self, tenant: str, prefix: str, *, after: str = "", limit: int) -> Sequence[str]:
        with self._reader.one() as connection:
            rows = fetch(connection, _NAMES, (tenant, max(after, prefix[:-1]), prefix, limit))
        return [name for [name] in rows]

    async def copy(self, tenant: str, shelf: str, target: str) -> bool:
        # By itself and on the writer's thread, as is the end of one: a large shelf must not hold up the event loop.
        done: bool = await self._writer.submit(Do(lambda db: _copy(db, tenant, shelf, target), alone=True))
        return done

    async def discard(self, tenant: str, shelf: str) -> None:
        await self._writer.submit(Do(lambda db: _discard(db, tenant, shelf), alone=True))


def _arrange(db: Db, tenant: str, shelf: str, change: Arrangement) -> bool:
    found = db.rows(_NUMBER, (tenant, shelf))
    number: int | None = found[0][0] if found else None
    if not _is_as_seen(db, number, change) and not _stands(db, number, change.put):
        return False
    if number is None:
        if not change.put and not change.add:
            return True
        number = db.rows(_BEGIN, (tenant, shelf))[0][0]
    for prefix in change.drop:
        db.cursor.execute(_DROP, (number, prefix, end_of(prefix)))
    db.cursor.executemany(_PUT, [_row(number, item) for item in change.put])
    db.cursor.executemany(_ADD + "NOTHING", [_row(number, item) for item in change.add])
    return True


def _is_as_seen(db: Db, number: int | None, change: Arrangement) -> bool:
    if change.last is not None:
        prefix, key = change.last
        last = db.rows(_LAST, (number, prefix, end_of(prefix)))
        if (last[0][0] if last else None) != key:
            return False
    if change.count is not None and db.rows(_COUNT, (number,)) != [(change.count,)]:
        return False
    return all(db.rows(_THERE, (number, key)) for key in change.there)


def _row(number: int, item: Item) -> tuple[Any, ...]:
    return number, item.key, item.body, checksum(item)


def _stands(db: Db, number: int | None, items: Sequence[Item]) -> bool:
    """Say whether all these items are there, as they were to be."""
    return bool(items) and all(db.rows(_STANDS, (number, item.key, checksum(item))) for item in items)


def _settled(db: Db, tenant: str, shelf: str, change: Arrangement) -> bool | None:
    found = db.rows(_NUMBER, (tenant, shelf))
    return True if found and _stands(db, found[0][0], [*change.put, *change.add]) else None


def _copy(db: Db, tenant: str, shelf: str, target: str) -> bool:
    source, there = db.rows(_NUMBER, (tenant, shelf)), db.rows(_NUMBER, (tenant, target))
    if there:
        return bool(source) and not db.rows(_DIFFERS, (source[0][0], there[0][0]))
    if source:
        [[copied]] = db.rows(_BEGIN, (tenant, target))
        db.cursor.execute(_COPY, (copied, source[0][0]))
    return True


def _discard(db: Db, tenant: str, shelf: str) -> None:
    for values in db.rows(_NUMBER, (tenant, shelf)):
        db.cursor.execute(_DISCARD, values)
        db.cursor.execute(_END, values)
