"""Shelves: small ordered maps of bytes, for what is kept beside runs; their values, their verbs and their checksum."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from msgspec import Struct

from holdfast.core.errors import Damaged


class Item(Struct, frozen=True):
    """What a shelf holds under a key. Keys are ordered byte by byte, and none begins with the byte 0xff."""

    key: bytes
    body: bytes


class Arrangement(Struct, frozen=True, kw_only=True):
    """Everything that becomes true of a shelf at once: first what goes, then what comes."""

    last: tuple[bytes, bytes | None] | None = None
    """How keys begin, and the last of them that must be there; None: there must be none."""
    there: Sequence[bytes] = ()
    """Keys that must be there."""
    count: int | None = None
    """How many items the shelf must hold; whoever drops by what he saw relies on nothing having come since."""
    drop: Sequence[bytes] = ()
    """How the keys of items begin that are removed."""
    put: Sequence[Item] = ()
    """Items that replace what was there."""
    add: Sequence[Item] = ()
    """Items that are left out where their key has one."""


class Shelves(Protocol):
    """The shelves of one store. A verb that writes returns when it is on disk, and may be asked again."""

    async def arrange(self, tenant: str, shelf: str, change: Arrangement) -> bool:
        """Make everything in `change` true at once; the shelf begins with its first item.

        False when the shelf is not as it was seen: nothing was written. What stands already as it was to be is
        accepted, so that whoever lost the answer may ask again.
        """
        ...

    async def items(
        self, tenant: str, shelf: str, prefix: bytes, *, before: bytes | None = None, limit: int
    ) -> Sequence[Item]:
        """Return the last items whose keys begin so, below `before`, the last one first.

        Raises:
            Damaged: one of them is not as it was stored.
        """
        ...

    async def names(self, tenant: str, prefix: str, *, after: str = "", limit: int) -> Sequence[str]:
        """Return a page of the shelves whose names begin so, in order, behind `after`."""
        ...

    async def copy(self, tenant: str, shelf: str, target: str) -> bool:
        """Make a shelf with the same items; False when there is one of that name with others: nothing was written."""
        ...

    async def discard(self, tenant: str, shelf: str) -> None:
        """Remove a shelf with all its items."""
        ...


def checksum(item: Item) -> bytes:
    """Return what a row is known to be whole by; it does not name the shelf, so that a copy has the same."""
    return blake2b(item.body, digest_size=16, key=blake2b(item.key, digest_size=16).digest()).digest()


def checked(shelf: str, key: object, body: object, stored: object) -> Item:
    """Return an item that was read.

    Raises:
        Damaged: it is not as it was stored.
    """
    if isinstance(key, bytes) and isinstance(body, bytes):
        item = Item(key, body)
        if checksum(item) == stored:
            return item
    raise Damaged(run="", seq=None, what=f"an item of shelf {shelf!r} does not match its checksum")


def end_of(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with `prefix`."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else b"\xff"


def _is_as_seen(items: Mapping[bytes, bytes], change: Arrangement) -> bool:
    if change.last is not None:
        prefix, key = change.last
        if max((known for known in items if known.startswith(prefix)), default=None) != key:
            return False
    return all(key in items for key in change.there) and change.count in (None, len(items))


class MemoryShelves:
    """The shelves of a store in memory: the documentation of the others."""

    def __init__(self, held: Mapping[tuple[str, str], Mapping[bytes, bytes]] | None = None) -> None:
        self._held = {name: dict(items) for name, items in (held or {}).items()}

    def twin(self) -> "MemoryShelves":
        """Return others with the same contents."""
        return MemoryShelves(self._held)

    async def arrange(self, tenant: str, shelf: str, change: Arrangement) -> bool:
        items = dict(self._held.get((tenant, shelf), {}))
        stands = bool(change.put) and all(items.get(item.key) == item.body for item in change.put)
        if not stands and not _is_as_seen(items, change):
            return False
        for key in [key for key in items if key.startswith(tuple(change.drop))]:
            del items[key]
        items |= {item.key: item.body for item in change.put}
        items |= {item.key: item.body for item in change.add if item.key not in items}
        if items or (tenant, shelf) in self._held:
            self._held[tenant, shelf] = items
        return True

    async def items(
        self, tenant: str, shelf: str, prefix: bytes, *, before: bytes | None = None, limit: int
    ) -> Sequence[Item]:
        items = self._held.get((tenant, shelf), {})
        wanted = (key for key in items if key.startswith(prefix) and (before is None or key < before))
        return [Item(key, items[key]) for key in sorted(wanted, reverse=True)[:limit]]

    async def names(self, tenant: str, prefix: str, *, after: str = "", limit: int) -> Sequence[str]:
        of = sorted(name for owner, name in self._held if owner == tenant)
        return [name for name in of if name.startswith(prefix) and name > after][:limit]

    async def copy(self, tenant: str, shelf: str, target: str) -> bool:
        source, there = self._held.get((tenant, shelf)), self._held.get((tenant, target))
        if there is None and source is not None:
            self._held[tenant, target] = dict(source)
        return there is None or there == source

    async def discard(self, tenant: str, shelf: str) -> None:
        self._held.pop((tenant, shelf), None)
