"""Replay as a machine without I/O: what the code asks, compared with what the journal recorded."""

from collections.abc import Iterable, Sequence

from msgspec import Raw, Struct

from holdfast.core import entry as e
from holdfast.core.errors import Damaged, Diverged
from holdfast.core.status import Effect
from holdfast.core.stepkey import branch_of, set_of


class Fresh(Struct, frozen=True):
    """Nothing is recorded here: perform it."""


class Recorded(Struct, frozen=True):
    """The step has a result."""

    raw: Raw
    blob: e.BlobRef | None


class Failed(Struct, frozen=True):
    """The step failed for good."""

    error: e.ErrorInfo
    attempts: int


class Retrying(Struct, frozen=True):
    """An attempt failed and another was promised."""

    attempt: int
    retry_at: int


class Cancelled(Struct, frozen=True):
    """The step was cancelled, as entry `seq` says: perform nothing and wait to be cancelled again."""

    seq: int


class Interrupted(Struct, frozen=True):
    """The step has an intent and no outcome."""

    effect: Effect
    attempt: int
    started_at: int
    timeout: int | None


class InQuestion(Struct, frozen=True):
    """The step is in doubt and nobody has ended the doubt."""

    attempt: int
    started_at: int
    timeout: int | None
    why: str
    asked_again: bool = False
    """True when it had raised, and somebody asked for another try: it waits for a word."""


class GivenUp(Struct, frozen=True):
    """The doubt was ended by failing: raise it again."""

    message: str
    attempts: int


def given_up(why: str, note: str | None) -> str:
    """Return why nobody knows, with what was tried to find out."""
    return why if note is None else f"{why} ({note})"


class Reopened(Struct, frozen=True):
    """It is known that the step did not happen: another attempt may be made."""

    attempt: int


class Waiting(Struct, frozen=True):
    """The step is a wait that has begun; `due_at` is when it ends by itself, the only way if it is `timed`."""

    due_at: int | None
    timed: bool = False


class Asked(Struct, frozen=True):
    """A person was asked and has not answered."""

    seq: int
    shown: str
    expires_at: int | None


class Decided(Struct, frozen=True):
    """The question was answered, or its time is over."""

    entry: e.QuestionAnswered


class Spawned(Struct, frozen=True):
    """A child was created, and has not settled."""

    child: str


class Anew(Struct, frozen=True):
    """A child of the run that this one was forked from stands here: spawn another, from the past of `child` if any."""

    child: str | None = None


class Settled(Struct, frozen=True):
    """The child ended."""

    entry: e.ChildSettled


class Received(Struct, frozen=True):
    """A signal was taken."""

    name: str
    raw: Raw
    blob: e.BlobRef | None


class Spoken(Struct, frozen=True):
    """What came of it is a message."""

    entry: e.MessageAdded


class Branched(Struct, frozen=True):
    """A set of branches stands at this place."""


Answer = (
    Fresh | Recorded | Failed | Retrying | Cancelled | Interrupted | InQuestion | GivenUp | Reopened
    | Waiting | Asked | Decided | Spawned | Anew | Settled | Received | Spoken | Branched
)  # fmt: skip
FRESH = Fresh()
CLOSED = (Recorded, Failed, Cancelled, GivenUp, Received, Decided, Settled, Spoken)
"""Answers that nothing can follow."""


class _Record:
    """One place in a branch: what was asked there, and the latest that is known of it."""

    __slots__ = ("answer", "digest", "key", "mark", "seq", "started_at", "timeout", "what", "why")

    def __init__(self, key: str, what: str, digest: str | None, seq: int, answer: Answer) -> None:
        self.key, self.what, self.digest, self.seq, self.answer = key, what, digest, seq, answer
        self.started_at, self.timeout, self.why = 0, None, ""  # type: int, int | None, str
        self.mark: e.CursorMoved | None = None
        """What a harness last said of it."""


