"""Starting a run is writing its first entry."""

import secrets
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Raw

from holdfast.core import limits
from holdfast.core.budget import DEADLINE, Budget, opening
from holdfast.core.checksum import ZERO, StoredEntry, checksum
from holdfast.core.codec import NULL
from holdfast.core.entry import BlobRef, RunStarted, encode_body, read_entry
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import RunId, checked_key, checked_text, id_bytes, new_run_id
from holdfast.core.version import begun
from holdfast.store.value import NewBlob, NewRun, RunRow


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a new run; `input` is the canonical JSON of its named arguments."""

    name: str
    input: bytes
    key: str | None = None
    code: str = ""
    place: int = 0
    """Of that version among those of its name; 0 where no worker serves it here."""
    pin: bool = False
    labels: Mapping[str, str] = {}
    conversation: str | None = None
    """The run becomes the next turn of it."""
    delay_seconds: float = 0.0
    parent: RunId | None = None
    root: RunId | None = None
    budget: Budget | None = None
    grant: Mapping[str, int] = {}
    """What its parent gave it of its own; what `budget` says counts before."""
    deadline_at: int | None = None
    """The parent's, which a child has too unless its own comes before."""


def new_run(start: Start, *, tenant: str, now: int) -> NewRun:
    """Return the row and the first entry of a new run.

    Raises:
        InvalidInput: the key, the name or a label cannot be kept.
    """
    if start.key is not None:
        checked_key(start.key)
    checked_text("the name", start.name, limits.NAME_BYTES)
    if start.conversation is not None:
        checked_text("the conversation", start.conversation, limits.KEY_BYTES)
    labels = checked_labels(start.labels)
    run, digest = new_run_id(), sha256(start.input).hexdigest()
    due_at = now + int(start.delay_seconds * 1e6)
    granted = _granted(start, now)
    inline = len(start.input) <= limits.INLINE_BYTES
    entry = RunStarted(
        name=start.name,
        tenant=tenant,
        digest=digest,
        seed=secrets.token_hex(16),
        root=start.root or run,
        parent=start.parent,
        key=start.key,
        code=start.code,
        pin=start.pin,
        labels=labels,
        conversation=start.conversation,
        budget=granted or None,
        due_at=due_at if start.delay_seconds else None,
        raw=Raw(start.input) if inline else NULL,
        blob=None if inline else BlobRef(digest, len(start.input)),
    )
    body = encode_body(entry)
    first = StoredEntry(
        1, entry.type, entry.version, now, 0, body,
        checksum(id_bytes(run), 1, now, entry.version, entry.type, 0, ZERO, body),
    )  # fmt: skip
    row = RunRow(
        run=run, number=0, tenant=tenant, name=start.name, digest=digest, created_at=now, updated_at=now, key=start.key,
        code=start.code, pin=start.pin, labels=labels, due_at=min(due_at, granted.get(DEADLINE, due_at)),
        parent=start.parent, root=start.root, conversation=start.conversation,
        refused=begun(start.code, start.place, pin=start.pin),
    )  # fmt: skip
    blobs = () if inline else (NewBlob(digest, start.input),)
    return NewRun(row=row, first=first, blobs=blobs, budget=opening(granted))


def keyless(new: NewRun) -> NewRun:
    """Return a run that was to have a key as one without: what it was asked is done, the key is another's."""
    row, was = new.row, new.first
    entry = read_entry(row.run, was)
    assert isinstance(entry, RunStarted)
    body = encode_body(msgspec.structs.replace(entry, key=None))
    chained = checksum(id_bytes(row.run), was.seq, was.at, was.version, was.kind, was.enc, ZERO, body)
    first = was._replace(body=body, checksum=chained)
    return msgspec.structs.replace(new, row=msgspec.structs.replace(row, key=None), first=first)


def _granted(start: Start, now: int) -> dict[str, int]:
    """Return the budget of a new run: its own, with its parent's deadline if that comes first."""
    granted = {**start.grant, **(start.budget.granted(now) if start.budget is not None else {})}
    if start.deadline_at is not None:
        granted[DEADLINE] = min(start.deadline_at, granted.get(DEADLINE, start.deadline_at))
    return granted


def checked_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return labels that can be kept and searched.

    Raises:
        InvalidInput: they are not text to text, or too large together.
    """
    if not isinstance(labels, Mapping):
        raise InvalidInput(f"labels= is a mapping of text to text, not {type(labels).__name__}")
    for name, value in labels.items():
        checked_text("a label's name", name, limits.LABEL_BYTES)
        if not isinstance(value, str):
            raise InvalidInput(f"label {name!r} must be text, not {type(value).__name__}")
        if value:
            checked_text(f"label {name!r}", value, limits.LABEL_BYTES)
    if sum(len(name.encode()) + len(value.encode()) for name, value in labels.items()) > limits.LABEL_BYTES:
        raise InvalidInput(f"the labels are over {limits.LABEL_BYTES:,} bytes together")
    return dict(labels)
