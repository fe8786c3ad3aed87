"""The operations of a client, whether the store is here or behind a server."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from holdfast.core.budget import Money
from holdfast.core.ids import RunId
from holdfast.core.status import TERMINAL, NotDone, Status
from holdfast.stream.event import Event


class ForkInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A fork of a run, and the last entry that it has of it."""

    id: str
    at: int
    retry: bool
    """True for the one that tried the run again after it had failed."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands, for people and for JSON."""

    id: str
    name: str
    status: Status
    reason: str
    key: str | None
    input: Any
    result: Any
    error: dict[str, Any] | None
    conversation: str | None
    parent: str | None
    root: str
    labels: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    attempt: int
    last_seq: int
    turn: int | None = None
    """Its number in the conversation."""
    budget: dict[str, Any] | None = None
    waiting_for: str | None = None
    base: str | None = None
    """Of a fork: the run that wrote the last entry which it did not write itself."""
    base_seq: int | None = None
    """That entry's number."""
    forks: Sequence[ForkInfo] = ()
    """Those that begin behind an entry which this run wrote."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list: what its row says, without its input and result."""

    id: str
    name: str
    status: Status
    reason: str
    key: str | None
    conversation: str | None
    parent: str | None
    root: str
    labels: Mapping[str, str]
    created_at: datetime
    updated_at: datetime
    attempt: int
    last_seq: int
    turn: int | None = None
    base: str | None = None
    base_seq: int | None = None
    due_at: datetime | None = None
    """When it goes on by itself, if it rests and does."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that has not said goodbye."""

    id: str
    host: str | None
    pid: int | None
    serves: Sequence[str]
    concurrency: int | None
    version: str | None
    only: bool
    """True for one that drives only the runs that its own process started."""
    started_at: datetime
    beat_at: datetime | None
    """When it last beat; one that holds its lock and no run may have nothing to prove."""
    lock: str
    """`held` by a worker that lives, `free` of one that is dead, or `unknown`, where nothing here can tell."""
    runs: Sequence[str]
    """The runs it holds, a thousand at most."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for a person's decision."""

    id: str
    run: str
    name: str
    step: str
    text: str
    show: Any
    args: dict[str, Any] | None
    """What may be changed with the answer."""
    shown: str
    """The digest of all of it; an answer counts for exactly this."""
    asked_at: datetime
    expires_at: datetime | None


class SignalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that was sent to a run, and that it has not received."""

    name: str
    value: Any
    by: str | None
    sent_at: datetime


class CallbackInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a callback token is for, and whether it is still worth anything."""

    run: str
    name: str
    """The function's."""
    step: str
    state: str
    """`open`, `answered` or `expired`."""
    question: Question | None
    """What is to be decided; None for a signal."""
    signal: str | None
    """What is waited for; None for a question."""
    expires_at: datetime | None
    by: str | None = None
    """Who answered, if it was answered and somebody said so."""


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule that at least one worker looks after; two workers may declare one name differently."""

    name: str
    function: str
    cron: str
    tz: str
    missed: str
    overlap: str
    next_at: datetime | None
    """Its next tick; None where it has none, or this machine does not know its time zone."""
    last_at: datetime | None
    """The tick of the newest run that it started."""
    run: str | None
    workers: Sequence[str]
    """Who declared it, the dead included."""


class LimitInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of steps under way, as it was last declared, and how full it is."""

    name: str
    at_once: int | None
    rate: int | None
    """How many steps may start in any span of `per` seconds."""
    per: float
    held: int
    queued: int


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or where it rests; `value` is the stored JSON of its result."""

    status: Status
    reason: str
    value: bytes = b"null"
    error: dict[str, Any] | None = None
    held_by: RunId | None = None
    """The descendant that needs a person or other code before the run can go on."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that `verify` found wrong; `run` is None when it is the store as a whole."""

    run: str | None
    seq: int | None
    what: str


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs a clean-up deletes: those that ended so, and longer ago than this."""

    older_than_seconds: float
    statuses: frozenset[Status] = TERMINAL
    name: str | None = None
    keep: int = 0
    """How many of each name stay, the newest, however old they are."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What a clean-up did, or has done so far, or would do."""

    deleted: int = 0
    kept: Mapping[str, int] = {}
    """How many that were old enough stayed, by the reason."""
    blobs: int = 0
    archive: str | None = None
    dry_run: bool = False


