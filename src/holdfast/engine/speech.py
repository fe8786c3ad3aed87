"""Steps whose result is a message: what it says, where it stands in the journal, and how it is read again."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from holdfast.core import entry as e
from holdfast.core.codec import NULL, Codec
from holdfast.core.errors import Damaged, InvalidValue, NotFound
from holdfast.core.message import Message, Part, Role
from holdfast.core.transcript import PARTS, read_message
from holdfast.engine.drive import Drive
from holdfast.engine.effects import StepCall
from holdfast.engine.function import StepCode
from holdfast.engine.payload import store_value
from holdfast.journal import replay as r
from holdfast.store.value import NewBlob

Usage = dict[str, int | None]
_TEXT: Final = Codec(str)


class Speech(Struct, frozen=True):
    """What a step came to, to be kept as a message."""

    role: Role
    parts: Sequence[Part]
    native: Raw = NULL
    provider: str = ""
    model: str = ""
    usage: Usage | None = None
    blobs: Sequence[NewBlob] = ()
    """Of values that the parts name."""
    up_to: int | None = None
    """Where it is no message, but the summary of all that stands up to this entry."""
    phase: str = ""
    """Of a summary: the phase that what it replaces had come to."""


class Said(Struct, frozen=True):
    """A message that stands in the journal: where, and what it says."""

    seq: int
    message: Message
    inline: bool = True
    """False when its parts stand in a blob."""


Shape = Callable[[Any], Speech]
"""Makes a message of what a step returned; what it is given was performed, so it may not fail."""
Wasted = Callable[[BaseException], Usage | None]
"""Says what a failed attempt took."""
Draws = Callable[[], Mapping[str, int]]
"""Says what an attempt may take of the run's budget, by channel."""


class MessageCall(StepCall):
    """A step whose result is a message."""

    __slots__ = ("shape", "spent", "tells")

    def __init__(self, drive: Drive, code: StepCode, keywords: dict[str, Any], key: str, digest: str) -> None:
        super().__init__(drive, code, (), keywords, key, digest)
        self.shape: Shape | None = None
        self.spent: Wasted | None = None
        self.tells: tuple[type[Exception], ...] = ()
        """What it may raise that is a result all the same: it is shaped like one."""

    async def answer(self, answer: r.Answer) -> Any:
        if isinstance(answer, r.Spoken):
            await self.drive.replayed()
            return await loaded(self.drive, answer.entry)
        return await super().answer(answer)

    async def _call(self, attempt: int) -> Any:
        try:
            return await super()._call(attempt)
        except self.tells as told:
            return told

    def closed(self, value: Any, attempt: int) -> tuple[e.Entry, Sequence[NewBlob], Any]:
        assert self.shape is not None
        usage = self.usage
        speech = self.shape(value)
        if speech.usage is not None:
            usage = {**(usage or {}), **speech.usage}
        if speech.up_to is not None:
            return self._compacted(speech, speech.up_to, attempt, usage)
        entry, blobs, said = written(self.drive, self.key, speech)
        entry = msgspec.structs.replace(entry, attempt=attempt, usage=usage)
        return entry, blobs, Later(entry, said)

    def _compacted(
        self, speech: Speech, up_to: int, attempt: int, usage: Usage | None
    ) -> tuple[e.Entry, Sequence[NewBlob], str]:
        text = Message(speech.role, tuple(speech.parts)).text
        raw, blob, blobs, summary = store_value(_TEXT, text, f"the summary of {self.key}", self.drive.secrets)
        entry = e.HistoryCompacted(
            up_to=up_to, step=self.key, raw=raw, blob=blob, attempt=attempt, usage=usage, phase=speech.phase
        )
        return entry, blobs, summary

    async def perform(self, attempt: int, started_at: int) -> Any:
        back = await super().perform(attempt, started_at)
        return back.said() if isinstance(back, Later) else back

    def wasted(self, error: BaseException) -> Usage | None:
        spent = self.spent(error) if self.spent is not None else None
        return {**(super().wasted(error) or {}), **(spent or {})} or None


class Later:
    """A message whose number is known once it is written."""

    __slots__ = ("_entry", "_message")

    def __init__(self, entry: e.MessageAdded, message: Message) -> None:
        self._entry, self._message = entry, message

    def said(self) -> Said:
        """Return it as it stands in the journal."""
        return Said(self._entry.seq, self._message, self._entry.blob is None)


def written(drive: Drive, key: str, speech: Speech) -> tuple[e.MessageAdded, Sequence[NewBlob], Message]:
    """Return the entry of a message, the blobs that go with it, and the message as a replay will read it."""
    raw, blob, blobs, parts = store_value(PARTS, list(speech.parts), f"the message of {key}", drive.secrets)
    own = bytes(speech.native)
    # The very default where there is none, so that the entry does not hold it.
    native = NULL if own == bytes(NULL) else Raw(drive.secrets.redact(own))
    entry = e.MessageAdded(
        role=speech.role, step=key, raw=raw, blob=blob, native=native, provider=speech.provider, model=speech.model
    )
    return entry, (*speech.blobs, *blobs), Message(speech.role, tuple(parts), native, speech.provider)


async def loaded(drive: Drive, entry: e.MessageAdded) -> Said:
    """Return the message of an entry.

    Raises:
        Damaged: it is not as it was stored; the run is refused for it.
    """
    row = drive.lease.row
    try:
        body = await drive.answer(drive.store.blob(row.tenant, entry.blob.digest)) if entry.blob is not None else None
        return Said(entry.seq, read_message(entry, body), entry.blob is None)
    except (Damaged, NotFound, InvalidValue) as error:
        raise drive.refuse(Damaged(run=row.run, seq=entry.seq, what=f"{entry.step}: {error}")) from error
