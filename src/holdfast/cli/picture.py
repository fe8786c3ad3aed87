"""A run as a picture: which process performed what, what was replayed, where one was lost and another went on."""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from holdfast import events as ev
from holdfast.cli.lines import Stopwatch
from holdfast.client.standing import as_time
from holdfast.core.entry import Entry
from holdfast.core.message import USER
from holdfast.core.status import Effect, Status
from holdfast.stream.event import Event

_OUTCOMES: Final = (ev.StepCompleted, ev.StepFailed, ev.StepDoubted, ev.SignalReceived, ev.MessageAdded)


class Act(Struct, kw_only=True):
    """One thing that a process did for the run; `entry` is the fact that closed it."""

    step: str | None
    effect: Effect | None
    attempt: int
    took: int | None
    outcome: str
    entry: Entry
    note: str = ""
    """What the entry alone does not tell."""

    def form(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "step": self.step, "effect": self.effect, "attempt": self.attempt, "outcome": self.outcome,
            "seq": self.entry.seq, "at": as_time(self.entry.at),
            "seconds": self.took / 1e6 if self.took is not None else None,
        }  # fmt: skip


class Process(Struct, kw_only=True):
    """One process's part in a run."""

    number: int
    began_at: int
    ended_at: int
    worker: str | None = None
    begins: bool = True
    """Nothing that the code did was recorded before."""
    replayed: int = 0
    """Steps whose outcome was recorded before: given again from the journal, not performed."""
    forked: bool = False
    """True for the first of a fork."""
    acts: list[Act] = field(default_factory=list)
    end: str = "lost"
    """How its part ended: `finished`, `parked`, `lost` (killed, crashed or stopped) or `working`."""

    @property
    def ending(self) -> Act | None:
        """The act that closed its part; what was written down while the run rested stands behind it."""
        if self.end not in ("finished", "parked"):
            return None
        return next(act for act in reversed(self.acts) if isinstance(act.entry, ev.RunFinished | ev.RunParked))

    def form(self) -> dict[str, object]:
        """Return it for JSON."""
        return {
            "number": self.number, "worker": self.worker, "began_at": as_time(self.began_at),
            "ended_at": as_time(self.ended_at), "replayed": self.replayed, "end": self.end,
            "acts": [act.form() for act in self.acts],
        }  # fmt: skip


class Picture(Struct, kw_only=True):
    """Everything that `show` draws, taken from the entries alone."""

    processes: list[Process]
    doubted: list[str]
    """Steps in doubt now."""
    questions: list[ev.QuestionAsked]
    """Those that nobody has answered."""
    resting: ev.RunParked | None
    """Where the run rests, if it does."""

    @property
    def began_at(self) -> datetime:
        """When the run began."""
        return as_time(self.processes[0].began_at)

    @property
    def losses(self) -> int:
        """How often a process was lost."""
        return sum(process.end == "lost" for process in self.processes)


