"""What a feed yields: entries as they were recorded, chunks of entries to come, and the end of a preview."""

from typing import Any

from msgspec import Raw, Struct, field

from holdfast.core.codec import decode_any
from holdfast.core.entry import Entry


class Chunk(Struct, frozen=True, kw_only=True):
    """A preview of an entry to come; it ends when an entry closes or retries its step."""

    id: str
    run: str
    seq: int
    at: int
    fence: int
    number: int
    step: str
    attempt: int
    offset: int
    raw: Raw = field(name="value")

    @property
    def type(self) -> str:
        """The event's name on the wire."""
        return "chunk"

    @property
    def value(self) -> Any:
        """The chunk as plain data."""
        return decode_any(self.raw)


class PreviewReset(Struct, frozen=True, kw_only=True):
    """The preview that the reader holds is of an owner who is gone: forget it. It has no id of its own."""

    run: str
    id: str = ""

    @property
    def type(self) -> str:
        """The event's name on the wire."""
        return "preview.reset"


Event = Entry | Chunk | PreviewReset
