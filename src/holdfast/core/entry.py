"""Every fact a journal can hold; a kind's class is its stored form and also the event that readers get."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import msgspec
from msgspec import Raw, Struct, field

from holdfast.core.checksum import StoredEntry
from holdfast.core.codec import NULL, decode_any
from holdfast.core.errors import Damaged, UnknownEntry
from holdfast.core.status import Effect, Status


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One immutable past-tense fact of a run.

    `id`, `run`, `seq` and `at` are filled in when it is read; they are columns of the row and never part of the body.
    """

    version: ClassVar[int] = 1
    id: str = ""
    run: str = ""
    seq: int = 0
    at: int = 0

    @property
    def type(self) -> str:
        """The kind's name, as stored."""
        return type(self).__name__


class BlobRef(Struct, frozen=True):
    """Where a payload too large for its entry stands: the SHA-256 of its bytes, and their number."""

    digest: str
    size: int


class ErrorInfo(Struct, frozen=True, omit_defaults=True):
    """An error as the journal keeps it: names and text, never objects."""

    type: str
    message: str
    code: str | None = None
    traceback: str | None = None


class _Payload(Entry, frozen=True, kw_only=True):
    """An entry that carries a value: its JSON stands in `raw`, or in a blob."""

    raw: Raw = field(default=NULL, name="value")
    blob: BlobRef | None = None

    @property
    def value(self) -> Any:
        """The value as plain data; None when it stands in a blob."""
        return decode_any(self.raw)


class RunStarted(_Payload, frozen=True, kw_only=True):
    """A run was created; `value` is its input, as an object of named arguments."""

    name: str
    tenant: str
    digest: str
    seed: str
    root: str
    key: str | None = None
    code: str = ""
    pin: bool = False
    labels: dict[str, str] = {}
    parent: str | None = None
    conversation: str | None = None
    turn: int | None = None
    budget: dict[str, int] | None = None
    due_at: int | None = None


class RunForked(Entry, frozen=True, kw_only=True):
    """A run began as a copy, by reference, of another's entries up to `base_seq`."""

    base: str
    base_seq: int
    base_checksum: str
    seed: str
    grant: dict[str, int] | None = None
    reopened: list[str] = []
    doubted: list[str] = []
    children: list[str] = []
    questions: list[str] = []
    by: str | None = None


class RunResumed(Entry, frozen=True, kw_only=True):
    """A worker took the run up again."""

    worker: str
    fence: int
    attempt: int
    why: str
    code: str = ""


class StepStarted(Entry, frozen=True, kw_only=True):
    """A step is about to act: its intent, committed before it does."""

    step: str
    digest: str
    effect: Effect
    attempt: int = 1
    timeout: int | None = None
    due_at: int | None = None
    waits: list[str] = []
    usage: dict[str, int | None] | None = None
    reserved: dict[str, int] | None = None
    provider: str | None = None


class StepCompleted(_Payload, frozen=True, kw_only=True):
    """A step's result exists."""

    step: str
    digest: str
    attempt: int = 1
    usage: dict[str, int | None] | None = None


class StepFailed(Entry, frozen=True, kw_only=True):
    """An attempt at a step failed, or its own code's timeout cancelled it; the last one unless `retry_at` is set."""

    step: str
    digest: str
    error: ErrorInfo
    attempt: int = 1
    cancelled: bool = False
    retry_at: int | None = None
    usage: dict[str, int | None] | None = None


class StepDoubted(Entry, frozen=True, kw_only=True):
    """Nobody knows whether a `once` step happened."""

    step: str
    why: str
    attempt: int = 1
    error: ErrorInfo | None = None

    @property
    def sentence(self) -> str:
        """Why nobody knows, for people."""
        if self.error is not None:
            return f"{self.error.type}: {self.error.message}"
        return _DOUBTS.get(self.why, self.why)


_DOUBTS: Final = {
    "crash": "the process died before the outcome was recorded",
    "timeout": "no answer came in time",
    "cancelled": "it was cancelled under way",
}


class StepResolved(_Payload, frozen=True, kw_only=True):
    """A doubt was ended: `outcome` is done, not_done, unknown, or again where the policy accepts that
    it happened twice; `how` is verify, person or policy."""

    step: str
    how: str
    outcome: str
    by: str | None = None
    note: str | None = None


class MessageAdded(_Payload, frozen=True, kw_only=True):
    """A message joined the conversation: `value` is its parts; `native` the provider's own block, verbatim, where the
    parts could not rebuild it. It closes the step that it came of: a generation, a tool, a word from outside."""

    role: str
    step: str | None = None
    native: Raw = NULL
    provider: str = ""
    model: str = ""
    attempt: int = 1
    usage: dict[str, int | None] | None = None
    post: int | None = None
    by: str | None = None


class SignalReceived(_Payload, frozen=True, kw_only=True):
    """A signal from outside was taken from the inbox."""

    step: str
    name: str
    post: int
    by: str | None = None


class CancelReceived(Entry, frozen=True, kw_only=True):
    """Somebody asked for the run's end: its code is told, and may clean up."""

    post: int
    by: str | None = None
    reason: str = ""


class QuestionAsked(_Payload, frozen=True, kw_only=True):
    """A person was asked; `value` is what they are shown."""

    step: str
    text: str
    shown: str
    expires_at: int | None = None


class QuestionAnswered(_Payload, frozen=True, kw_only=True):
    """The question was decided, or expired; `value` is the edited arguments."""

    step: str
    yes: bool
    shown: str
    by: str | None = None
    note: str | None = None
    expired: bool = False


class ChildSpawned(Entry, frozen=True, kw_only=True):
    """A child run was created in the same commit."""

    step: str
    child: str
    name: str
    digest: str
    grant: dict[str, int] | None = None


