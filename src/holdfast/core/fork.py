"""What hangs loose where a run is forked: steps, questions and children without an end, and failures to try again."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from holdfast.core import entry as e
from holdfast.core.budget import settling
from holdfast.core.hooks import HOOK_FAILED
from holdfast.core.status import Effect, Status
from holdfast.core.stepkey import branch_of, encode_part, set_of

_FAILED: Final = encode_part(HOOK_FAILED)


class LooseEnds(Struct, frozen=True, kw_only=True):
    """What a fork does not simply inherit, by step key."""

    reopened: list[str] = []
    """Failed; to be tried again, under the idempotency key of the first attempt. A child goes on from its own past."""
    doubted: list[str] = []
    """Begun with the effect `once`, and nobody knows what came of it."""
    children: list[str] = []
    """Children of the base that have not settled; a fork spawns its own."""
    questions: list[str] = []
    """Asked by the base and not answered; a fork asks again."""


class _Stands(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    AGAIN = "again"
    """Another attempt is due, whoever drives it."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    DOUBTED = "doubted"
    UNKNOWN = "unknown"
    """A doubt that was ended by failing, or that the run's own code left."""


class _Place:
    """One place in a branch: its first entry, its latest one, and how it stands."""

    __slots__ = ("effect", "first", "last", "stands", "what")

    def __init__(self, what: str, seq: int) -> None:
        self.what, self.first, self.last, self.stands = what, seq, seq, _Stands.OPEN
        self.effect = Effect.REPEAT


class History:
    """Follows a run's entries to tell what hangs loose behind the last of them."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._begun: dict[str, int] = {}
        """When the latest place of each branch was begun."""
        self._grants: dict[str, Mapping[str, int]] = {}
        self.returned: dict[str, Mapping[str, int]] = {}
        """What children that have settled gave back of what they had been given, by step."""
        self.cancel_seq = 0
        """The entry that asked for the run's end; 0 when nobody did."""
        self.failed_seq = 0
        """The entry since which there is nothing but hooks of a turn that failed; 0 when it has none."""

    def take(self, entry: e.Entry) -> None:
        """Add the next entry."""
        match entry:
            case e.StepStarted():
                place = self._at(entry, entry.step, "wait" if entry.waits else "step", _Stands.OPEN)
                place.effect = entry.effect
            case e.StepCompleted() | e.SignalReceived() | e.QuestionAnswered() | e.ValueTaken() | e.Emitted():
                self._at(entry, entry.step, "step", _Stands.CLOSED)
            case e.MessageAdded(step=str() as step) | e.HistoryCompacted(step=str() as step):
                self._at(entry, step, "step", _Stands.CLOSED)
            case e.StepFailed():
                failed = _Stands.CANCELLED if entry.cancelled else _Stands.FAILED
                self._at(entry, entry.step, "step", failed if entry.retry_at is None else _Stands.AGAIN)
            case e.StepDoubted():
                left = entry.why == "cancelled"
                self._at(entry, entry.step, "step", _Stands.UNKNOWN if left else _Stands.DOUBTED)
            case e.StepResolved():
                ends = {"done": _Stands.CLOSED, "not_done": _Stands.AGAIN, "again": _Stands.AGAIN}
                self._at(entry, entry.step, "step", ends.get(entry.outcome, _Stands.UNKNOWN))
            case e.QuestionAsked():
                self._at(entry, entry.step, "question", _Stands.OPEN)
            case e.ChildSpawned():
                self._at(entry, entry.step, "child", _Stands.OPEN)
                self._grants[entry.step] = entry.grant or {}
                self.returned.pop(entry.step, None)
            case e.ChildSettled():
                moves = settling(self._grants.pop(entry.step, {}), entry.spent or {})
                self.returned[entry.step] = {move.channel: max(0, -move.reserved - move.spent) for move in moves}
                fine = entry.status is Status.COMPLETED
                self._at(entry, entry.step, "child", _Stands.CLOSED if fine else _Stands.FAILED)
            case e.CancelReceived():
                self.cancel_seq = entry.seq
            case e.RunContinued():
                self._places, self._begun, self._grants, self.returned = {}, {}, {}, {}
            case e.RunForked():
                self._fork(entry)
            case _:
                pass

    def _at(self, entry: e.Entry, step: str, what: str, stands: _Stands) -> _Place:
        place = self._places.get(step)
        if place is None:
            place = self._places[step] = _Place(what, entry.seq)
            is_hook = step.rpartition("/")[2].startswith(_FAILED)
            self.failed_seq = (self.failed_seq or entry.seq) if is_hook else 0
            self._begin(branch_of(step), entry.seq)
        place.last, place.stands = entry.seq, stands
        return place

    def _begin(self, branch: str, seq: int) -> None:
        """Note that something was begun in a branch; its set takes a place in the parent with its first."""
        new = branch not in self._begun
        self._begun[branch] = seq
        branch_set = set_of(branch)
        if new and branch_set is not None and branch_set not in self._begun:
            self._begun[branch_set] = seq
            self._begin(branch_of(branch_set), seq)

    def _fork(self, entry: e.RunForked) -> None:
        for step in entry.doubted:
            self._places[step].stands = _Stands.DOUBTED
        for step in (*entry.reopened, *entry.children):
            self._places[step].stands = _Stands.AGAIN
        for place in self._places.values():
            if place.stands is _Stands.OPEN and place.what in ("wait", "question"):
                place.stands = _Stands.AGAIN

    def at_fork(self) -> LooseEnds:
        """Return what hangs loose for a fork that begins here."""
        steps = [step for step, place in self._loose("step") if place.effect is Effect.ONCE]
        children, questions = ([step for step, _ in self._loose(what)] for what in ("child", "question"))
        return LooseEnds(doubted=steps, children=children, questions=questions)

    def at_retry(self) -> LooseEnds:
        """Return what hangs loose for a fork that tries again what made the run fail."""
        loose = self.at_fork()
        tail = [(step, place.stands) for step, place in self._places.items() if self._is_behind_all(step, place)]
        failed = [step for step, stands in tail if stands in (_Stands.FAILED, _Stands.CANCELLED)]
        unknown = [step for step, stands in tail if stands is _Stands.UNKNOWN]
        # What its children did is not to be done again either: each is taken up where it was left.
        reopened = [*failed, *(step for step in loose.children if step not in failed)]
        return LooseEnds(reopened=reopened, doubted=[*loose.doubted, *unknown], questions=loose.questions)

    def _loose(self, what: str) -> list[tuple[str, _Place]]:
        places = self._places.items()
        return [(step, place) for step, place in places if place.what == what and place.stands is _Stands.OPEN]

    def _is_behind_all(self, step: str, place: _Place) -> bool:
        """Say whether nothing was begun behind a place's end: neither in its branch nor behind a set around it.

        What failed and was caught is passed over by that: the code went on, on a way that a success would change.
        """
        branch: str | None = branch_of(step)
        last = place.last
        while branch is not None:
            if self._begun[branch] > last:
                return False
            branch_set = set_of(branch)
            branch = branch_of(branch_set) if branch_set is not None else None
            last = self._begun[branch_set] if branch_set is not None else last
        return True
