"""The writing end of an open checkpoint: drafts and facts go in, and come out as one commit at a time."""

import asyncio
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core import limits
from holdfast.core.checkpoint import INTERRUPTED, Record
from holdfast.core.codec import NULL, Codec, decode_any, encode
from holdfast.core.errors import Damaged, Lost, Misuse, NotFound, RunError, StoreError
from holdfast.core.post import CANCEL, Control
from holdfast.core.splice import packed, spliced, splices
from holdfast.core.status import Status
from holdfast.engine.keeper import Keeper
from holdfast.journal.journal import Journal, load
from holdfast.store.protocol import Store
from holdfast.store.value import Commit, Committed, InboxMoved, Lease, LeaseLost, NewBlob, RowChange, RunRow

_SAID: Final = 500


class Draft(NamedTuple):
    """A state of the loop that is not on disk yet."""

    messages: list[Any]
    iteration: int | None
    phase: str | None


class Ledger:
    """What an open checkpoint has on disk, and what is on its way there; its writers hold `writing`."""

    def __init__(self, keeper: Keeper, lease: Lease, checkpoint: str, codec: Codec) -> None:
        self._keeper, self._checkpoint, self._codec = keeper, checkpoint, codec
        self.store, self.lease = keeper.store, lease
        self.record = Record()
        self.stored: list[Any] = []
        self.draft: Draft | None = None
        self.writing = asyncio.Lock()
        self.over: BaseException | None = None
        """Why nothing more is taken; None while it is open."""
        self._unsure = False
        """True when a commit's fate is not known: the journal is read again before the next."""

    @property
    def latest(self) -> list[Any]:
        """The messages as they were given last, on disk or not."""
        return self.draft.messages if self.draft is not None else self.stored

    def check_open(self) -> None:
        """Refuse to go on with a checkpoint that is over here."""
        if self.over is not None:
            raise self.over

    def shut(self) -> None:
        """Take nothing more."""
        closed = Misuse(f"checkpoint {self._checkpoint!r} is closed here: open it again by its id")
        self.over = self.over or closed

    async def read(self) -> None:
        """Read the journal and make ready to append.

        Raises:
            Damaged: it does not add up.
            UnknownEntry: a newer version wrote it.
            Lost: somebody else has it.
        """
        record, lease = Record(), self.lease
        row = await load(self.store, lease.row.run, record.take)
        if (row.fence, row.owner) != (lease.fence, lease.worker):
            # It may be our own word that gave the lease up: an ending, or a rest, whose commit was not known to be one.
            if row.fence != lease.fence or row.owner is not None or record.state.status is Status.QUEUED:
                raise self._lose()
            self.shut()
        self.stored = await read_messages(self.store, row, record, self._codec)
        self.record, self.journal, self._unsure = record, Journal(self.store, lease, row), False

    async def settle(self) -> None:
        """Read the journal again if nobody knows what became of the last commit."""
        if self._unsure:
            await self.read()

    async def write(
        self, *entries: e.Entry, change: RowChange | None = None, blobs: Sequence[NewBlob] = (), **rest: Any
    ) -> bool:
        """Commit the draft, if there is one, and these entries, at once; say whether there was anything to write.

        Raises:
            StoreError: nothing is known of what the store holds now; the next write reads that first.
            Lost: the lease is gone.
            RunError: somebody asked for the end of it, which is written.
        """
        while True:
            await self.settle()
            if self.over is not None:
                if change is None:
                    raise self.over
                return True  # what was to be written here was, though nobody knew
            draft = self.draft
            saved, bodies = self._saves(draft)
            if not saved and not entries and change is None:
                self.draft = None
                return False
            try:
                outcome = await self.journal.append(
                    *saved, *entries, blobs=(*bodies, *blobs), change=change, guarded=True, **rest
                )
            except BaseException:
                self._unsure = True
                raise
            match outcome:
                case Committed():
                    self._written(draft, (*saved, *entries))
                    return True
                case InboxMoved():
                    self.journal.take_back()
                    self.journal.inbox_seq, self.journal.control_seq = outcome.inbox_seq, outcome.control_seq
                    await self._heed()
                case LeaseLost():
                    raise self._lose()
                case _:
                    self._unsure = True

    def _saves(self, draft: Draft | None) -> tuple[list[e.Entry], list[NewBlob]]:
        """Return the entries of a draft, with the blobs that go with them; none for one that changes nothing."""
        entries, blobs = list[e.Entry](), list[NewBlob]()
        if draft is None:
            return entries, blobs
        iteration, phase = draft.iteration, draft.phase
        for grown, body in packed(splices(self.stored, draft.messages), _encoded, limits.PAYLOAD_BYTES):
            raw, blob = Raw(body), None
            if len(body) > limits.INLINE_BYTES:
                blobs.append(NewBlob(sha256(body).hexdigest(), body))
                raw, blob = NULL, e.BlobRef(blobs[-1].digest, len(body))
            count = len(self.stored) + grown
            entries.append(e.CheckpointSaved(count=count, iteration=iteration, phase=phase, raw=raw, blob=blob))
        last = self.record.last
        if not entries and (last is None or (last.iteration, last.phase) != (iteration, phase)):
            raw, count = Raw(b"[]"), len(draft.messages)
            entries.append(e.CheckpointSaved(count=count, iteration=iteration, phase=phase, raw=raw))
        return entries, blobs

    def _written(self, draft: Draft | None, entries: Iterable[e.Entry]) -> None:
        for entry in entries:
            self.record.take(entry)
        self.record.saved.clear()
        if draft is not None:
            self.stored = draft.messages
        if self.draft is draft:
            self.draft = None

    async def _heed(self) -> None:
        """End a checkpoint whose end somebody asked for; what else was asked of it is its loop's own affair.

        Raises:
            RunError: it was.
        """
        run = self.lease.row.run
        asked = next((post for post in await self.store.inbox(run) if post.kind == CANCEL), None)
        if asked is None:
            return
        said = msgspec.json.decode(asked.body, type=Control)
        reason = f"cancelled: {said.reason}" if said.reason else "cancelled"
        await self.write(
            e.CancelReceived(post=asked.seq, by=said.by, reason=reason),
            e.RunFinished(status=Status.CANCELLED, reason=reason),
            change=RowChange(status=Status.CANCELLED, reason=reason, refused=self.lease.row.refused),
            consumed=(asked.seq,),
        )
        self.over = RunError(run=run, status=Status.CANCELLED, reason=reason)
        raise self.over

    def _lose(self) -> Lost:
        lost = Lost(f"another process has checkpoint {self._checkpoint!r}: nothing that this one does is saved now")
        self.over = self.over or lost
        return lost

    async def give_back(self, error: BaseException) -> None:
        """Give up the lease of a checkpoint that could not be opened; one that is damaged is set aside."""
        row, damaged = self.lease.row, isinstance(error, Damaged)
        change = RowChange(
            status=Status.QUARANTINED if damaged else Status.WAITING,
            reason=f"{error.code}: {error}"[:_SAID] if isinstance(error, StoreError) else INTERRUPTED,
            due_at=None if damaged else self.store.now(),
            refused=row.refused,
        )
        commit = Commit(after=row.last_seq, previous=row.head, entries=(), change=change, progress=False)
        try:
            await self.store.commit(self.lease, commit)
        except StoreError as again:
            self._keeper.log.warning("a checkpoint was not given back", checkpoint=self._checkpoint, error=str(again))


def _encoded(place: int, message: Any) -> bytes:
    return encode(message, f"messages[{place}]")


async def read_messages(store: Store, row: RunRow, record: Record, codec: Codec | None) -> list[Any]:
    """Return the messages that a checkpoint's saves add up to; without a codec, as plain data.

    Raises:
        Damaged: they do not.
        InvalidValue: they are not of the codec's type.
    """
    messages: list[Any] = []
    for saved in record.saved:
        try:
            body = saved.raw if saved.blob is None else await store.blob(row.tenant, saved.blob.digest)
            spliced(messages, decode_any(body))
            if len(messages) != saved.count:
                raise ValueError(f"they are {len(messages)}, and it says {saved.count}")
        except (ValueError, TypeError, NotFound, msgspec.MsgspecError) as error:
            raise Damaged(run=row.run, seq=saved.seq, what=f"its messages do not add up: {error}") from error
    record.saved.clear()
    if codec is None:
        return messages
    return [codec.decode(encode(message), f"messages[{place}]") for place, message in enumerate(messages)]
