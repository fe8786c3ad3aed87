"""What goes into a store and comes out of it; refusals are values."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from holdfast.core import limits
from holdfast.core.checksum import Share, StoredEntry
from holdfast.core.entry import BudgetMove
from holdfast.core.ids import Fence, RunId, WorkerId
from holdfast.core.status import Status


class RunRow(Struct, frozen=True, kw_only=True):
    """A run's row: an index of the fold of its entries, written in the same commit."""

    run: RunId
    number: int
    tenant: str
    name: str
    digest: str
    created_at: int
    updated_at: int
    key: str | None = None
    code: str = ""
    pin: bool = False
    labels: Mapping[str, str] = {}
    parent: RunId | None = None
    root: RunId | None = None
    conversation: str | None = None
    turn: int | None = None
    status: Status = Status.QUEUED
    reason: str = ""
    due_at: int | None = None
    last_seq: int = 0
    head: bytes = b""
    owner: WorkerId | None = None
    fence: Fence = Fence(0)
    attempt: int = 0
    stalls: int = 0
    inbox_seq: int = 0
    control_seq: int = 0
    seen_seq: int = 0
    refused: str = ""
    behind: bool = False
    """True for a turn of a conversation that is not its turn yet, or that was set aside from it."""
    damage: str = ""
    """Why the row itself cannot be believed; empty for a sound one."""

    @property
    def is_controlled(self) -> bool:
        """True when something was asked of the run that it has not seen: wherever it rests, it is woken for that."""
        return self.control_seq > self.seen_seq and not self.status.terminal

    @property
    def is_hopeless(self) -> bool:
        """True when it was claimed in vain too often; what is asked of it gives it as many claims again."""
        return self.stalls >= (2 * limits.STALLS if self.is_controlled else limits.STALLS)


class ConversationRow(Struct, frozen=True, kw_only=True):
    """A conversation: whose turn it is, and how far its turns have come."""

    tenant: str
    conversation: str
    active: RunId | None = None
    """The turn that is under way, or whose turn it is; None: the next one may be."""
    last_turn: int = 0
    """The number of its newest turn."""
    over: int = 0
    """All turns up to this one have ended or were set aside."""
    reached: int = 0
    """The last of them that had written something: one before it that was set aside cannot return."""
    metadata: bytes = b"{}"
    """The caller's own, as JSON; no model is shown it."""
    harness: str | None = None
    """What takes its turns and keeps a resume handle of its own for them; None: nothing such has."""
    cursor: bytes | None = None
    """That handle, as the last commit that moved it left it."""


class Lease(Struct, frozen=True):
    """The right to write one run, until somebody else's fence is higher."""

    row: RunRow
    worker: WorkerId
    fence: Fence
    why: str
    """How it was come by: started with the run, or claimed."""
    first: StoredEntry | None = None
    """The run's only entry, when it was created under this lease and so need not be read."""


class NewRun(Struct, frozen=True, kw_only=True):
    """A run to create: its row and its first entry."""

    row: RunRow
    first: StoredEntry
    blobs: Sequence["NewBlob"] = ()
    budget: Sequence[BudgetMove] = ()
    """What its accounts are opened with."""
    if_idle: bool = False
    """Only if no other turn of its conversation is open."""


class NewFork(Struct, frozen=True, kw_only=True):
    """A run to create whose journal begins with another's entries: its row and its first own entry.

    A key in its row moves to it from the base, which then has none.
    """

    row: RunRow
    first: StoredEntry
    base: RunId
    """The run that it is forked from, whose entries it has up to the one before `first`."""
    previous: bytes
    """The checksum that the last of those must have."""
    word: str | None = None
    """Of those that are asked for under one word, of one run, there is one."""
    posts: Sequence["NewPost"] = ()
    """What it finds in its inbox."""
    budget: Sequence[BudgetMove] = ()
    """What its accounts are opened with."""


class Forked(Struct, frozen=True):
    """Where a fork begins: behind entry `at` of the run that wrote it."""

    base: RunId
    at: int
    word: str | None


class BaseMoved(Struct, frozen=True):
    """The base is not there as it was seen: it was deleted, or has another entry there; nothing was written."""


class Created(Struct, frozen=True):
    """The run is new; with a lease if a worker was named."""

    row: RunRow
    lease: Lease | None


class Existing(Struct, frozen=True):
    """The key was used before, for the same thing; `row` is None when only its tombstone is left."""

    run: RunId
    row: RunRow | None


class Busy(Struct, frozen=True):
    """Another turn of the conversation is open, and the new one was not to wait; nothing was written."""


class KeyTaken(Struct, frozen=True):
    """The key was used before, for something else."""

    run: RunId
    differs: tuple[str, ...]


class NewBlob(Struct, frozen=True):
    """Bytes to keep beside an entry, found by their SHA-256."""

    digest: str
    body: bytes


class NewPost(Struct, frozen=True, kw_only=True):
    """A message to a run's inbox; the same key is posted once."""

    run: RunId
    kind: str
    key: str
    body: bytes
    control: bool = False


class Post(Struct, frozen=True, kw_only=True):
    """A message that waits in an inbox."""

    seq: int
    kind: str
    key: str
    body: bytes
    at: int


class Posted(Struct, frozen=True):
    """What became of a post: `accepted`, `duplicate` or `finished`."""

    outcome: str
    seq: int = 0


