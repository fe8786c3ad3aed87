"""Messages of a conversation: neutral parts, and a provider's own block where it carries what cannot be rebuilt."""

from functools import cached_property
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from holdfast.core.codec import NULL
from holdfast.core.entry import BlobRef

Role = Literal["user", "assistant", "tool"]
USER: Final = "user"
ASSISTANT: Final = "assistant"
TOOL: Final = "tool"


class _Part(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag_field="kind"):
    """One piece of a message."""


class Text(_Part, frozen=True, tag="text"):
    """What is said."""

    text: str


class Reasoning(_Part, frozen=True, tag="reasoning"):
    """What the model thought before it spoke, as far as the provider shows it."""

    text: str


class ToolCall(_Part, frozen=True, tag="call"):
    """The model asks for a tool; `arguments` is the JSON text exactly as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str = "{}"


class ToolResult(_Part, frozen=True, tag="result"):
    """What the model is told of a call; a large result stands in the blob and `text` is a preview."""

    id: str
    name: str
    text: str
    error: bool = False
    blob: BlobRef | None = None


class Media(_Part, frozen=True, tag="media"):
    """An image or a document: in a blob, or where its address says."""

    mime: str
    blob: BlobRef | None = None
    url: str | None = None


Part = Text | Reasoning | ToolCall | ToolResult | Media


class Message(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """One message: its parts in order.

    `native` is the provider's own form, verbatim, kept only where the parts could not rebuild it (signatures, encrypted
    reasoning); `provider` says whose it is, and only that provider is sent it.
    """

    role: Role
    parts: tuple[Part, ...]
    native: Raw = NULL
    provider: str = ""

    @cached_property
    def json_bytes(self) -> int:
        """How long it is as JSON; worked out once, however often a conversation is sent."""
        return len(msgspec.json.encode(self))

    @property
    def text(self) -> str:
        """What is said in it, without reasoning and calls."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tools that it asks for, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class Usage(Struct, frozen=True, omit_defaults=True):
    """What a generation took; None is unknown, never nothing. `cost` is in nano-USD; `cached` is part of `input`."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    cost: int | None = None
