"""The store's verbs and their promises; refusals are values."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from holdfast.core import limits
from holdfast.core.checksum import StoredEntry
from holdfast.core.cursor import Cursor
from holdfast.core.entry import BudgetMove
from holdfast.core.ids import Fence, RunId, WorkerId
from holdfast.core.status import Status

T_co = TypeVar("T_co", covariant=True)


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
    damage: str = ""
    """Why the row itself cannot be believed; empty for a sound one."""


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


class Created(Struct, frozen=True):
    """The run is new; with a lease if a worker was named."""

    row: RunRow
    lease: Lease | None


class Existing(Struct, frozen=True):
    """The key was used before, for the same thing; `row` is None when only its tombstone is left."""

    run: RunId
    row: RunRow | None


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


class Page(Struct, frozen=True):
    """What a reader sees in one snapshot: entries after a place, the chunks behind them, and the row."""

    row: RunRow
    entries: Sequence[StoredEntry]
    chunks: Sequence[StoredChunk]
    previous: bytes
    """The checksum of the entry before the first."""
    more: bool
    """True when the page ended before the journal did."""


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
    name: str | None = None
    key: str | None = None
    labels: Mapping[str, str] = {}
    prefix: str = ""
    """How the id begins: hex digits, without the dashes."""
    before: RunId | None = None
    limit: int = 100


class Pending(Protocol[T_co]):
    """An outcome to be. Cancelling whoever awaits it does not withdraw it, and it still tells what came of it."""

    def __await__(self) -> Generator[Any, Any, T_co]:
        """Wait until it is known."""
        ...

    def done(self) -> bool:
        """Say whether it is known."""
        ...

    def result(self) -> T_co:
        """Return it once it is known."""
        ...


class Transaction(Protocol):
    """The database of the store, inside the transaction that writes a step's entry."""

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows. Ending the transaction or touching Holdfast's tables is refused."""
        ...


class Watch(Protocol):
    """A bell that rings when there may be something new; polling is the truth."""

    async def wait(self, timeout_seconds: float | None = None) -> Page | None:
        """Return when it rang since the last wait, or when the time is over.

        A watch of where a run stands may bring the run's ending along, as `last` would return it.
        """
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Heart(Protocol):
    """Beats a worker's pulse from a thread of its own, whatever the event loop does meanwhile."""

    def beat(self) -> bool:
        """Beat and wait until it is known; False when the worker was declared dead.

        Raises:
            StoreUnavailable: the store does not answer; nothing is known.
        """
        ...

    def close(self) -> None:
        """Let go of what it needs to beat. Called from the thread that beats."""
        ...


class Store(Protocol):
    """The meeting point of writers and readers. Every verb may raise StoreUnavailable; none may half happen."""

    @property
    def id(self) -> str:
        """The store's own id, the same for its whole life."""
        ...

    @property
    def epoch(self) -> int:
        """Raised by a restore from backup."""
        ...

    @property
    def lock_folder(self) -> str | None:
        """Where workers of this store keep their locks on this machine; None: nowhere, only their pulse tells."""
        ...

    def now(self) -> int:
        """Return the store's clock in µs; timers follow it."""
        ...

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Created | Existing | KeyTaken:
        """Write a run and its first entry, once per (tenant, key); claim it for `worker` in the same commit."""
        ...

    def create_soon(self, new: NewRun, *, worker: WorkerId) -> tuple[Lease, Pending[Created]] | None:
        """Lease a run without a key before its creation is on disk; None when that cannot be promised now.

        What is committed under the lease is written behind the creation, often in the same transaction. Nobody may be
        told of the run until it is known that it was created.
        """
        ...

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Make everything in `change` true at once, or nothing of it.

        `Committed` is returned only when it is on disk. A refusal has written nothing and spoils no neighbour.
        Its place in the run's order is taken when it is called, and cancelling the caller does not withdraw it.
        """
        ...

    def transact(
        self, lease: Lease, work: Callable[[Transaction], Commit], *, deadline_seconds: float
    ) -> Awaitable[Outcome]:
        """Call `work` inside a transaction and make what it did and the commit it returns true at once.

        What `work` raises is raised here, and nothing was written.
        """
        ...

    async def read(self, run: RunId, after: Cursor, *, chunks: bool = True, limit: int = limits.PAGE_ENTRIES) -> Page:
        """Return what follows `after`, bounded in number and bytes.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def last(self, run: RunId) -> Page | None:
        """Return a run's row and, if it has ended, its last entry; None when there is no such run."""
        ...

    async def claim(
        self,
        worker: WorkerId,
        serves: Mapping[str, str],
        *,
        limit: int,
        runs: Sequence[RunId] | None = None,
        suspects: bool = True,
    ) -> Sequence[Lease]:
        """Lease up to `limit` runs that are due and whose name is in `serves` (name to code version).

        A claim counts the attempt before anything is loaded. `runs` narrows it to those. A run whose last owner left
        it without progress is a suspect: at most one is leased at a time, the least suspicious first, and none unless
        `suspects`.
        """
        ...

    async def register(self, worker: WorkerId, *, lock: str | None, about: Mapping[str, str] = {}) -> None:
        """Make a worker known, before its first claim; known already, it stays as it is."""
        ...

    def heart(self, worker: WorkerId) -> Heart | None:
        """Return what beats for a worker from another thread; None where `pulse` is called instead."""
        ...

    async def pulse(self, worker: WorkerId) -> bool:
        """Beat; False when the worker was declared dead."""
        ...

    async def workers(self) -> Sequence[WorkerRow]:
        """Return every worker that is known."""
        ...

    async def scrub(self) -> Sequence[str]:
        """Look at a stretch of the runs for one that the quick ways to find it have lost; return what was mended."""
        ...

    async def void(self, worker: WorkerId, *, why: str) -> int:
        """Declare a worker dead and free its runs, which become due at once; return how many."""
        ...

    async def release(self, worker: WorkerId, *, keep: Sequence[RunId] = ()) -> int:
        """Give up the worker's leases but for `keep`, without a charge; return how many."""
        ...

    async def post(self, post: NewPost) -> Posted:
        """Put a message into a run's inbox.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def inbox(self, run: RunId) -> Sequence[Post]:
        """Return the posts that wait, in order."""
        ...

    async def get(self, run: RunId) -> RunRow | None:
        """Return a run's row."""
        ...

    async def find(self, tenant: str, key: str) -> RunRow | None:
        """Return the row of the run that a key belongs to."""
        ...

    async def list(self, which: RunFilter) -> Sequence[RunRow]:
        """Return a page of rows, newest first."""
        ...

    def chunks(self, lease: Lease, chunks: Sequence[NewChunk]) -> Awaitable[bool]:
        """Add chunks behind the run's last entry, in the order of its commits; False when the lease is lost."""
        ...

    async def blob(self, tenant: str, digest: str) -> bytes:
        """Return a blob's bytes, checked.

        Raises:
            NotFound: there is none.
            Damaged: its bytes are not what its digest says.
        """
        ...

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Watch:
        """Listen to one run, or to whatever may be claimed; without `entries` only to where it stands.

        Listen before you look.
        """
        ...

    async def describe(self) -> Mapping[str, str]:
        """Return what keeps the promises here: driver, version, settings; a write was tried on the way."""
        ...

    async def raise_epoch(self) -> int:
        """Begin another epoch, since the store was restored from a backup; return it. Older event ids are refused."""
        ...

    async def check(self) -> Sequence[str]:
        """Return what is wrong with the store as a whole; empty when sound."""
        ...

    async def close(self) -> None:
        """Finish what is queued and let go of the database."""
        ...