class NewChunk(Struct, frozen=True):
    """A preview of an entry to come; `offset` is its place in the step's own stream."""

    number: int
    step: str
    attempt: int
    offset: int
    body: bytes


class StoredChunk(Struct, frozen=True):
    """A chunk as a reader gets it, stamped by the store with the entry that it follows."""

    seq: int
    fence: int
    number: int
    step: str
    attempt: int
    offset: int
    at: int
    body: bytes


class RowChange(Struct, frozen=True, kw_only=True):
    """Where the run stands after a commit that parks or ends it; the lease is given up with it."""

    status: Status
    reason: str = ""
    due_at: int | None = None
    refused: str = ""
    seen_seq: int | None = None


class Commit(Struct, kw_only=True):
    """Everything that becomes true at once."""

    after: int
    """The seq that the run must be at."""
    previous: bytes
    """The checksum that the run's head must have had; an unknown outcome is resolved by it."""
    entries: Sequence[StoredEntry]
    change: RowChange | None = None
    inbox: int | None = None
    """The inbox seq that must not have moved (a park)."""
    control: int | None = None
    """The control seq that must not have moved (an intent, an ending)."""
    progress: bool = True
    posts: Sequence[NewPost] = ()
    consumed: Sequence[int] = ()
    children: Sequence[NewRun] = ()
    blobs: Sequence[NewBlob] = ()
    drop: Sequence[str] = ()
    """Steps whose chunks end with this commit; `*` for all of them."""
    budget: Sequence[BudgetMove] = ()
    cursor: tuple[str, bytes] | None = None
    """A harness and its resume handle, for the conversation's row; one of another harness than its own stays out."""
    freed: Sequence[str] = ()
    """Steps whose slots of limits are given back with this commit."""

    @property
    def head(self) -> bytes:
        """The run's checksum once this is committed."""
        return self.entries[-1].checksum if self.entries else self.previous


class Committed(Struct, frozen=True):
    """It is on disk."""

    seq: int


class LeaseLost(Struct, frozen=True):
    """Another fence rules; nothing was written."""


class HeadMoved(Struct, frozen=True):
    """The run is at another seq than the commit expected; nothing was written."""

    seq: int


class InboxMoved(Struct, frozen=True):
    """A post arrived that the commit had not seen; nothing was written."""

    inbox_seq: int
    control_seq: int


Outcome = Committed | LeaseLost | HeadMoved | InboxMoved


class Granted(Struct, frozen=True):
    """The step has a slot of its limit, until it is freed or the lease ends."""


class Queued(Struct, frozen=True):
    """The step waits for a slot. Whoever watches the run is woken at its turn."""

    ask_again_at: int
    """When to ask again if nothing was heard, in µs of the store's clock; a hint can be lost."""


Turn = Granted | Queued | LeaseLost


class LimitRow(Struct, frozen=True, kw_only=True):
    """A limit as it was last declared, and how full it is."""

    name: str
    at_once: int | None
    starts: int | None
    """How many steps may start within any `span`."""
    span: int
    """In µs."""
    held: int
    queued: int


class Page(Struct, frozen=True):
    """What a reader sees in one snapshot: entries after a place, the chunks behind them, and the row."""

    row: RunRow
    entries: Sequence[StoredEntry]
    chunks: Sequence[StoredChunk]
    previous: bytes
    """The checksum of the entry before the first."""
    more: bool
    """True when the page ended before the journal did."""
    shares: Sequence[Share] = ()
    """Of a fork, what it has of other runs; may be left out where the page holds nothing of that."""


class Kept(StrEnum):
    """Why a run is not deleted."""

    OPEN = "open"
    """It has not ended."""
    PARENT = "parent"
    """The run that spawned it has not ended, and may still ask for its result."""
    CHILDREN = "children"
    """A run that it spawned has not ended."""
    DAMAGED = "damaged"
    """Its row cannot be believed, so nobody knows whether it has ended."""


class Deleted(Struct, frozen=True):
    """What became of runs that were to be deleted; one that is in neither was not there."""

    runs: Sequence[RunId]
    kept: Mapping[RunId, Kept]


class WorkerRow(Struct, frozen=True):
    """A worker's sign of life."""

    worker: WorkerId
    pulse: int
    started_at: int
    lock: str | None
    """Names the lock that it holds, in words of the engine's own; a store only keeps it."""
    leases: int
    about: Mapping[str, str] = {}
    """What it said of itself when it registered: its host, its process, what it serves."""
    beat_at: int | None = None
    """When it last beat, by the store's clock, for people; no rule goes by it. None where that is not kept."""


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list: newest first, older than `before`."""

    status: Status | None = None
    open: bool = False
    """Only runs that have not ended."""
    name: str | None = None
    key: str | None = None
    conversation: tuple[str, str] | None = None
    """A tenant and the conversation that it must be a turn of."""
    labels: Mapping[str, str] = {}
    owner: WorkerId | None = None
    """Who drives it; then only runs with posts that it has not parked behind."""
    unheard: bool = False
    """Only runs that nobody drives and that were asked for something they have not seen."""
    posted: str | None = None
    """The key of a post that must have come for it, taken or not."""
    but: Sequence[str] = ()
    """Names whose runs are left out."""
    parent: RunId | None = None
    prefix: str = ""
    """How the id begins: hex digits, without the dashes."""
    before: RunId | None = None
    limit: int = 100
