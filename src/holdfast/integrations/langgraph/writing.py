"""The write side of threads: a checkpoint becomes what it adds to its parent, in one change of its thread's shelf."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP

from holdfast.core.errors import Conflict
from holdfast.integrations.langgraph.coding import Coder
from holdfast.integrations.langgraph.delta import Held, follow
from holdfast.integrations.langgraph.reading import Found, Reader
from holdfast.integrations.langgraph.row import (
    CheckpointRow,
    Place,
    WriteRow,
    item,
    new_value_key,
    run_shelf,
    thread_key,
    thread_shelf,
    write_key,
)
from holdfast.store.shelf import Arrangement, Item

_INLINE_BYTES: Final = 64
"""A value up to this size stands in the checkpoint itself: naming it would take as much."""
_MOST_KNOWN: Final = 4096


class NewCheckpoint(NamedTuple):
    """A checkpoint to store."""

    place: Place
    id: str
    parent: str | None
    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    changed: Mapping[str, Any]
    """The channels that have another version than in the parent."""
    follows: bool
    """True when it continues what was the latest one when it was read."""


class _Known(NamedTuple):
    """What a stored checkpoint says of its values."""

    row: CheckpointRow
    versions: Mapping[str, Any]


class _Values(NamedTuple):
    """How a checkpoint's values are stored."""

    stored: dict[str, bytes]
    inline: dict[str, tuple[str, bytes]]
    items: list[Item]
    held: list[tuple[Held, bytes | None]]
    """The bodies that are new, each with the key of the one that it follows."""
    there: set[bytes]
    """The values of others that it relies on."""


