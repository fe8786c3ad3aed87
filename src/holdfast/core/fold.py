"""A run's state as a fold over its entries, refusing what cannot follow."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core import entry as e
from holdfast.core.budget import Account, after, moves_of, opened, wanted
from holdfast.core.errors import Damaged
from holdfast.core.status import Effect, Status

T = TypeVar("T")


class OpenStep(Struct, frozen=True):
    """A step with an intent and no outcome."""

    digest: str
    effect: Effect
    attempt: int
    started_at: int
    timeout: int | None = None
    doubted: bool = False
    left: bool = False
    """The run's own code cancelled it, and went on without waiting for anybody's word."""
    doubt_seq: int = 0
    """The entry of its latest doubt."""


class OpenQuestion(Struct, frozen=True):
    """A question that nobody has answered."""

    seq: int
    text: str
    shown: str
    expires_at: int | None = None


class RunState(Struct, frozen=True):
    """What the entries so far add up to."""

    seq: int = 0
    status: Status = Status.QUEUED
    reason: str = ""
    seed: str = ""
    code: str = ""
    """The version of the code that drives it; empty when nobody said."""
    generation: int = 0
    fence: int = 1
    attempt: int = 1
    steps_done: int = 0
    open: dict[str, OpenStep] = {}
    questions: dict[str, OpenQuestion] = {}
    """By step key."""
    children: dict[str, str] = {}
    """Those that have not settled, by step key."""
    cancel_seq: int = 0
    """The entry that asked for the run's end; 0 when nobody did."""
    cancel_reason: str = ""
    accounts: Mapping[str, Account] = {}
    """What is left of the run's budget, by channel; empty for one without."""
    grants: Mapping[str, Mapping[str, int]] = {}
    """What children that have not settled were given of it, by step key."""
    reservations: Mapping[str, Mapping[str, int]] = {}
    """What attempts without an outcome may take of it, by step key."""
    wants: Mapping[str, int] = {}
    """The least that a run at rest waits for of each channel that it lacks."""
    finished: e.RunFinished | None = None


def fold(state: RunState, entry: e.Entry) -> RunState:
    """Return the state after `entry`.

    Raises:
        Damaged: the entry cannot follow the ones before it.
    """
    _check_order(state, entry)
    state = replace(state, seq=entry.seq)
    if state.accounts:
        state = _moved(state, entry)
    match entry:
        case e.RunStarted():
            return replace(state, seed=entry.seed, code=entry.code, status=Status.QUEUED, accounts=opened(entry.budget))
        case e.RunForked():
            return _forked(state, entry)
        case e.SpecAdopted():
            return replace(state, code=entry.code)
        case e.RunResumed():
            return replace(state, fence=entry.fence, attempt=entry.attempt, status=Status.QUEUED, reason="", wants={})
        case e.StepStarted():
            return replace(state, open={**state.open, entry.step: _opened(entry)})
        case e.StepCompleted():
            return replace(state, open=_without(state, entry.step), steps_done=state.steps_done + 1)
        case e.MessageAdded(step=str() as step) | e.HistoryCompacted(step=str() as step):
            return replace(state, open=_without(state, step), steps_done=state.steps_done + 1)
        case e.StepFailed():
            return replace(state, open=_without(state, entry.step), questions=_less(state.questions, entry.step))
        case e.StepDoubted():
            return replace(state, open={**state.open, entry.step: _doubted(state, entry)})
        case e.StepResolved():
            return replace(state, open=_without(state, entry.step))
        case e.CancelReceived():
            return replace(state, cancel_seq=entry.seq, cancel_reason=entry.reason)
        case e.SignalReceived():
            return replace(state, open=_without(state, entry.step))
        case e.QuestionAsked():
            asked = OpenQuestion(entry.seq, entry.text, entry.shown, entry.expires_at)
            return replace(state, questions={**state.questions, entry.step: asked})
        case e.QuestionAnswered():
            return replace(state, questions=_less(state.questions, entry.step))
        case e.ChildSpawned():
            return replace(state, children={**state.children, entry.step: entry.child})
        case e.ChildSettled():
            return replace(state, children=_less(state.children, entry.step))
        case e.RunContinued():
            return replace(state, generation=entry.generation, open={}, questions={})
        case e.RunParked():
            return replace(state, status=entry.status, reason=entry.reason, wants=wanted(entry.waits))
        case e.RunFinished():
            return replace(state, status=entry.status, reason=entry.reason, finished=entry)
        case (
            e.MessageAdded() | e.CursorMoved() | e.BudgetChanged() | e.ValueTaken()
            | e.HistoryCompacted() | e.WorkspaceSaved() | e.Emitted() | e.CheckpointOpened() | e.CheckpointSaved()
        ):  # fmt: skip
            return state
        case _:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"{entry.type} is not an entry")


