"""What was said in a conversation: the messages of its turns, in order, each read from its own journal."""

from collections import OrderedDict
from collections.abc import Sequence, Set
from contextlib import suppress
from itertools import takewhile
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.checksum import ZERO, check_chain
from holdfast.core.cursor import START, Cursor
from holdfast.core.entry import read_entry
from holdfast.core.errors import Damaged, NotFound
from holdfast.core.ids import RunId
from holdfast.core.message import Message
from holdfast.core.status import Status
from holdfast.core.transcript import Transcript
from holdfast.store.protocol import Store
from holdfast.store.value import RunRow


class Place(Struct, frozen=True):
    """A conversation, up to the turn that is asked for."""

    tenant: str
    conversation: str
    turn: int | None = None
    """Only what was said before this turn; None: all."""


class History(Struct, frozen=True):
    """What was said, and the phase that it came to; nothing where its agent has none."""

    messages: list[Message]
    phase: str = ""


class _Said(Struct, frozen=True):
    """What one turn said."""

    messages: Sequence[Message] = ()
    phase: str = ""
    compacted: bool = False
    """True where a summary in it stands for all that was said before."""
    size: int = 0


class _Past(Struct, frozen=True):
    """What was said in the first turns of a conversation; once all have ended it changes only if one is deleted."""

    messages: Sequence[Message] = ()
    phase: str = ""
    up_to: int = 0
    """The number of the last of these turns."""
    turns: int = 0
    """How many they were: numbers are not given again, so as many are the same ones."""
    size: int = 0

    def then(self, rows: Sequence[RunRow], said: Sequence[_Said]) -> "_Past":
        """Return it with the turns that follow."""
        messages, phase, size = list(self.messages), self.phase, self.size
        for one in said:
            if one.compacted:
                messages, size = [], 0
            messages += one.messages
            phase = one.phase or phase
            size += one.size
        return _Past(messages, phase, (rows[-1].turn or 0) if rows else self.up_to, self.turns + len(rows), size)


class _Kept:
    """The pasts of the conversations that were asked for last, within a bound."""

    def __init__(self) -> None:
        self._pasts: OrderedDict[tuple[str, str], _Past] = OrderedDict()
        self._bytes = 0

    def find(self, place: Place) -> _Past:
        """Return what is known to have been said before a place; nothing where nothing is."""
        known = self._pasts.get((place.tenant, place.conversation))
        return known if known is not None and (place.turn is None or known.up_to < place.turn) else _Past()

    def keep(self, place: Place, past: _Past) -> None:
        """Remember a past, and forget others where there is no room."""
        name = place.tenant, place.conversation
        self._bytes -= self._pasts.pop(name, _Past()).size
        if past.size > limits.HISTORY_BYTES:
            return
        self._pasts[name] = past
        self._bytes += past.size
        while self._bytes > limits.HISTORY_BYTES:
            _, gone = self._pasts.popitem(last=False)
            self._bytes -= gone.size


_KEPT: Final["WeakKeyDictionary[Store, _Kept]"] = WeakKeyDictionary()


async def earlier(store: Store, tenant: str, conversation: str, turn: int | None = None) -> History:
    """Return what was said in the turns before one, or in all of them.

    A turn that failed or was cancelled says what it committed, its loose calls answered by what is known of them. One
    that was tried again by a later one says nothing: that has its words. Turns that have ended are read once in a
    process, as far as there is room for them.

    Raises:
        Damaged: an entry of a turn is missing or altered.
        UnknownEntry: a newer Holdfast wrote one.
    """
    place, kept = Place(tenant, conversation, turn), _KEPT.setdefault(store, _Kept())
    past = kept.find(place)
    if past.turns and await store.count_turns(tenant, conversation, past.up_to) != past.turns:
        past = _Past()  # one of them was deleted
    rows = await _turns(store, place, past.up_to)
    replaced = await _replaced(store, rows)
    if replaced and past.turns:
        past, rows = _Past(), await _turns(store, place, 0)
        replaced = await _replaced(store, rows)
    silent = {row.run for row in rows if row.fence == 0 or row.run in replaced or row.turn == turn}
    said = await _said(store, rows, silent)
    over = sum(1 for _ in takewhile(lambda row: row.status.terminal and row.turn != turn, rows))
    if not any(one.compacted for one in said[over:]):  # else what came before was not read
        kept.keep(place, past.then(rows[:over], said[:over]))
    told = past.then(rows, said)
    return History(list(told.messages), told.phase)


async def _turns(store: Store, place: Place, after: int) -> list[RunRow]:
    """Return the turns behind one, up to the one that is asked for, in order."""
    rows: list[RunRow] = []
    while True:
        page = await store.turns(place.tenant, place.conversation, after=(rows[-1].turn or 0) if rows else after)
        rows += [row for row in page if place.turn is None or (row.turn or 0) <= place.turn]
        if len(rows) == 0 or not page or rows[-1] is not page[-1]:
            return rows


async def _replaced(store: Store, rows: Sequence[RunRow]) -> set[RunId]:
    """Return the runs that were tried again by one of these turns, once that has begun.

    One that was ever claimed has begun, whatever its status says while it is driven for the first time.
    """
    replaced: set[RunId] = set()
    for fork in await store.forks([row.run for row in rows if row.fence > 0]):
        with suppress(NotFound):
            begun_with = await store.read(fork, START, chunks=False, limit=1)
            # All that it goes back to: a fork between them may have been deleted.
            replaced |= {share.run for share in begun_with.shares}
    return replaced


async def _said(store: Store, rows: Sequence[RunRow], silent: Set[RunId]) -> Sequence[_Said]:
    """Return what turns said; those before a summary are not read, since that stands for them."""
    said = [_Said()] * len(rows)
    for place, row in reversed(list(enumerate(rows))):
        if row.run not in silent:
            said[place] = await _read_if_there(store, row)
        if said[place].compacted:
            break
    return said


async def _read_if_there(store: Store, row: RunRow) -> _Said:
    """Return what a turn said; nothing of one that was deleted since the turns were listed, which is not missed."""
    try:
        return await _read(store, row)
    except NotFound:
        if await store.get(row.run) is not None:
            raise
        return _Said()


async def _read(store: Store, row: RunRow) -> _Said:
    if row.damage:
        raise Damaged(run=row.run, seq=None, what=row.damage)
    transcript, cursor, head, size = Transcript(), START, ZERO, 0
    while True:
        page = await store.read(row.run, cursor, chunks=False)
        head = check_chain(row.run, head, page.entries, cursor.seq, page.shares)
        for stored in page.entries:
            entry = read_entry(row.run, stored)
            size += len(stored.body)
            transcript.take(entry, await _body(store, row.tenant, entry))
        cursor = Cursor(cursor.seq + len(page.entries))
        if not page.more:
            break
    if row.status.terminal and head != row.head:
        raise Damaged(run=row.run, seq=cursor.seq, what="its journal does not end as its row says")
    if row.status is Status.QUARANTINED:
        # It is over for those behind it, and no call may hang loose.
        transcript.take(e.RunFinished(status=Status.FAILED))
    return _Said(transcript.messages, transcript.phase, transcript.compacted, size)


async def _body(store: Store, tenant: str, entry: e.Entry) -> bytes | None:
    """Return the value of an entry that says something, where it stands in a blob."""
    blob = entry.blob if isinstance(entry, e.RunStarted | e.MessageAdded | e.HistoryCompacted) else None
    return await store.blob(tenant, blob.digest) if blob is not None else None
