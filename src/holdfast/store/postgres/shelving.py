"""Shelves on PostgreSQL: each change is one call of a function, and so one transaction."""

from collections.abc import Sequence
from typing import Final

from holdfast.store import point
from holdfast.store.postgres.arrays import Bytes
from holdfast.store.postgres.reading import Reader
from holdfast.store.shelf import Arrangement, Item, checked, checksum, end_of

_ARRANGE: Final = "SELECT hf_arrange($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
_ITEMS: Final = """
    SELECT key, body, checksum FROM hf_items
     WHERE shelf = (SELECT number FROM hf_shelves WHERE tenant = $1 AND shelf = $2) AND key >= $3 AND key < $4
     ORDER BY key DESC LIMIT $5
"""
_NAMES: Final = """
    SELECT shelf FROM hf_shelves WHERE tenant = $1 AND shelf > $2 AND starts_with(shelf, $3) ORDER BY shelf LIMIT $4
"""
_COPY: Final = "SELECT hf_copy_shelf($1, $2, $3)"
_DISCARD: Final = "SELECT hf_discard_shelf($1, $2)"


class PostgresShelves:
    """The shelves of one schema."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def arrange(self, tenant: str, shelf: str, change: Arrangement) -> bool:
        prefix, key = change.last if change.last is not None else (None, None)
        columns = [
            Bytes(column)
            for items in (change.put, change.add)
            for column in ([i.key for i in items], [i.body for i in items], [checksum(i) for i in items])
        ]
        drop = Bytes(change.drop), Bytes([end_of(first) for first in change.drop])
        last = prefix, end_of(prefix) if prefix is not None else None, key
        point.reached("before")
        [(done,)] = await self._reader.rows(
            _ARRANGE, [tenant, shelf, *last, Bytes(change.there), change.count, *drop, *columns]
        )
        point.reached("after")
        return bool(done)

    async def items(
        self, tenant: str, shelf: str, prefix: bytes, *, before: bytes | None = None, limit: int
    ) -> Sequence[Item]:
        end = end_of(prefix) if before is None else min(before, end_of(prefix))
        rows = await self._reader.rows(_ITEMS, [tenant, shelf, prefix, end, limit])
        return [checked(shelf, *row) for row in rows]

    async def names(self, tenant: str, prefix: str, *, after: str = "", limit: int) -> Sequence[str]:
        rows = await self._reader.rows(_NAMES, [tenant, max(after, prefix[:-1]), prefix, limit])
        return [name for (name,) in rows]

    async def copy(self, tenant: str, shelf: str, target: str) -> bool:
        [(done,)] = await self._reader.rows(_COPY, [tenant, shelf, target])
        return bool(done)

    async def discard(self, tenant: str, shelf: str) -> None:
        await self._reader.rows(_DISCARD, [tenant, shelf])