class ChildSettled(_Payload, frozen=True, kw_only=True):
    """A child ended and its budget came back."""

    step: str
    child: str
    status: Status
    error: ErrorInfo | None = None
    spent: dict[str, int | None] | None = None
    unknown: list[str] = []


class CursorMoved(_Payload, frozen=True, kw_only=True):
    """A harness moved its own resume handle: of a step under way how to find it again, else where the next begins."""

    harness: str
    step: str | None = None


class BudgetMove(Struct, frozen=True, omit_defaults=True):
    """What one channel gains; the sums keep total = free + reserved + spent."""

    channel: str
    total: int = 0
    reserved: int = 0
    spent: int = 0
    unknown: bool = False


class BudgetChanged(Entry, frozen=True, kw_only=True):
    """Budget was granted, reserved, spent or settled."""

    moves: list[BudgetMove]
    why: str
    step: str | None = None
    by: str | None = None


class SpecAdopted(Entry, frozen=True, kw_only=True):
    """New code took the run over, at a boundary."""

    code: str
    before: str
    difference: str = ""


class ValueTaken(_Payload, frozen=True, kw_only=True):
    """The run's code took something that replay must give again: the time, or a patch decision."""

    step: str
    name: str


class RunContinued(_Payload, frozen=True, kw_only=True):
    """The run began a new generation from `value` and forgot what came before."""

    generation: int


class HistoryCompacted(_Payload, frozen=True, kw_only=True):
    """Messages up to entry `up_to`, those of earlier turns included, were replaced by a summary."""

    up_to: int
    step: str | None = None
    attempt: int = 1
    usage: dict[str, int | None] | None = None
    phase: str = ""


class WorkspaceSaved(Entry, frozen=True, kw_only=True):
    """A snapshot of the run's files exists."""

    driver: str
    snapshot: str
    before: str | None = None


class Emitted(_Payload, frozen=True, kw_only=True):
    """The run's code said something to whoever watches."""

    step: str
    name: str


class Wait(Struct, frozen=True, omit_defaults=True):
    """One thing that a run at rest waits for: `kind` is a word, `name` which signal or child of that kind."""

    kind: str
    step: str
    name: str = ""
    due_at: int | None = None


class CheckpointOpened(Entry, frozen=True, kw_only=True):
    """A loop of a user's own took its checkpoint up: in which process, and for the how manieth time."""

    worker: str
    host: str
    pid: int
    attempt: int
    code: str = ""


class CheckpointSaved(_Payload, frozen=True, kw_only=True):
    """A loop's messages were saved; `value` is what changed, each as `[at, removed, [messages]]`, one after the other.

    `count` is how many messages there are now.
    """

    count: int
    iteration: int | None = None
    phase: str | None = None


class RunParked(Entry, frozen=True, kw_only=True):
    """The run rests: `status` is where it stands, `reason` one word, `detail` a sentence."""

    status: Status
    reason: str
    detail: str = ""
    step: str | None = None
    due_at: int | None = None
    code: str | None = None
    waits: list[Wait] = []


class RunFinished(_Payload, frozen=True, kw_only=True):
    """The last and only ending; `said` is the entry of the message whose text is the result, which is stored once."""

    status: Status
    reason: str = ""
    error: ErrorInfo | None = None
    said: int | None = None


class Unknown(Entry, frozen=True, kw_only=True):
    """What a reader gets for an entry that this version cannot read; never written."""

    kind: str
    v: int


KINDS: Final[dict[str, type[Entry]]] = {
    kind.__name__: kind
    for kind in (
        RunStarted, RunForked, RunResumed, StepStarted, StepCompleted, StepFailed, StepDoubted, StepResolved,
        MessageAdded, SignalReceived, CancelReceived, QuestionAsked, QuestionAnswered, ChildSpawned, ChildSettled,
        CursorMoved, BudgetChanged, SpecAdopted, ValueTaken, RunContinued, HistoryCompacted, WorkspaceSaved, Emitted,
        CheckpointOpened, CheckpointSaved, RunParked, RunFinished,
    )
}  # fmt: skip

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: Final[dict[tuple[str, int], Upcaster]] = {}
"""(kind, version) to a function that turns its fields into those of version + 1. Stored bytes never change."""

_ENCODER: Final = msgspec.json.Encoder()
_DECODE: Final = {name: msgspec.json.Decoder(kind).decode for name, kind in KINDS.items()}
_set: Final = msgspec.structs.force_setattr
encode_body: Final = _ENCODER.encode
"""Return the stored body of an entry: its own fields as JSON."""


def read_entry(run: str, row: StoredEntry) -> Entry:
    """Return the fact that a checked row holds.

    Raises:
        UnknownEntry: the kind or its version is newer than this Holdfast.
        Damaged: the body does not have the kind's form.
    """
    kind = KINDS.get(row.kind)
    if kind is None or row.version > kind.version or row.enc != 0:
        raise UnknownEntry(kind=row.kind, version=row.version)
    try:
        entry = _DECODE[row.kind](row.body) if row.version == kind.version else _upcast(kind, row)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Damaged(run=run, seq=row.seq, what=f"the body is not a {row.kind}: {error}") from error
    _set(entry, "run", run)
    _set(entry, "seq", row.seq)
    _set(entry, "at", row.at)
    return entry


def _upcast(kind: type[Entry], row: StoredEntry) -> Entry:
    fields = decode_any(row.body)
    for version in range(row.version, kind.version):
        upcaster = UPCASTERS.get((row.kind, version))
        if upcaster is None:
            raise UnknownEntry(kind=row.kind, version=row.version)
        fields = upcaster(fields)
    return _DECODE[row.kind](_ENCODER.encode(fields))