class Client(Protocol):
    """What anyone may ask of a store."""

    async def info(self, run: RunId) -> RunInfo:
        """Return where a run stands.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def find(self, key: str) -> RunId:
        """Return the run that a key belongs to.

        Raises:
            NotFound: the key was never used, or its run was deleted.
        """
        ...

    async def match(self, prefix: str) -> Sequence[RunId]:
        """Return a few of the runs whose id begins with `prefix`, newest first.

        Raises:
            InvalidInput: no id begins so.
        """
        ...

    async def runs(
        self,
        *,
        status: Status | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> Sequence[RunSummary]:
        """Return a page of runs, newest first; `before` is the last id of the page before."""
        ...

    def events(self, run: RunId, *, after: str | int | None = None, follow: bool = True) -> AsyncIterator[Event]:
        """Yield a run's events after a cursor."""
        ...

    async def is_over(self, run: RunId, *, after: str | int | None = None) -> bool:
        """Say whether a run has ended and nothing of it follows a cursor: whoever reads has all.

        Raises:
            NotFound: there is no such run.
            BadCursor: the cursor is malformed or ahead of the journal.
            Conflict: it is of another epoch.
        """
        ...

    async def value(self, event: Event) -> Any:
        """Return what an event holds, as plain data; None for one that holds nothing."""
        ...

    async def wait(self, run: RunId, *, timeout_seconds: float | None = None, or_person: bool = False) -> Ending:
        """Return when the run has ended or rests where only other code can help; `or_person` also where a person can.

        Raises:
            TimeoutError: the time is over.
        """
        ...

    async def resolve(
        self, run: RunId, step: str, value: Any | NotDone, *, by: str | None = None, note: str | None = None
    ) -> None:
        """End a step's doubt by a person's word.

        Raises:
            NotFound: the run has no such step in doubt.
            Conflict: the doubt was ended before.
        """
        ...

    async def signal(
        self, run: RunId, name: str, value: Any = None, *, key: str | None = None, by: str | None = None
    ) -> bool:
        """Send a run a signal; the same key is sent once. False when it had ended before.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def send(
        self, run: RunId, name: str, value: Any = None, *, key: str | None = None, by: str | None = None
    ) -> str:
        """Send a run a signal, as `signal` does, and say what became of it: `sent`, sent `before`, or `ended`.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def signals(self, run: RunId) -> Sequence[SignalInfo]:
        """Return the signals that wait in a run's inbox, in order."""
        ...

    async def steer(self, run: RunId, text: str, *, key: str | None = None, by: str | None = None) -> str:
        """Tell an agent something while it works, to be taken in before it goes on; the same key is told once.

        Say what became of it: `sent`, sent `before`, or `ended`.

        Raises:
            NotFound: there is no such run.
        """
        ...

    async def cancel(self, run: RunId, *, reason: str = "", by: str | None = None) -> bool:
        """Ask for a run's end; False when it had ended before."""
        ...

    async def pause(
        self, run: RunId, *, reason: str = "", by: str | None = None, key: str | None = None
    ) -> bool:  # fmt: skip
        """Ask a run to rest at its next entry until `resume`; the same key asks once. False when it had ended."""
        ...

    async def resume(self, run: RunId, *, by: str | None = None, key: str | None = None) -> bool:
        """Let a paused run go on; the same key does so once. False when it had ended before."""
        ...

    async def retry(self, run: RunId, *, by: str | None = None) -> RunId:
        """Let a run that was set aside, or that other code refused, be tried again, and return its id.

        One that failed is tried again as a fork from just before its ending, which takes its key over; the fork's id
        is returned, however many ask.

        Raises:
            Conflict: it completed or was cancelled, or goes on by itself.
        """
        ...

    async def fork(self, run: RunId, at: int | None = None, *, by: str | None = None) -> RunId:
        """Start a run that has another's history up to entry `at`, the last one unless said, and return its id.

        Raises:
            NotFound: there is no such run.
            InvalidInput: there is no such entry, or it belongs to the run's end.
        """
        ...

    async def raise_budget(
        self,
        run: RunId,
        *,
        steps: int | None = None,
        calls: int | None = None,
        tokens: int | None = None,
        usd: Money | None = None,
        deadline: float | timedelta | datetime | None = None,
        reason: str = "",
        by: str | None = None,
        key: str | None = None,
    ) -> bool:
        """Add to a run's budget; the same key adds once. False when it had ended before.

        Raises:
            Conflict: the run has no such limit.
        """
        ...

    async def questions(self, run: RunId | None = None) -> Sequence[Question]:
        """Return what waits for a person, the oldest first."""
        ...

    async def answer(
        self,
        question: str,
        yes: bool,
        *,
        shown: str,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        """Answer a question, for exactly what was shown.

        Raises:
            NotFound: nobody asks that, or not any more.
            Conflict: it was answered before, or something else was shown.
        """
        ...

    async def callback(self, token: str) -> CallbackInfo:
        """Return what a callback token is for.

        Raises:
            NotFound: it is no token of this store, or its run was deleted.
        """
        ...

    async def answer_token(
        self,
        token: str,
        answer: Any,
        *,
        args: Mapping[str, Any] | None = None,
        by: str | None = None,
        note: str | None = None,
    ) -> None:
        """Answer the one wait that a callback token is for: True or False to a question, a value to anything else.

        The same answer again is the same answer.

        Raises:
            NotFound: it is no token of this store, or its run was deleted.
            AlreadyAnswered: it was answered otherwise before.
            Expired: nobody waits for it any more.
        """
        ...

    def export(self, run: RunId) -> AsyncIterator[bytes]:
        """Yield a run as the lines of an archive: complete, checked, with everything its entries name.

        Raises:
            NotFound: there is no such run.
            Damaged: it cannot be vouched for; the lines so far are no archive.
        """
        ...

    async def delete(self, run: RunId) -> bool:
        """Delete an ended run with all that is its own; its key stays taken. False if it is not here any more.

        Raises:
            Conflict: it has not ended, or a run around it that has not may need it.
        """
        ...

    async def gc(
        self,
        policy: Retention,
        *,
        archive: str | None = None,
        dry_run: bool = False,
        tell: Callable[[Collected], None] | None = None,
    ) -> Collected:
        """Delete the runs that a policy does not keep, some at a time, and the blobs that nothing names any more.

        They are added to the file `archive` first, and are on disk there before they go. `tell` hears after every
        batch what was done so far; ending it between two leaves everything whole.

        Raises:
            Conflict: somebody else is adding to the archive.
            InvalidInput: the archive cannot be written, or is another kind of file.
        """
        ...

    def verify(
        self, run: RunId | None = None, *, seen: Callable[[RunId], None] | None = None
    ) -> AsyncIterator[Finding]:
        """Yield everything that is wrong with one run, or with the whole store; `seen` is told of every run."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return every worker that has not said goodbye, the dead included."""
        ...

    async def limits(self) -> Sequence[LimitInfo]:
        """Return every limit that steps were started under, as it was last declared, and how full it is."""
        ...

    async def schedules(self) -> Sequence[ScheduleInfo]:
        """Return every schedule that a worker looks after, by name."""
        ...

    async def raise_epoch(self) -> int:
        """Begin another epoch, since the store was restored from a backup; return it."""
        ...

    async def describe(self) -> Mapping[str, str]:
        """Return what keeps the promises here: driver, version, settings."""
        ...
