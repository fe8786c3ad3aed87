"""What a model is told of a tool's result: text as it is, anything else as JSON, and a preview of what is large."""

from hashlib import sha256
from typing import Any, Final

from msgspec import Struct

from holdfast.core import limits
from holdfast.core.codec import decode_any, encode
from holdfast.core.entry import BlobRef
from holdfast.core.errors import InvalidValue, PayloadTooLarge
from holdfast.engine.payload import Secrets
from holdfast.store.value import NewBlob

_NOTE_BYTES: Final = 200
"""Kept free of a preview for the sentence that says so."""


class Shown(Struct, frozen=True):
    """What the model is told; of a large result a preview, and the blob that holds its JSON whole."""

    text: str
    error: bool = False
    blob: NewBlob | None = None

    @property
    def ref(self) -> BlobRef | None:
        """Where the whole stands."""
        return BlobRef(self.blob.digest, len(self.blob.body)) if self.blob is not None else None


def show(tool: str, value: Any, secrets: Secrets) -> Shown:
    """Return what the model is told of a value; never more than `TOOL_RESULT_BYTES`."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = _as_text(bytes(value))
    try:
        body = secrets.redact(encode(value, "the result"))
    except PayloadTooLarge as error:
        return _too_large(value, error, secrets)
    except InvalidValue as error:
        return Shown(f"{tool} was performed, but its result cannot be told: {error}", error=True)
    blob = NewBlob(sha256(body).hexdigest(), body)
    if isinstance(value, bytes):
        return Shown(f"[{len(value)} bytes that are not text]", blob=blob)
    # Not the value itself, of which secrets may have been taken out.
    whole = decode_any(body).encode() if isinstance(value, str) else body
    if len(whole) <= limits.TOOL_RESULT_BYTES:
        return Shown(whole.decode())
    return Shown(_preview(whole, "the whole result is kept beside the journal"), blob=blob)


def show_error(text: str, secrets: Secrets) -> Shown:
    """Return what the model is told of a failure, cut like any result."""
    whole = secrets.redact_text(text).encode(errors="replace")
    if len(whole) > limits.TOOL_RESULT_BYTES:
        return Shown(_preview(whole, "it was too long"), error=True)
    return Shown(whole.decode(), error=True)


def _as_text(value: bytes) -> str | bytes:
    """Return bytes as the text that they are, if they are one."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return value
    return value if "\0" in text else text


def _preview(whole: bytes, kept: str) -> str:
    """Return the beginning of a text, cut at a character's border, and how much was left out."""
    head = whole[: limits.TOOL_RESULT_BYTES - _NOTE_BYTES].decode(errors="ignore")
    left = len(whole) - len(head.encode())
    return f"{head}\n[cut here: {left} of {len(whole)} bytes were left out; {kept}]"


def _too_large(value: Any, error: PayloadTooLarge, secrets: Secrets) -> Shown:
    if not isinstance(value, str):
        return Shown(f"The tool was performed, but its result is too large to be kept: {error}", error=True)
    whole = secrets.redact_text(value).encode()
    return Shown(_preview(whole, "the rest is too large to be kept"))
