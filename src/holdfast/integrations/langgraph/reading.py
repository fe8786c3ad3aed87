"""The read side of threads: a checkpoint with its values and writes, those that came before it, and lists of them."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from heapq import nlargest
from typing import Final, NamedTuple

from holdfast.core import limits
from holdfast.core.errors import Damaged
from holdfast.integrations.langgraph.delta import Assembly, Encoded, Held
from holdfast.integrations.langgraph.row import (
    CHECKPOINTS,
    CheckpointRow,
    Place,
    WriteRow,
    every_thread,
    index_of,
    place_of_key,
    read_checkpoint,
    read_value,
    read_write,
    thread_of,
    thread_shelf,
)
from holdfast.store.shelf import Item, Shelves

_PAGE: Final = 256
_GROWTH: Final = 8


class Found(NamedTuple):
    """A checkpoint's row, and where it stands."""

    place: Place
    checkpoint: str
    row: CheckpointRow


class Loaded(NamedTuple):
    """A checkpoint with all that belongs to it."""

    found: Found
    values: Mapping[str, Encoded]
    writes: Sequence[WriteRow]


class Past(NamedTuple):
    """What came to a channel before a checkpoint: the last value that was stored whole, and the writes since."""

    writes: Sequence[WriteRow]
    seed: Encoded | None


class Backwards:
    """Reads a shelf's items from given keys backwards, in pages that grow while one item leads to the next."""

    def __init__(self, shelves: Shelves, tenant: str, shelf: str, prefix: bytes) -> None:
        self._shelves, self._of, self._prefix = shelves, (tenant, shelf), prefix
        self._ahead: dict[bytes, Item] = {}
        self._limit = 1

    async def get(self, key: bytes) -> Item | None:
        """Return the item of a key."""
        if key not in self._ahead:
            page = await self._shelves.items(*self._of, self._prefix, before=key + b"\0", limit=self._limit)
            self._ahead = {item.key: item for item in page}
            self._limit = min(self._limit * _GROWTH, _PAGE)
        return self._ahead.pop(key, None)


class Bodies:
    """The bodies of values that were lately read or written, bounded in bytes; a value never changes."""

    def __init__(self) -> None:
        self._held: OrderedDict[tuple[str, bytes], Held] = OrderedDict()
        self._bytes = 0

    def get(self, thread: str, key: bytes) -> Held | None:
        """Return one, if it is at hand."""
        held = self._held.get((thread, key))
        if held is not None:
            self._held.move_to_end((thread, key))
        return held

    def keep(self, thread: str, held: Held, *, instead: bytes | None = None) -> None:
        """Keep one, perhaps in place of the one that it follows; the least lately used ones make room."""
        for key in (held.link.key, instead):
            if key is not None and (old := self._held.pop((thread, key), None)) is not None:
                self._bytes -= len(old.body)
        self._held[thread, held.link.key] = held
        self._bytes += len(held.body)
        while self._bytes > limits.CHANNEL_BYTES:
            _, old = self._held.popitem(last=False)
            self._bytes -= len(old.body)


