"""Replay as a machine without I/O: what the code asks, compared with what the journal recorded."""

from collections.abc import Iterable

from msgspec import Raw, Struct

from holdfast.core import entry as e
from holdfast.core.errors import Damaged, Diverged
from holdfast.core.status import Effect
from holdfast.core.stepkey import branch_of


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
    """The run's own code cancelled the step: perform nothing and wait to be cancelled again."""


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


class GivenUp(Struct, frozen=True):
    """The doubt was ended by failing: raise it again."""

    message: str
    attempts: int


class Reopened(Struct, frozen=True):
    """It is known that the step did not happen: another attempt may be made."""

    attempt: int


Answer = Fresh | Recorded | Failed | Retrying | Cancelled | Interrupted | InQuestion | GivenUp | Reopened
FRESH = Fresh()


class _Record:
    """One place in a branch: what was asked there, and the latest that is known of it."""

    __slots__ = ("answer", "digest", "key", "seq", "started_at", "timeout", "why")

    def __init__(self, key: str, digest: str | None, seq: int, answer: Answer) -> None:
        self.key, self.digest, self.seq, self.answer = key, digest, seq, answer
        self.started_at, self.timeout, self.why = 0, None, ""  # type: int, int | None, str


class Replay:
    """The recorded places of a run, branch by branch, given out in order.

    The i-th step asked in a branch must be the i-th recorded there, by key and by input; a step is fresh only past
    the branch's last record.
    """

    def __init__(self) -> None:
        self._branches: dict[str, list[_Record]] = {}
        self._asked: dict[str, int] = {}
        self._by_key: dict[str, _Record] = {}

    def take(self, entry: e.Entry) -> None:
        """Add the next entry of the journal.

        Raises:
            Damaged: it closes what was closed already.
        """
        match entry:
            case e.StepCompleted():
                self._close(entry, entry.step, entry.digest, Recorded(entry.raw, entry.blob))
            case e.StepFailed(cancelled=True):
                self._close(entry, entry.step, entry.digest, Cancelled())
            case e.StepFailed(retry_at=None):
                self._close(entry, entry.step, entry.digest, Failed(entry.error, entry.attempt))
            case e.StepFailed(retry_at=int() as retry_at):
                self._close(entry, entry.step, entry.digest, Retrying(entry.attempt, retry_at))
            case e.StepStarted():
                self._open(entry)
            case e.StepDoubted():
                self._doubt(entry)
            case e.StepResolved():
                self._resolve(entry)
            case e.ValueTaken():
                self._close(entry, entry.step, None, Recorded(entry.raw, entry.blob))
            case e.Emitted():
                self._close(entry, entry.step, None, Recorded(entry.raw, entry.blob))
            case _:
                pass

    def _record(self, entry: e.Entry, step: str, digest: str | None, answer: Answer) -> _Record:
        record = self._by_key.get(step)
        if record is None:
            record = self._by_key[step] = _Record(step, digest, entry.seq, answer)
            self._branches.setdefault(branch_of(step), []).append(record)
        return record

    def _close(self, entry: e.Entry, step: str, digest: str | None, answer: Answer) -> None:
        record = self._record(entry, step, digest, FRESH)
        self._check_open(entry, record)
        record.answer = answer

    def _open(self, entry: e.StepStarted) -> None:
        answer = Interrupted(entry.effect, entry.attempt, entry.at, entry.timeout)
        record = self._record(entry, entry.step, entry.digest, answer)
        self._check_open(entry, record)
        record.answer, record.started_at, record.timeout = answer, entry.at, entry.timeout

    def _check_open(self, entry: e.Entry, record: _Record) -> None:
        if isinstance(record.answer, Recorded | Failed | Cancelled | GivenUp):
            what = f"step {record.key} was closed before, by entry {record.seq}"
            raise Damaged(run=entry.run, seq=entry.seq, what=what)

    def _doubt(self, entry: e.StepDoubted) -> None:
        record = self._record(entry, entry.step, None, FRESH)
        record.why = entry.sentence
        record.answer = (
            Cancelled()
            if entry.why == "cancelled"
            else InQuestion(entry.attempt, record.started_at, record.timeout, record.why)
        )

    def _resolve(self, entry: e.StepResolved) -> None:
        record = self._record(entry, entry.step, None, FRESH)
        attempt = record.answer.attempt if isinstance(record.answer, InQuestion | Interrupted) else 1
        match entry.outcome:
            case "done":
                record.answer = Recorded(entry.raw, entry.blob)
            case "not_done":
                record.answer = Reopened(attempt)
            case _:
                record.answer = GivenUp(record.why, attempt)

    def ask(self, branch: str, key: str, digest: str | None) -> Answer:
        """Say what is recorded for the next place of `branch`, which the code says is `key`.

        Raises:
            Diverged: the journal recorded something else there.
        """
        records = self._branches.get(branch)
        if records is None:
            return FRESH
        place = self._asked.get(branch, 0)
        if place == len(records):
            return FRESH
        record = records[place]
        if record.key != key:
            raise Diverged(seq=record.seq, recorded=f"{record.key!r}", asked=f"{key!r}")
        if digest is not None and record.digest is not None and record.digest != digest:
            raise Diverged(
                seq=record.seq,
                recorded=f"{key!r} with input {record.digest[:12]}",
                asked=f"it with another input, {digest[:12]}",
            )
        self._asked[branch] = place + 1
        return record.answer

    @property
    def replaying(self) -> bool:
        """True while something recorded has not been asked for."""
        return any(self._asked.get(branch, 0) < len(records) for branch, records in self._branches.items())

    def finish(self) -> None:
        """Accept the end of the code.

        Raises:
            Diverged: the journal recorded steps that the code no longer asks for.
        """
        for branch, records in self._branches.items():
            place = self._asked.get(branch, 0)
            if place < len(records):
                raise Diverged(seq=records[place].seq, recorded=f"{records[place].key!r}", asked="the end of the run")


def replay_of(entries: Iterable[e.Entry]) -> Replay:
    """Return a replay of whole history."""
    replay = Replay()
    for entry in entries:
        replay.take(entry)
    return replay
