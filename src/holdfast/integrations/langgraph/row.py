"""What a thread's shelf holds: the keys of its items, and the form of their bodies."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import uuid_utils
from msgspec import Struct

from holdfast.core import limits
from holdfast.core.errors import Damaged, InvalidInput
from holdfast.core.ids import checked_text
from holdfast.integrations.langgraph.delta import Row
from holdfast.store.shelf import Item

CHECKPOINTS: Final = b"c"
WRITES: Final = b"w"
VALUES: Final = b"v"
_THREAD: Final = "langgraph/thread/"
_RUN: Final = "langgraph/run/"
_ENCODER: Final = msgspec.msgpack.Encoder()
T = TypeVar("T")


class Place(NamedTuple):
    """Where checkpoints follow each other: a thread, and a namespace in it."""

    thread: str
    ns: str

    @property
    def prefix(self) -> bytes:
        """How the keys of its checkpoints begin."""
        return CHECKPOINTS + self.ns.encode() + b"\0"

    def key(self, checkpoint: str) -> bytes:
        """Return the key of one."""
        return self.prefix + checkpoint.encode() + b"\0"

    def writes(self, checkpoint: str) -> bytes:
        """Return how the keys of a checkpoint's writes begin."""
        return WRITES + _short(self.key(checkpoint))


class CheckpointRow(Struct, frozen=True, array_like=True):
    """A stored checkpoint, whose larger values stand by themselves."""

    parent: str | None
    run: str | None
    checkpoint: tuple[str, bytes]
    """All but its values, in the serializer's form."""
    metadata: tuple[str, bytes]
    stored: Mapping[str, bytes]
    """The keys of its channels' values."""
    inline: Mapping[str, tuple[str, bytes]]
    """Small values."""
    deltas: Sequence[str]
    """Channels of LangGraph's that are counted up from the writes since an earlier checkpoint."""


class WriteRow(Struct, frozen=True, array_like=True):
    """What a task wrote to a channel, and nobody has taken into a checkpoint yet."""

    task: str
    path: str
    channel: str
    kind: str
    value: bytes


_CHECKPOINT: Final = msgspec.msgpack.Decoder(CheckpointRow)
_WRITE: Final = msgspec.msgpack.Decoder(WriteRow)
_VALUE: Final = msgspec.msgpack.Decoder(Row)


def thread_shelf(thread: str) -> str:
    """Return the name of the shelf that a thread is kept on."""
    return _THREAD + checked_text("the thread_id", thread, limits.KEY_BYTES)


def thread_of(shelf: str) -> str:
    """Return the thread of a shelf."""
    return shelf.removeprefix(_THREAD)


def run_shelf(run: str) -> str:
    """Return the name of the shelf that says which threads a run of LangGraph's wrote to."""
    return _RUN + checked_text("the run_id", run, limits.KEY_BYTES)


def thread_key(thread: str) -> bytes:
    """Return the key of a thread on a run's shelf; no other begins with it."""
    return thread.encode() + b"\0"


def thread_of_key(key: bytes) -> str:
    """Return the thread of such a key."""
    return key[:-1].decode()


def every_thread() -> str:
    """Return how the names of threads' shelves begin."""
    return _THREAD


def checked_id(what: str, text: Any) -> str:
    """Return a checkpoint's id, or a namespace, if it can be part of a key.

    Raises:
        InvalidInput: it cannot.
    """
    if not isinstance(text, str) or "\0" in text or len(text.encode(errors="replace")) > limits.STEP_KEY_BYTES:
        raise InvalidInput(f"{what} is not a text of at most {limits.STEP_KEY_BYTES:,} bytes without NUL")
    return text


def place_of_key(thread: str, key: bytes) -> tuple[Place, str]:
    """Return where a checkpoint's key says that it stands, and its id."""
    ns, checkpoint, _ = key[1:].split(b"\0")
    return Place(thread, ns.decode()), checkpoint.decode()


def value_prefix(ns: str, channel: str) -> bytes:
    """Return how the keys of a channel's values begin; that another channel shares it does no harm."""
    return VALUES + _short(f"{ns}\0{channel}".encode())[:4]


def new_value_key(ns: str, channel: str) -> bytes:
    """Return a key for a value that nobody else gets; later ones are mostly higher."""
    return value_prefix(ns, channel) + uuid_utils.uuid7().bytes


def write_key(place: Place, checkpoint: str, task: str, index: int) -> bytes:
    """Return the key of a task's write."""
    return place.writes(checkpoint) + _short(task.encode()) + (index + (1 << 31)).to_bytes(4, "big")


def index_of(key: bytes) -> int:
    """Return which of a task's writes a key belongs to."""
    return int.from_bytes(key[-4:], "big") - (1 << 31)


def _short(text: bytes) -> bytes:
    return blake2b(text, digest_size=12).digest()


def item(key: bytes, row: Struct) -> Item:
    """Return a row as it is kept."""
    return Item(key, _ENCODER.encode(row))


def read_checkpoint(stored: Item) -> CheckpointRow:
    """Return a checkpoint's row."""
    return _read(_CHECKPOINT, stored)


def read_write(stored: Item) -> WriteRow:
    """Return a write's row."""
    return _read(_WRITE, stored)


def read_value(stored: Item) -> Row:
    """Return a value's row."""
    return _read(_VALUE, stored)


def _read(decoder: msgspec.msgpack.Decoder[T], stored: Item) -> T:
    try:
        return decoder.decode(stored.body)
    except msgspec.MsgspecError as error:
        raise Damaged(run="", seq=None, what=f"an item of a thread cannot be read: {error}") from error