class Reader:
    """Reads the threads of one tenant."""

    def __init__(self, shelves: Shelves, tenant: str) -> None:
        self.shelves, self.tenant = shelves, tenant
        self.bodies = Bodies()

    async def find(self, place: Place, checkpoint: str | None) -> Found | None:
        """Return a checkpoint's row; without an id, the latest one's."""
        prefix = place.prefix if checkpoint is None else place.key(checkpoint)
        found = await self.shelves.items(self.tenant, thread_shelf(place.thread), prefix, limit=1)
        return _found(place.thread, found[0]) if found else None

    async def load(self, place: Place, checkpoint: str | None) -> Loaded | None:
        """Return a checkpoint with its values and writes; None when there is none.

        Raises:
            Damaged: something of it is not as it was stored.
        """
        gone: Found | None = None
        while (found := await self.find(place, checkpoint)) is not None:
            if (loaded := await self.complete(found)) is not None:
                return loaded
            if found == gone:
                raise Damaged(run="", seq=None, what=f"thread {place.thread!r} has lost a channel's value")
            gone = found  # it may have been removed between the two looks
        return None

    async def complete(self, found: Found) -> Loaded | None:
        """Return a checkpoint with its values and writes; None when a value is not there."""
        values = {channel: Encoded(kind, None, [raw]) for channel, (kind, raw) in found.row.inline.items()}
        for channel, key in found.row.stored.items():
            held = await self.held(found.place.thread, key)
            if held is None:
                return None
            values[channel] = Encoded(held.kind, held.count, [held.body])
        return Loaded(found, values, await self.writes(found.place, found.checkpoint))

    async def held(self, thread: str, key: bytes) -> Held | None:
        """Return a stored value with its body; None when it was removed."""
        held = self.bodies.get(thread, key)
        if held is not None:
            return held
        rows, assembly = Backwards(self.shelves, self.tenant, thread_shelf(thread), key[:-16]), Assembly()
        below: bytes | None = key
        while below is not None:
            stored = await rows.get(below)
            if stored is None:
                return None
            below = assembly.take(below, read_value(stored))
        held = assembly.held()
        self.bodies.keep(thread, held)
        return held

    async def writes(self, place: Place, checkpoint: str) -> Sequence[WriteRow]:
        """Return what tasks wrote behind a checkpoint, in the order in which it is applied."""
        prefix, shelf = place.writes(checkpoint), thread_shelf(place.thread)
        items = [item async for item in self.all(shelf, prefix)]
        rows = [(read_write(item), index_of(item.key)) for item in items]
        return [row for row, _ in sorted(rows, key=lambda each: (each[0].path, each[0].task, each[1]))]

    async def all(self, shelf: str, prefix: bytes, *, before: bytes | None = None) -> AsyncIterator[Item]:
        """Yield every item whose key begins so, the last one first."""
        while True:
            page = await self.shelves.items(self.tenant, shelf, prefix, before=before, limit=_PAGE)
            for item in page:
                yield item
            if len(page) < _PAGE:
                return
            before = page[-1].key

    async def past(self, place: Place, checkpoint: str | None, channels: Sequence[str]) -> Mapping[str, Past]:
        """Return what came to these channels before a checkpoint, along its line of parents."""
        found = await self.find(place, checkpoint)
        rows = Backwards(self.shelves, self.tenant, thread_shelf(place.thread), place.prefix)
        written: dict[str, list[WriteRow]] = {channel: [] for channel in channels}
        seeds: dict[str, Encoded] = {}
        parent = found.row.parent if found is not None else None
        while parent is not None and len(seeds) < len(written):
            stored = await rows.get(place.key(parent))
            if stored is None:
                break
            row = read_checkpoint(stored)
            for write in reversed(await self.writes(place, parent)):
                if write.channel in written and write.channel not in seeds:
                    written[write.channel].append(write)
            for channel in written.keys() - seeds.keys():
                if (seed := await self._value(place, row, channel)) is not None:
                    seeds[channel] = seed
            parent = row.parent
        return {channel: Past(written[channel][::-1], seeds.get(channel)) for channel in channels}

    async def _value(self, place: Place, row: CheckpointRow, channel: str) -> Encoded | None:
        if channel in row.inline:
            kind, raw = row.inline[channel]
            return Encoded(kind, None, [raw])
        if channel not in row.stored:
            return None
        held = await self.held(place.thread, row.stored[channel])
        return Encoded(held.kind, held.count, [held.body]) if held is not None else None

    async def list(
        self, thread: str | None, ns: str | None, *, checkpoint: str | None, before: str | None, limit: int | None
    ) -> AsyncIterator[Found]:
        """Yield checkpoints, the newest first: of one namespace, of a thread, or of all threads."""
        if checkpoint is not None and thread is not None and ns is not None:
            found = await self.find(Place(thread, ns), checkpoint)
            if found is not None and (before is None or checkpoint < before):
                yield found
            return
        if thread is not None and ns is not None:
            place = Place(thread, ns)
            end = place.key(before) if before is not None else None
            async for item in self.all(thread_shelf(thread), place.prefix, before=end):
                yield _found(thread, item)
            return
        # Over several namespaces by their ids, so all of them have to be known before the first one is given.
        places: list[tuple[str, Place]] = []
        for shelf in [thread_shelf(thread)] if thread is not None else [each async for each in self.threads()]:
            async for item in self.all(shelf, CHECKPOINTS):
                place, known = place_of_key(thread_of(shelf), item.key)
                wanted = (ns is None or place.ns == ns) and checkpoint in (None, known)
                if wanted and (before is None or known < before):
                    places.append((known, place))
        for known, place in sorted(places, reverse=True) if limit is None else nlargest(limit, places):
            if (found := await self.find(place, known)) is not None:
                yield found

    async def threads(self) -> AsyncIterator[str]:
        """Yield the shelves of all threads."""
        after = ""
        while True:
            page = await self.shelves.names(self.tenant, every_thread(), after=after, limit=_PAGE)
            for name in page:
                yield name
            if len(page) < _PAGE:
                return
            after = page[-1]


def _found(thread: str, item: Item) -> Found:
    place, checkpoint = place_of_key(thread, item.key)
    return Found(place, checkpoint, read_checkpoint(item))
