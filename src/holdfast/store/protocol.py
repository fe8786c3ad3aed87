"""The store's verbs and their promises."""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.core import limits
from holdfast.core.budget import Account
from holdfast.core.cursor import Cursor
from holdfast.core.ids import RunId, WorkerId
from holdfast.core.limit import Limit
from holdfast.core.version import CodeVersion
from holdfast.store.shelf import Shelves
from holdfast.store.value import (
    BaseMoved,
    Busy,
    Commit,
    ConversationRow,
    Created,
    Deleted,
    Existing,
    Forked,
    KeyTaken,
    Lease,
    LimitRow,
    NewChunk,
    NewFork,
    NewPost,
    NewRun,
    Outcome,
    Page,
    Post,
    Posted,
    RunFilter,
    RunRow,
    Turn,
    WorkerRow,
)

T_co = TypeVar("T_co", covariant=True)


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

    @property
    def shelves(self) -> Shelves:
        """What is kept here beside runs."""
        ...

    def now(self) -> int:
        """Return the store's clock in µs; timers follow it."""
        ...

    async def create(self, new: NewRun, *, worker: WorkerId | None = None) -> Created | Existing | KeyTaken | Busy:
        """Write a run and its first entry, once per (tenant, key); claim it for `worker` in the same commit.

        A run of a conversation becomes its next turn. Turns are taken one at a time, in order: one that has to wait for
        those before it is nobody's yet, and what it commits before its turn is refused, but for an end that was asked
        for. A turn is over when it has ended or is quarantined; one that was quarantined may come back until a later
        one has committed something.
        """
        ...

    def create_soon(self, new: NewRun, *, worker: WorkerId) -> tuple[Lease, Pending[Created]] | None:
        """Lease a run without a key before its creation is on disk; None when that cannot be promised now.

        What is committed under the lease is written behind the creation, often in the same transaction. Nobody may be
        told of the run until it is known that it was created.
        """
        ...

    async def fork(self, new: NewFork) -> Created | Existing | BaseMoved:
        """Write a run that begins with another's entries, by reference; once per base and word.

        What it shares stays as long as it does, whatever becomes of the base.
        """
        ...

    async def forks(self, runs: Sequence[RunId]) -> Mapping[RunId, Forked]:
        """Return where those of these runs begin that are forks."""
        ...

    async def forked(self, run: RunId) -> Mapping[RunId, Forked]:
        """Return the forks whose last shared entry this run wrote, the oldest first."""
        ...

    def commit(self, lease: Lease, change: Commit) -> Pending[Outcome]:
        """Make everything in `change` true at once, or nothing of it.

        `Committed` is returned only when it is on disk. A refusal has written nothing and spoils no neighbour.
        Its place in the run's order is taken when it is called, and cancelling the caller does not withdraw it.
        A child that is a turn is made without its key where that stands for something else, and not at all where it
        stands for the same.
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

    async def conversation(self, tenant: str, conversation: str) -> ConversationRow | None:
        """Return where a conversation stands; None for one that nobody has begun.

        Raises:
            Damaged: what its caller keeps with it is not as it was stored.
        """
        ...

    async def turns(
        self, tenant: str, conversation: str, *, after: int = 0, limit: int = limits.PAGE_ENTRIES
    ) -> Sequence[RunRow]:
        """Return a page of a conversation's turns, in order, behind the one numbered `after`, but for deleted ones."""
        ...

    async def count_turns(self, tenant: str, conversation: str, up_to: int) -> int:
        """Return how many turns a conversation has up to the one with a number, but for deleted ones."""
        ...

    async def annotate(self, tenant: str, conversation: str, metadata: bytes) -> None:
        """Keep what a caller says of a conversation, in place of what he said before; it need not have begun."""
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
        """Lease up to `limit` runs that are due and whose name is in `serves`, with a version that they admit.

        What it is served with is a `Served`; a plain text is a token. Runs that this worker may not have are passed
        over without a look at each. A claim counts the attempt before anything is loaded. `runs` narrows it to those.
        A run whose last owner left it without progress is a suspect: at most one is leased at a time, the least
        suspicious first, and none unless `suspects`.
        """
        ...

    async def register(self, worker: WorkerId, *, lock: str | None, about: Mapping[str, str] = {}) -> None:
        """Make a worker known, before its first claim; known already, it only says something else of itself."""
        ...

    async def enrol(self, versions: Sequence[CodeVersion]) -> Sequence[CodeVersion]:
        """Make versions of code known, and return each with its place; one that was known keeps the place it has."""
        ...

    async def versions(self, name: str) -> Sequence[CodeVersion]:
        """Return every version of a name's code, in the order in which they were first known."""
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

    async def acquire(self, lease: Lease, step: str, limit: Limit) -> Turn:
        """Give a step a slot of its limit, or a place in the limit's queue; asked again, it is the same place.

        Slots go to the highest priority, then to the tenant that holds fewest, then to whoever asked first. A slot
        and a place belong to the lease: once it is gone they count no more, whoever is told so and when.
        """
        ...

    async def free(self, lease: Lease, step: str) -> None:
        """Give up a step's slot or its place in the queue; a commit that ends the step does it by `freed`."""
        ...

    async def limits(self) -> Sequence[LimitRow]:
        """Return every limit that was ever asked for, by name."""
        ...

    async def post(self, post: NewPost) -> Posted:
        """Put a message into a run's inbox.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def inbox(self, run: RunId, *, after: int = 0) -> Sequence[Post]:
        """Return the posts that wait, in order; of those behind `after` only, if the others are known."""
        ...

    async def get(self, run: RunId) -> RunRow | None:
        """Return a run's row."""
        ...

    async def find(self, tenant: str, key: str) -> RunRow | None:
        """Return the row of the run that a key belongs to."""
        ...

    async def holder(self, tenant: str, key: str) -> RunId | None:
        """Return the run that a key belongs to, deleted or not; None for one that was never used."""
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

    async def delete(self, runs: Sequence[RunId], *, trial: bool = False) -> Deleted:
        """Remove ended runs with all that is theirs but their keys, at once; keep those that something relies on.

        A key answers for its run ever after. Of a run that others were forked from, the entries that they share stay
        as long as one of them. With `trial` nothing is removed, and the answer is what it would be.
        """
        ...

    async def sweep(self, before: int) -> int:
        """Remove, a few at a time, the blobs that no entry names and nobody has stored since; return how many."""
        ...

    def watch(self, run: RunId | None = None, *, entries: bool = True) -> Watch:
        """Listen to one run, or to whatever may be claimed; without `entries` only to where it stands.

        Listen before you look.
        """
        ...

    async def describe(self) -> Mapping[str, str]:
        """Return what keeps the promises here: driver, version, settings; a write was tried on the way."""
        ...

    async def budget(self, run: RunId) -> Mapping[str, Account]:
        """Return a run's accounts, by channel; empty for one without a budget."""
        ...

    async def secret(self) -> bytes:
        """Return what callback tokens are made with: the store's own, the same for its whole life, never shown.

        Raises:
            StoreRefused: damage has taken it.
        """
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
