"""Going on from the top with another input."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Raw

from holdfast.core import entry as e
from holdfast.core.codec import Codec, decode_any
from holdfast.core.errors import Unwind
from holdfast.engine.drive import Drive
from holdfast.engine.payload import store_value
from holdfast.store.value import NewBlob

_ANY: Final = Codec(Any)


class Continued(Unwind):
    """The code goes on from the top with another input."""

    def __init__(self, body: bytes, raw: Raw, blob: e.BlobRef | None, blobs: Sequence[NewBlob]) -> None:
        super().__init__()
        self.body, self.raw, self.blob, self.blobs = body, raw, blob, blobs


def continued(drive: Drive, args: Sequence[Any]) -> Continued:
    """Return what lets the code of a run go on with these arguments, to raise.

    Raises:
        InvalidInput: they are not those of its function, or cannot be stored.
    """
    function = drive.function
    assert function is not None
    body = drive.secrets.redact(function.encode_input(function.bind(args)))
    raw, blob, blobs, _ = store_value(_ANY, decode_any(body), f"the input of {function.name}", drive.secrets)
    return Continued(body, raw, blob, blobs)
