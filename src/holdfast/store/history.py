"""What was said in a conversation: the messages of its turns, in order, each read from its own journal."""

from collections import OrderedDict
from contextlib import suppress
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


class _Kept:
    """Turns that were read and have ended, the last used of them: a journal that has ended is named by its head."""

    def __init__(self) -> None:
        self._turns: OrderedDict[tuple[RunId, bytes], tuple[Transcript, int]] = OrderedDict()
        self._bytes = 0

    def find(self, row: RunRow) -> Transcript | None:
        """Return what a turn said, if it is known."""
        known = self._turns.get((row.run, row.head))
        if known is None:
            return None
        self._turns.move_to_end((row.run, row.head))
        return known[0]

    def keep(self, row: RunRow, transcript: Transcript, size: int) -> None:
        """Remember what a turn said, and forget others where there is no room."""
        if not row.status.terminal or size > limits.HISTORY_BYTES or (row.run, row.head) in self._turns:
            return
        self._turns[row.run, row.head] = (transcript, size)
        self._bytes += size
        while self._bytes > limits.HISTORY_BYTES:
            _, (_, gone) = self._turns.popitem(last=False)
            self._bytes -= gone


_KEPT: Final["WeakKeyDictionary[Store, _Kept]"] = WeakKeyDictionary()


async def earlier(store: Store, tenant: str, conversation: str, turn: int | None = None) -> list[Message]:
    """Return what was said in the turns before one, or in all of them.

    A turn that failed or was cancelled says what it committed, its loose calls answered by what is known of them. One
    that was tried again by a later one says nothing: that has its words.

    Raises:
        Damaged: an entry of a turn is missing or altered.
        UnknownEntry: a newer Holdfast wrote one.
    """
    told: list[list[Message]] = []
    for row in reversed(await _turns(store, Place(tenant, conversation, turn))):
        try:
            transcript = await _transcript(store, row)
        except NotFound:
            if await store.get(row.run) is not None:
                raise
            continue  # it was deleted since the turns were listed, and is not missed
        told.append(transcript.messages)
        if transcript.compacted:
            break  # a summary stands for all that came before
    return [message for messages in reversed(told) for message in messages]


async def _turns(store: Store, place: Place) -> list[RunRow]:
    """Return the turns that say something, in order."""
    rows: list[RunRow] = []
    while True:
        page = await store.turns(place.tenant, place.conversation, after=(rows[-1].turn or 0) if rows else 0)
        rows += [row for row in page if place.turn is None or (row.turn or 0) <= place.turn]
        if len(rows) == 0 or not page or rows[-1] is not page[-1]:
            break
    # One that was ever claimed has begun, whatever its status says while it is driven for the first time.
    begun = [row for row in rows if row.fence > 0]
    replaced: set[RunId] = set()
    for fork in await store.forks([row.run for row in begun]):
        with suppress(NotFound):
            begun_with = await store.read(fork, START, chunks=False, limit=1)
            # All that it goes back to: a fork between them may have been deleted.
            replaced |= {share.run for share in begun_with.shares}
    return [row for row in begun if row.run not in replaced and row.turn != place.turn]


async def _transcript(store: Store, row: RunRow) -> Transcript:
    if row.damage:
        raise Damaged(run=row.run, seq=None, what=row.damage)
    kept = _KEPT.setdefault(store, _Kept())
    known = kept.find(row)
    if known is not None:
        return known
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
    if row.status is Status.QUARANTINED:
        # It is over for those behind it, and no call may hang loose.
        transcript.take(e.RunFinished(status=Status.FAILED))
    if head == row.head:
        kept.keep(row, transcript, size)
    return transcript


async def _body(store: Store, tenant: str, entry: e.Entry) -> bytes | None:
    """Return the value of an entry that says something, where it stands in a blob."""
    blob = entry.blob if isinstance(entry, e.RunStarted | e.MessageAdded | e.HistoryCompacted) else None
    return await store.blob(tenant, blob.digest) if blob is not None else None
