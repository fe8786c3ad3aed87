"""Values on their way into entries: secrets taken out, large ones moved into blobs."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec
from msgspec import Raw

from holdfast.core import limits
from holdfast.core.codec import NULL, Codec, decode_any
from holdfast.core.entry import BlobRef, ErrorInfo
from holdfast.core.errors import HoldfastError, Unwind
from holdfast.store.protocol import Store
from holdfast.store.value import NewBlob

_SAID_OF_ERROR: Final = 200


class Secrets:
    """The values of the environment variables that an app named as secret; they never reach the journal."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        found = [(os.environ.get(name, ""), f"[{name}]") for name in names]
        # The longest first, so that a secret inside another leaves nothing of it.
        self._pairs = sorted(((value, mark) for value, mark in found if value), key=lambda pair: -len(pair[0]))
        self._quoted = [msgspec.json.encode(value)[1:-1] for value, _ in self._pairs]

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def redact(self, body: bytes) -> bytes:
        """Return JSON with every secret in its text replaced by its name in brackets; numbers are left alone."""
        if not any(quoted in body for quoted in self._quoted):
            return body
        return msgspec.json.encode(self._redact(decode_any(body)))

    def _redact(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, list):
            return [self._redact(item) for item in value]
        if isinstance(value, dict):
            return {self.redact_text(name): self._redact(item) for name, item in value.items()}
        return value

    def redact_labels(self, labels: Mapping[str, str]) -> Mapping[str, str]:
        """Return labels with every secret replaced; what cannot be labels is left for whoever refuses it."""
        if not self or not isinstance(labels, Mapping):
            return labels
        return {name: self.redact_text(text) if isinstance(text, str) else text for name, text in labels.items()}

    def redact_text(self, text: str) -> str:
        """Return text with every secret replaced by its name in brackets."""
        for value, mark in self._pairs:
            text = text.replace(value, mark)
        return text

    def settled(self, text: str) -> int:
        """Return how many characters of a text may be shown before it is known how it goes on.

        Behind them stands what may be the beginning of a secret, with every secret that this would cut in two.
        """
        values = [value for value, _ in self._pairs]
        begun = (length for value in values for length in range(1, len(value)) if text.endswith(value[:length]))
        end = len(text) - max(begun, default=0)
        while True:
            cut = [at for value in values if (at := text.find(value, max(0, end - len(value) + 1))) != -1 and at < end]
            if not cut:
                return end
            end = min(cut)


def store_value(
    codec: Codec, value: Any, what: str, secrets: Secrets
) -> tuple[Raw, BlobRef | None, Sequence[NewBlob], Any]:
    """Return a value's place in an entry, the blobs that go with it, and what a replay will read.

    Raises:
        InvalidValue: it is not data, or a replay would read something else.
        PayloadTooLarge: it is over the limit.
    """
    if value is None:
        # Checked like any other value: a function annotated `-> int` may not return None.
        codec.round_trip(None, what)
        return NULL, None, (), None
    body, back = codec.round_trip(value, what)
    if secrets:
        clean = secrets.redact(body)
        if clean != body:
            body, back = clean, codec.decode(clean, what)
    if len(body) <= limits.INLINE_BYTES:
        return Raw(body), None, (), back
    blob = NewBlob(sha256(body).hexdigest(), body)
    return NULL, BlobRef(blob.digest, len(body)), (blob,), back


async def load_value(store: Store, tenant: str, codec: Codec, raw: Raw, blob: BlobRef | None, what: str) -> Any:
    """Return the value that an entry holds."""
    if blob is not None:
        return codec.decode(await store.blob(tenant, blob.digest), what)
    return codec.decode(raw, what)


def error_info(error: BaseException, secrets: Secrets) -> ErrorInfo:
    """Return an error as the journal keeps it: names and text, bounded, without secrets."""
    message = secrets.redact_text(message_of(error))
    if len(message) > limits.ERROR_BYTES // 4:
        raw = message.encode()
        if len(raw) > limits.ERROR_BYTES:
            message = raw[: limits.ERROR_BYTES - 3].decode(errors="ignore") + "…"
    kind = type(error)
    # Of our own classes only: a subclass of a user's may have made anything of it.
    code = str(kind.code) if issubclass(kind, HoldfastError) else None
    return ErrorInfo(type=kind.__name__, message=message, code=code)


def raised(error: BaseException, secrets: Secrets) -> str:
    """Return the end of a sentence about code that ended by an error."""
    info = error_info(error, secrets)
    return f" by {info.type}: {info.message[:_SAID_OF_ERROR]}"


def message_of(error: BaseException) -> str:
    """Return what an error says, as text that can be stored."""
    try:
        return str(error).encode(errors="replace").decode()
    except BaseException:
        # Whatever it raises is its own: no code of ours runs in there.
        return "(the error has no readable message)"


def is_failure(error: BaseException) -> bool:
    """Say whether what came out of a user's code is the code's own failure.

    It is not when the code was unwound: by our signals, by an interrupt of the program, or by a cancellation that
    somebody asked for. A CancelledError that nobody asked for comes from something the code awaited.
    """
    if issubclass(type(error), Unwind | KeyboardInterrupt):
        return False
    if issubclass(type(error), asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() == 0
    return True