class Lately(OrderedDict[Any, Any]):
    """What was lately known, bounded in number."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.move_to_end(key)
        if len(self) > _MOST_KNOWN:
            self.popitem(last=False)


class Writer:
    """Writes the threads of one tenant."""

    def __init__(self, reader: Reader) -> None:
        self._reader, self._shelves, self._tenant = reader, reader.shelves, reader.tenant
        self._known = Lately()
        self._indexed = Lately()
        self._unbegun = Lately()
        """How often a thread was looked for and not found: whoever did may begin it."""
        self._led = Lately()
        """Checkpoints that were the latest of their thread when they were put: what continues them follows too."""

    def saw_nothing(self, place: Place) -> None:
        """Remember that a thread had not begun when somebody asked for its latest checkpoint."""
        if not place.ns:
            self._unbegun[place.thread] = self._unbegun.get(place.thread, 0) + 1

    def goes_back(self, place: Place, checkpoint: str) -> None:
        """Remember that somebody asked for this checkpoint by its id, and so may go on from it whatever came since."""
        self._led.pop((place.thread, checkpoint), None)

    async def put(self, new: NewCheckpoint, coder: Coder) -> None:
        """Store a checkpoint; it is on disk when this returns.

        Raises:
            Conflict: it continues what was the latest checkpoint of its thread, and is not any more.
            InvalidValue: a value cannot be stored and read again.
        """
        last = self._last(new)
        if last is not None and new.parent is not None and new.id <= new.parent:
            raise Conflict(
                f"checkpoint {new.id} of thread {new.place.thread!r} would stand before its parent {new.parent}",
                hint="Ids follow the clock of whoever makes them: this machine's clock is behind another's.",
            )
        await self._index_run(new)
        known = await self._parent(new)
        if not await self._try(new, coder, known, last):
            await self._refuse_if_moved(new, last)
            # A value that it was to build on was removed meanwhile: it is written whole.
            if not await self._try(new, coder, None, last):
                await self._refuse_if_moved(new, last)
                raise Conflict(f"thread {new.place.thread!r} is being removed by somebody else")
        if last is not None:
            self._led[new.place.thread, new.id] = True

    def _last(self, new: NewCheckpoint) -> tuple[bytes, bytes | None] | None:
        """Return which checkpoint must be the latest; None where it may branch off.

        Namespaces of subgraphs are written by who drives the graph, whose own checkpoints decide.
        """
        if new.place.ns:
            return None
        thread = new.place.thread
        if new.parent is None:
            if not (count := self._unbegun.pop(thread, 0)):
                return None
            if count > 1:
                self._unbegun[thread] = count - 1
            return new.place.prefix, None
        if new.follows or (thread, new.parent) in self._led:
            return new.place.prefix, new.place.key(new.parent)
        return None

    async def _refuse_if_moved(self, new: NewCheckpoint, last: tuple[bytes, bytes | None] | None) -> None:
        latest = await self._reader.find(new.place, None)
        if last is not None and (new.place.key(latest.checkpoint) if latest is not None else None) != last[1]:
            raise Conflict(
                f"thread {new.place.thread!r} was continued elsewhere: its latest checkpoint is "
                f"{latest.checkpoint if latest is not None else 'gone'}, not {new.parent or 'none'}",
                hint="Nothing was written. Run it again: it goes on from what the thread is now.",
            )

    async def _parent(self, new: NewCheckpoint) -> _Known | None:
        if new.parent is None:
            return None
        known: _Known | None = self._known.get((new.place, new.parent))
        if known is None and (found := await self._reader.find(new.place, new.parent)) is not None:
            known = _Known(found.row, {})
        return known

    async def _index_run(self, new: NewCheckpoint) -> None:
        """Say on the run's own shelf that it wrote to the thread, before it does: `delete_for_runs` looks there."""
        run = new.metadata.get("run_id")
        if isinstance(run, str) and run and (run, new.place.thread) not in self._indexed:
            await self.index(run, new.place.thread)

    async def index(self, run: str, thread: str) -> None:
        """Say that a run wrote to a thread."""
        change = Arrangement(add=[Item(thread_key(thread), b"")])
        await self._shelves.arrange(self._tenant, run_shelf(run), change)
        self._indexed[run, thread] = True

    def forget(self, thread: str) -> None:
        """Forget what is known of a thread that was removed."""
        for known in [key for key in self._indexed if key[1] == thread]:
            del self._indexed[known]

    async def _try(
        self, new: NewCheckpoint, coder: Coder, known: _Known | None, last: tuple[bytes, bytes | None] | None
    ) -> bool:
        place = new.place
        values = await self._values(new, coder, known)
        bare = {name: value for name, value in new.checkpoint.items() if name != "channel_values"}
        run = new.metadata.get("run_id")
        row = CheckpointRow(
            new.parent,
            run if isinstance(run, str) else None,
            coder.dumps(f"a checkpoint of thread {place.thread!r}", bare),
            coder.dumps(f"the metadata of a checkpoint of thread {place.thread!r}", dict(new.metadata)),
            values.stored,
            values.inline,
            sorted(new.metadata.get("counters_since_delta_snapshot") or ()),
        )
        change = Arrangement(last=last, there=sorted(values.there), put=[*values.items, item(place.key(new.id), row)])
        if not await self._shelves.arrange(self._tenant, thread_shelf(place.thread), change):
            return False
        for held, instead in values.held:
            self._reader.bodies.keep(place.thread, held, instead=instead)
        self._known[place, new.id] = _Known(row, dict(new.checkpoint["channel_versions"]))
        if new.parent is not None:
            self._known.pop((place, new.parent), None)
        return True

    async def _values(self, new: NewCheckpoint, coder: Coder, known: _Known | None) -> _Values:
        values = _Values({}, {}, [], [], set())
        for channel, value in new.checkpoint["channel_values"].items():
            if known is not None and _is_unchanged(new, known, channel):
                if channel in known.row.inline:
                    values.inline[channel] = known.row.inline[channel]
                else:
                    values.stored[channel] = known.row.stored[channel]
                    values.there.add(known.row.stored[channel])
            else:
                key = known.row.stored.get(channel) if known is not None else None
                base = await self._reader.held(new.place.thread, key) if key is not None else None
                _store(values, new.place, channel, value, coder, base)
        return values

    async def put_writes(
        self, place: Place, checkpoint: str, writes: Sequence[tuple[str, Any]], coder: Coder, task: str, path: str
    ) -> None:
        """Store what a task wrote; written again, the first stands, but for errors, interrupts and answers to them."""
        items = [
            item(
                write_key(place, checkpoint, task, WRITES_IDX_MAP.get(channel, index)),
                WriteRow(task, path, channel, *coder.dumps(_what(place.thread, channel), value)),
            )
            for index, (channel, value) in enumerate(writes)
        ]
        replaces = all(channel in WRITES_IDX_MAP for channel, _ in writes)
        change = Arrangement(put=items) if replaces else Arrangement(add=items)
        await self._shelves.arrange(self._tenant, thread_shelf(place.thread), change)

    def remember(self, found: Found, versions: Mapping[str, Any]) -> None:
        """Keep what a checkpoint that was read says of its values: the next one is likely to build on it."""
        self._known[found.place, found.checkpoint] = _Known(found.row, dict(versions))


def _is_unchanged(new: NewCheckpoint, known: _Known, channel: str) -> bool:
    version = new.checkpoint["channel_versions"].get(channel)
    is_same = version is not None and known.versions.get(channel) == version
    return is_same and channel not in new.changed and (channel in known.row.stored or channel in known.row.inline)


def _store(values: _Values, place: Place, channel: str, value: Any, coder: Coder, base: Held | None) -> None:
    """Add a value that may have changed, as what it adds to `base`."""
    what = _what(place.thread, channel)
    encoded = coder.encode(what, value)
    if base is not None and base.is_same(encoded):
        values.stored[channel] = base.link.key
        values.there.add(base.link.key)
        return
    if sum(map(len, encoded.pieces)) <= _INLINE_BYTES:
        coder.look(what, value, encoded)
        values.inline[channel] = encoded.kind, coder.whole(encoded)
        return
    key = new_value_key(place.ns, channel)
    row, held = follow(base, encoded, key)
    coder.look(what, value, encoded, row.stretch)
    values.stored[channel] = key
    values.items.append(item(key, row))
    values.held.append((held, base.link.key if base is not None else None))
    if row.base is not None:
        values.there.add(row.base)


def _what(thread: str, channel: str) -> str:
    return f"channel {channel!r} of thread {thread!r}"