class Replay:
    """The recorded places of a run, branch by branch, given out in order.

    The i-th step asked in a branch must be the i-th recorded there, by key, kind and input; a step is fresh only past
    the branch's last record, and in a set of branches only while nothing is recorded behind the set.
    """

    def __init__(self) -> None:
        self._branches: dict[str, list[_Record]] = {}
        self._asked: dict[str, int] = {}
        self._by_key: dict[str, _Record] = {}
        self._left = 0
        """How many records were not asked for."""
        self._sets: dict[str, list[str]] = {}
        """The recorded branches of every set."""
        self._entered: set[str] = set()
        """Branch sets whose place in their parent was asked for."""
        self.cancel_seq = 0
        """The entry that asked for the run's end; 0 when nobody did."""
        self.cursor: e.CursorMoved | None = None
        """Where the run's harness stands: the last it said that is not of a step still open."""

    def take(self, entry: e.Entry) -> None:
        """Add the next entry of the journal.

        Raises:
            Damaged: it closes what was closed already.
        """
        match entry:
            case e.StepCompleted():
                self._close(entry, entry.step, entry.digest, Recorded(entry.raw, entry.blob))
            case e.MessageAdded(step=str() as step):
                self._close(entry, step, None, Spoken(entry))
            case e.HistoryCompacted(step=str() as step):
                self._close(entry, step, None, Recorded(entry.raw, entry.blob))
            case e.StepFailed(cancelled=True):
                self._close(entry, entry.step, entry.digest, Cancelled(entry.seq))
            case e.StepFailed(retry_at=None):
                self._close(entry, entry.step, entry.digest, Failed(entry.error, entry.attempt))
            case e.StepFailed(retry_at=int() as retry_at):
                self._close(entry, entry.step, entry.digest, Retrying(entry.attempt, retry_at))
            case e.StepStarted(waits=[_, *_]):
                waiting = Waiting(entry.due_at, entry.waits == ["sleep"])
                self._record(entry, entry.step, entry.digest, waiting, "a wait")
            case e.StepStarted():
                self._open(entry)
            case e.SignalReceived():
                self._close(entry, entry.step, None, Received(entry.name, entry.raw, entry.blob), "a wait")
            case e.QuestionAsked():
                asked = Asked(entry.seq, entry.shown, entry.expires_at)
                self._record(entry, entry.step, entry.shown, asked, "a question")
            case e.QuestionAnswered():
                self._close(entry, entry.step, None, Decided(entry), "a question")
            case e.ChildSpawned():
                spawned = Spawned(entry.child)
                self._record(entry, entry.step, entry.digest, spawned, "a child").answer = spawned
            case e.ChildSettled():
                self._close(entry, entry.step, None, Settled(entry), "a child")
            case e.CancelReceived():
                self.cancel_seq = entry.seq
            case e.RunContinued():
                self._branches, self._by_key, self._sets, self._left = {}, {}, {}, 0
            case e.RunForked():
                self._fork(entry)
            case e.StepDoubted():
                self._doubt(entry)
            case e.StepResolved():
                self._resolve(entry)
            case e.ValueTaken():
                self._close(entry, entry.step, None, Recorded(entry.raw, entry.blob), "a value")
            case e.CursorMoved():
                self._mark(entry)
            case e.Emitted():
                self._close(entry, entry.step, None, Recorded(entry.raw, entry.blob), "news")
            case _:
                pass

    def _record(self, entry: e.Entry, step: str, digest: str | None, answer: Answer, what: str = "a step") -> _Record:
        record = self._by_key.get(step)
        if record is None:
            record = self._by_key[step] = _Record(step, what, digest, entry.seq, answer)
            self._branch(branch_of(step), entry.seq).append(record)
            self._left += 1
        return record

    def _branch(self, branch: str, seq: int) -> list[_Record]:
        """Return a branch's records; its set takes a place in the parent at its first one."""
        records = self._branches.get(branch)
        if records is None:
            records = self._branches[branch] = []
            branch_set = set_of(branch)
            if branch_set is not None:
                self._sets.setdefault(branch_set, []).append(branch)
                if branch_set not in self._by_key:
                    place = self._by_key[branch_set] = _Record(branch_set, "branches", None, seq, Branched())
                    self._branch(branch_of(branch_set), seq).append(place)
                    self._left += 1
        return records

    def _close(self, entry: e.Entry, step: str, digest: str | None, answer: Answer, what: str = "a step") -> None:
        record = self._record(entry, step, digest, FRESH, what)
        self._check_open(entry, record)
        record.answer = answer

    def _open(self, entry: e.StepStarted) -> None:
        answer = Interrupted(entry.effect, entry.attempt, entry.at, entry.timeout)
        record = self._record(entry, entry.step, entry.digest, answer)
        self._check_open(entry, record)
        record.answer, record.started_at, record.timeout = answer, entry.at, entry.timeout

    def _check_open(self, entry: e.Entry, record: _Record) -> None:
        if isinstance(record.answer, CLOSED):
            what = f"step {record.key} was closed before, by entry {record.seq}"
            raise Damaged(run=entry.run, seq=entry.seq, what=what)

    def _doubt(self, entry: e.StepDoubted) -> None:
        record = self._record(entry, entry.step, None, FRESH)
        record.why = entry.sentence
        record.answer = (
            Cancelled(entry.seq)
            if entry.why == "cancelled"
            else InQuestion(
                entry.attempt,
                record.started_at,
                record.timeout,
                record.why,
                isinstance(record.answer, InQuestion) and record.answer.asked_again,
            )
        )

    def _resolve(self, entry: e.StepResolved) -> None:
        record = self._record(entry, entry.step, None, FRESH)
        attempt = record.answer.attempt if isinstance(record.answer, InQuestion | Interrupted) else 1
        match entry.outcome:
            case "done":
                record.answer = Recorded(entry.raw, entry.blob)
            case "not_done" | "again":
                record.answer = Reopened(attempt)
            case _:
                record.answer = GivenUp(given_up(record.why, entry.note), attempt)

    def _mark(self, entry: e.CursorMoved) -> None:
        """Keep what a harness said: of a step that is open, how to find it again; of a closed one, where it stands."""
        record = self._by_key.get(entry.step) if entry.step is not None else None
        if record is not None:
            record.mark = entry
        if record is None or isinstance(record.answer, CLOSED):
            self.cursor = entry

    def _fork(self, entry: e.RunForked) -> None:
        """Take back what is not the fork's: what the base waited for, asked, spawned, or left without an outcome."""
        for step in entry.doubted:
            record = self._by_key[step]
            attempt = getattr(record.answer, "attempt", 1)
            record.why = record.why or "the run was forked while it was under way"
            asked_again = isinstance(record.answer, GivenUp | Cancelled)
            record.answer = InQuestion(attempt, record.started_at, record.timeout, record.why, asked_again)
        for step in entry.children:
            self._by_key[step].answer = Anew()
        for step in entry.reopened:
            self._reopen(self._by_key[step])
        for record in list(self._by_key.values()):
            if isinstance(record.answer, Asked) or (isinstance(record.answer, Waiting) and not record.answer.timed):
                self._forget(record)

    def _reopen(self, record: _Record) -> None:
        if isinstance(record.answer, Spawned):
            record.answer = Anew(record.answer.child)
        elif isinstance(record.answer, Settled):
            record.answer = Anew(record.answer.entry.child)
        elif isinstance(record.answer, Cancelled) and (record.what != "a step" or record.seq == record.answer.seq):
            self._forget(record)
        else:
            record.answer = Reopened(0)

    def _forget(self, record: _Record) -> None:
        """Drop the last place of a branch, as if it had not been come to."""
        self._branches[branch_of(record.key)].remove(record)
        del self._by_key[record.key]
        self._left -= 1

    def anew(self) -> "Replay":
        """Return one for another generation, of which nothing is recorded yet."""
        return Replay()

    def ask(self, branch: str, key: str, digest: str | None, what: str | None = None) -> Answer:
        """Say what is recorded for the next place of `branch`, which the code says is `key`.

        Raises:
            Diverged: the journal recorded something else there.
        """
        self._enter(branch)
        record = self._next(branch)
        if record is None:
            self._check_under_way(branch, key)
            return FRESH
        if record.key != key:
            raise Diverged(seq=record.seq, recorded=f"{record.key!r}", asked=f"{key!r}")
        if what is not None and record.what != what and not isinstance(record.answer, Cancelled):
            raise Diverged(seq=record.seq, recorded=f"{key!r} as {record.what}", asked=f"it as {what}")
        if digest is not None and record.digest is not None and record.digest != digest:
            raise Diverged(
                seq=record.seq,
                recorded=f"{key!r} with input {record.digest[:12]}",
                asked=f"it with another input, {digest[:12]}",
            )
        self._asked[branch] = self._asked.get(branch, 0) + 1
        self._left -= 1
        return record.answer

    def known_as(self, branch: str, key: str, also: Sequence[str]) -> str:
        """Return the key that the next place of `branch` goes by: `key`, or one of `also` if it was recorded so."""
        recorded = self.peek(branch)
        return recorded if recorded is not None and recorded in also else key

    def _enter(self, branch: str) -> None:
        """Ask for the place of the set that a branch belongs to, when its first branch asks for anything."""
        branch_set = set_of(branch)
        if branch_set is not None and branch_set not in self._entered:
            self._entered.add(branch_set)
            self.ask(branch_of(branch_set), branch_set, None)

    def _check_under_way(self, branch: str, key: str) -> None:
        """Refuse what is new in a branch of a set that was left: all its branches had ended then."""
        branch_set = set_of(branch)
        while branch_set is not None:
            parent = branch_of(branch_set)
            behind = self._next(parent)
            if behind is not None:
                raise Diverged(seq=behind.seq, recorded=f"{behind.key!r}", asked=f"{key!r}")
            branch_set = set_of(parent)

    def begin(self, branch_set: str, branches: Iterable[str]) -> None:
        """Accept a set of these branches.

        Raises:
            Diverged: the journal recorded another branch of it.
        """
        recorded = self._sets.get(branch_set)
        if recorded is None:
            return
        asked = set(branches)
        for branch in recorded:
            if branch not in asked:
                first = self._branches[branch][0]
                raise Diverged(seq=first.seq, recorded=f"{first.key!r}", asked=f"{branch_set!r} without that branch")

    def end(self, branch: str, why: str = "") -> None:
        """Accept the end of a branch.

        Raises:
            Diverged: the journal recorded more of it.
        """
        record = self._next(branch)
        if record is not None:
            raise Diverged(seq=record.seq, recorded=f"{record.key!r}", asked=f"the end of branch {branch!r}{why}")

    def _next(self, branch: str) -> _Record | None:
        records = self._branches.get(branch)
        place = self._asked.get(branch, 0)
        return None if records is None or place == len(records) else records[place]

    def peek(self, branch: str) -> str | None:
        """Return the key of a branch's next record; None past its last one."""
        record = self._next(branch)
        return record.key if record is not None else None

    def next_answer(self, branch: str) -> tuple[str, str, Answer] | None:
        """Return what stands next in a branch without asking for it: its key, its kind, and what is known of it."""
        record = self._next(branch)
        return (record.key, record.what, record.answer) if record is not None else None

    def begun_at(self, key: str) -> int | None:
        """Return the entry that a step was begun with, if the journal knows it."""
        record = self._by_key.get(key)
        return record.seq if record is not None else None

    def mark_of(self, key: str) -> e.CursorMoved | None:
        """Return what a harness last said of a step, if the journal knows it."""
        record = self._by_key.get(key)
        return record.mark if record is not None else None

    def next_at(self, branch: str) -> int | None:
        """Return the entry that the next place of a branch was begun with; None past its last one."""
        record = self._next(branch)
        return record.seq if record is not None else None

    def settlement(self, key: str) -> e.ChildSettled | None:
        """Return how the child of a step ended, if the journal knows."""
        record = self._by_key.get(key)
        return record.answer.entry if record is not None and isinstance(record.answer, Settled) else None

    def closing(self, key: str) -> Answer | None:
        """Return how a step ended, if the journal knows."""
        record = self._by_key.get(key)
        return record.answer if record is not None and isinstance(record.answer, CLOSED) else None

    def is_told(self, branch: str, keys: Sequence[str]) -> bool:
        """Say whether the code that asks for one of `keys` next was told here that the run shall end.

        What it asked for in its first life is recorded, so that it was told where something else follows, or nothing.
        """
        record = self._next(branch)
        return bool(self.cancel_seq) and (record is None or (record.seq > self.cancel_seq and record.key not in keys))

    def is_cleaning(self, branch: str, key: str) -> bool:
        """Say whether the next place of a branch is a step that was begun after the run's end was asked for."""
        record = self._next(branch)
        begun = Interrupted | InQuestion | Retrying | Reopened
        return (
            record is not None
            and record.key == key
            and isinstance(record.answer, begun)
            and (record.seq > self.cancel_seq > 0)
        )

    @property
    def is_empty(self) -> bool:
        """True when the code had recorded nothing at all."""
        return not self._by_key

    @property
    def left(self) -> int:
        """How much of what is recorded has not been asked for."""
        return self._left

    @property
    def replaying(self) -> bool:
        """True while something recorded has not been asked for."""
        return self._left > 0

    def finish(self, why: str = "") -> None:
        """Accept the end of the code; `why` says more of it.

        Raises:
            Diverged: the journal recorded steps that the code no longer asks for.
        """
        for branch, records in self._branches.items():
            place = self._asked.get(branch, 0)
            if place < len(records):
                raise Diverged(
                    seq=records[place].seq, recorded=f"{records[place].key!r}", asked=f"the end of the run{why}"
                )


def replay_of(entries: Iterable[e.Entry]) -> Replay:
    """Return a replay of whole history."""
    replay = Replay()
    for entry in entries:
        replay.take(entry)
    return replay