class _Painter:
    """Takes entries in order and sorts them into processes."""

    def __init__(self) -> None:
        self.processes: list[Process] = []
        self._watch = Stopwatch()
        self._effects: dict[str, Effect] = {}
        self._open: dict[str, Act] = {}
        self._recorded: set[str] = set()
        self.doubted: dict[str, None] = {}
        self.questions: dict[str, ev.QuestionAsked] = {}
        self.resting: ev.RunParked | None = None
        self._waits: dict[str, ev.StepStarted] = {}
        self._cancelled = False
        self._raised: list[ev.BudgetChanged] = []
        """What was written down while the run rested; the process that goes on with it shows it."""

    def take(self, entry: Entry) -> None:
        """Add the next entry."""
        if isinstance(entry, ev.BudgetChanged) and self.resting is not None:
            self._raised.append(entry)
            return
        took = self._watch.took(entry)
        self.resting = entry if isinstance(entry, ev.RunParked) else None
        match entry:
            case ev.RunStarted():
                self.processes.append(Process(number=1, began_at=entry.at, ended_at=entry.at))
            case ev.RunForked():
                self._fork(entry)
            case ev.RunResumed():
                self._resume(entry)
            case _:
                self.add_raised()
                self._act(entry, took)
        self.processes[-1].ended_at = entry.at

    def _fork(self, entry: ev.RunForked) -> None:
        """Leave out what other runs' processes did: the first of the fork's own begins with what they recorded."""
        self._open.clear()
        self.questions.clear()
        self.doubted |= dict.fromkeys(entry.doubted)
        self._recorded -= {*entry.reopened, *entry.doubted}
        replayed = len(self._recorded)
        self.processes = [Process(number=1, began_at=entry.at, ended_at=entry.at, replayed=replayed, forked=True)]

    def _resume(self, entry: ev.RunResumed) -> None:
        self._open.clear()
        before = self.processes[-1]
        if before.end == "parked" and before.worker == entry.worker:
            before.end = "lost"  # until it comes to another end: it rested, and went on in the same process
            self.add_raised()
            return
        process = Process(
            number=before.number + 1,
            began_at=entry.at,
            ended_at=entry.at,
            worker=entry.worker,
            begins=not any(process.acts for process in self.processes),
            replayed=len(self._recorded),
        )
        self.processes.append(process)
        self.add_raised()

    def add_raised(self) -> None:
        """Show in the last process what was written down while the run rested."""
        for raised in self._raised:
            self._act(raised, None)
        self._raised.clear()

    def _act(self, entry: Entry, took: int | None) -> None:
        step: str | None = getattr(entry, "step", None)
        outcome = self._outcome(entry)
        if isinstance(entry, ev.StepStarted):
            self._effects[entry.step] = entry.effect
            if entry.waits:
                self._waits[entry.step] = entry
        intent = self._open.pop(step, None) if step is not None else None
        acts = self.processes[-1].acts
        if intent is not None and isinstance(entry, _OUTCOMES):
            acts.remove(intent)  # an intent that was followed by its outcome is one act
        steps = isinstance(entry, ev.StepStarted | ev.StepCompleted | ev.StepFailed | ev.StepDoubted | ev.StepResolved)
        steps = (steps and step not in self._waits) or _is_performed(entry)
        effect = self._effects.get(step, Effect.REPEAT) if steps and step is not None else None
        attempt: int = getattr(entry, "attempt", 1)
        note = self._note(entry, step)
        act = Act(step=step, effect=effect, attempt=attempt, took=took, outcome=outcome, entry=entry, note=note)
        acts.append(act)
        if isinstance(entry, ev.StepStarted):
            self._open[entry.step] = act

    def _note(self, entry: Entry, step: str | None) -> str:
        """Return what only the entries before tell of one."""
        wait = self._waits.get(step or "")
        if isinstance(entry, ev.StepFailed) and entry.cancelled and self._cancelled:
            return "left, since the run shall end"
        if isinstance(entry, ev.StepCompleted) and wait is not None and wait.waits != ["sleep"]:
            return "nothing came in time"
        return ""

    def _outcome(self, entry: Entry) -> str:
        """Return one word for what an entry says, and keep what later entries need of it."""
        match entry:
            case ev.StepStarted():
                return "begun"
            case ev.StepCompleted():
                self._recorded.add(entry.step)
                return "completed"
            case ev.MessageAdded():
                self._recorded.add(entry.step or "")
                return "told" if entry.role == USER else "completed"
            case ev.StepFailed():
                self.questions.pop(entry.step, None)
                if entry.retry_at is None:
                    self._recorded.add(entry.step)
                return "cancelled" if entry.cancelled else "failed" if entry.retry_at is None else "retried"
            case ev.StepDoubted():
                self.doubted[entry.step] = None
                return "doubted"
            case ev.StepResolved():
                self.doubted.pop(entry.step, None)
                if entry.outcome != "not_done":
                    self._recorded.add(entry.step)
                return f"resolved_{entry.outcome}"
            case ev.SignalReceived():
                self._recorded.add(entry.step)
                return "received"
            case ev.QuestionAsked():
                self.questions[entry.step] = entry
                return "asked"
            case ev.QuestionAnswered():
                self.questions.pop(entry.step, None)
                self._recorded.add(entry.step)
                return "expired" if entry.expired else "yes" if entry.yes else "no"
            case ev.ChildSpawned():
                return "spawned"
            case ev.ChildSettled():
                self._recorded.add(entry.step)
                return str(entry.status)
            case ev.CancelReceived():
                self._cancelled = True
                return "cancel_asked"
            case ev.RunContinued():
                self._recorded.clear()
                self.questions.clear()
                return "continued"
            case ev.RunParked():
                self.processes[-1].end = "parked"
                return "parked"
            case ev.RunFinished():
                self.questions.clear()
                self.processes[-1].end = "finished"
                return str(entry.status)
            case _:
                return entry.type


def _is_performed(entry: Entry) -> bool:
    """Say whether an entry is a message that a performed step came to: a generation or a tool."""
    if not isinstance(entry, ev.MessageAdded) or entry.step is None or entry.role == USER:
        return False
    return not entry.step.rpartition("/")[2].startswith("answer#")


def paint(events: Iterable[Event], *, status: Status) -> Picture:
    """Return the picture of a run from its events; `status` is where its row says it stands."""
    painter = _Painter()
    for event in events:
        if isinstance(event, Entry):
            painter.take(event)
    painter.add_raised()
    last = painter.processes[-1]
    if last.end == "lost" and status is Status.RUNNING:
        last.end = "working"
    if last.end == "lost" and status is Status.QUEUED and len(painter.processes) == 1 and not last.acts:
        last.end = "waiting"
    return Picture(
        processes=painter.processes,
        doubted=list(painter.doubted),
        questions=list(painter.questions.values()),
        resting=painter.resting,
    )