def _moved(state: RunState, entry: e.Entry) -> RunState:
    """Return the state with what the entry moved of the run's budget."""
    moves = moves_of(entry, state)
    if moves:
        state = replace(state, accounts=after(state.accounts, moves))
    match entry:
        case e.ChildSpawned(grant=dict() as grant):
            return replace(state, grants={**state.grants, entry.step: grant})
        case e.ChildSettled():
            return replace(state, grants=_less(dict(state.grants), entry.step))
        case e.StepStarted(reserved=dict() as reserved):
            return replace(state, reservations={**state.reservations, entry.step: reserved})
        case (
            e.StepStarted() | e.StepCompleted() | e.StepFailed() | e.MessageAdded() | e.HistoryCompacted()
            | e.StepResolved()
        ):  # fmt: skip
            return replace(state, reservations=_less(dict(state.reservations), entry.step or ""))
        case _:
            return state


def _check_order(state: RunState, entry: e.Entry) -> None:
    first = isinstance(entry, e.RunStarted)
    if entry.seq != state.seq + 1:
        raise Damaged(run=entry.run, seq=entry.seq, what=f"it follows entry {state.seq}")
    if first != (state.seq == 0):
        raise Damaged(run=entry.run, seq=entry.seq, what=f"{entry.type} cannot be entry {entry.seq}")
    if state.finished is not None:
        raise Damaged(run=entry.run, seq=entry.seq, what=f"{entry.type} comes after the run's ending")
    match entry:
        case e.StepStarted() if entry.step in state.open and entry.attempt <= state.open[entry.step].attempt:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"step {entry.step} is already open")
        case e.StepDoubted() | e.StepResolved() if entry.step not in state.open:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"step {entry.step} is not open")
        case e.RunResumed() if entry.fence <= state.fence:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"fence {entry.fence} does not follow {state.fence}")
        case e.RunContinued() if entry.generation != state.generation + 1:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"generation {entry.generation} is out of order")
        case e.RunFinished() if not entry.status.terminal:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"{entry.status} is not an ending")
        case e.RunParked() if entry.status.terminal or entry.status is Status.RUNNING:
            raise Damaged(run=entry.run, seq=entry.seq, what=f"{entry.status} is not a rest")
        case _:
            pass


def _forked(state: RunState, entry: e.RunForked) -> RunState:
    """Return the state of a fork: no lease of the base's, none of its waits, questions and children is the fork's."""
    known = {step: one for step, one in state.open.items() if one.effect is not Effect.REPEAT}
    doubted = {
        step: replace(
            known.get(step, OpenStep("", Effect.ONCE, 1, entry.at)), doubted=True, left=False, doubt_seq=entry.seq
        )
        for step in entry.doubted
    }
    reopened = set(entry.reopened)
    return RunState(
        seq=entry.seq,
        seed=entry.seed,
        code=state.code,
        accounts=opened(entry.grant),
        generation=state.generation,
        steps_done=state.steps_done,
        open={step: one for step, one in (known | doubted).items() if step not in reopened},
    )


def _opened(entry: e.StepStarted) -> OpenStep:
    return OpenStep(
        digest=entry.digest,
        effect=entry.effect,
        attempt=entry.attempt,
        started_at=entry.at,
        timeout=entry.timeout,
    )


def _doubted(state: RunState, entry: e.StepDoubted) -> OpenStep:
    return replace(state.open[entry.step], doubted=True, doubt_seq=entry.seq, left=entry.why == "cancelled")


def _less(known: dict[str, T], step: str) -> dict[str, T]:
    return {key: value for key, value in known.items() if key != step} if step in known else known


def _without(state: RunState, step: str) -> dict[str, OpenStep]:
    if step not in state.open:
        return state.open
    return {key: value for key, value in state.open.items() if key != step}
