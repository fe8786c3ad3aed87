"""One line for each event, for whoever watches a run."""

import re
from pathlib import Path
from typing import Final

from rich.text import Text

from holdfast import events as ev
from holdfast.cli.gist import gist_of
from holdfast.cli.saying import begun, by, change_of_budget, decision, ending, resting, saved
from holdfast.cli.surface import brief, shown
from holdfast.cli.wording import duration, step_name
from holdfast.core.message import USER
from holdfast.core.status import Status
from holdfast.stream.event import Event

_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
ENDINGS = {Status.COMPLETED: "green", Status.FAILED: "red", Status.CANCELLED: "yellow"}


class Stopwatch:
    """How long each step and each wait took: since it was begun, or else since the entry before it in its branch.

    The first step of a branch that recorded no beginning has no time: the entry before it may be of any other. What a
    run was delayed by is none of its first step's time.
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._begun: dict[str, int] = {}
        self._waits: dict[str, int] = {}
        self._branches: dict[str, int] = {}
        """When each branch beside others last recorded something."""

    def took(self, event: Event) -> int | None:
        """Return the µs of the step that `event` closes."""
        if isinstance(event, ev.Chunk | ev.PreviewReset):
            return None
        last, self._last = self._last, event.at
        if isinstance(event, ev.RunStarted) and event.due_at is not None:
            self._last = max(event.at, event.due_at)
        if isinstance(event, ev.StepStarted):
            (self._waits if event.waits else self._begun)[event.step] = event.at
        if isinstance(event, ev.QuestionAsked):
            self._waits[event.step] = event.at
        if isinstance(event, ev.RunResumed):
            self._begun.clear()  # whoever began them died; a wait goes on without anybody
            self._branches.clear()
        step: str = getattr(event, "step", None) or ""
        branch = step.rpartition("/")[0] if step.count("/") > 1 else ""
        if branch:
            last, self._branches[branch] = self._branches.get(branch), event.at
        if isinstance(event, ev.SignalReceived | ev.QuestionAnswered):
            last = None
        elif not isinstance(event, ev.StepCompleted | ev.StepFailed | ev.StepDoubted) and not _closes(event):
            return None
        began = self._waits.pop(step, None) or self._begun.pop(step, None)
        if began is None and not isinstance(event, ev.StepDoubted):
            began = last
        return event.at - began if began is not None else None


def _closes(event: Event) -> bool:
    """Say whether an event is a message that a step came to."""
    return isinstance(event, ev.MessageAdded) and event.role != USER


def mark(sign: str, style: str) -> Text:
    """Return the sign that a line begins with; its colour is its own and not the line's."""
    return Text.assemble((f"{sign} ", style))


def line_of(event: Event, took: int | None = None) -> Text | None:
    """Return what to say of an event, or None for one that only machines need; `took` is its step's µs."""
    time = f"  {duration(took)}" if took is not None else ""
    match event:
        case ev.RunStarted() | ev.PreviewReset() | ev.ValueTaken() | ev.CursorMoved():
            return None
        case ev.RunResumed():
            return mark("↻", "cyan") + Text(f"taken up again (attempt {event.attempt})", style="cyan")
        case ev.StepStarted(waits=[_, *_]):
            return mark("…", "yellow") + step_name(event.step) + Text(f"  {begun(event)}", style="yellow")
        case ev.StepStarted():
            return mark("·", "dim") + step_name(event.step) + Text(f"  intent recorded ({event.effect})", style="dim")
        case ev.StepCompleted():
            return mark("✓", "green") + step_name(event.step) + Text(time + _attempt(event.attempt), style="dim")
        case ev.MessageAdded():
            gist, said = gist_of(event), Text(time + _attempt(event.attempt), style="dim")
            return mark(gist.sign, gist.style) + step_name(event.step or "") + said + Text(f"  {gist.words}")
        case ev.StepFailed():
            return mark("✗", "red") + step_name(event.step) + Text(f"  {failure(event)}", style="red")
        case ev.StepDoubted():
            return mark("?", "yellow") + step_name(event.step) + Text(f"  in doubt: {doubt(event)}", style="yellow")
        case ev.StepResolved():
            sign, style = ("✓", "green") if event.outcome == "done" else ("·", "yellow")
            return mark(sign, style) + step_name(event.step) + Text(f"  {resolution(event)}", style=style)
        case ev.Emitted():
            return mark("»", "blue") + Text(shown(event.name), style="blue") + Text(f"  {brief(event.value)}")
        case ev.RunParked():
            return mark("‖", "yellow") + Text(f"rests: {resting(event)}", style="yellow")
        case ev.RunFinished():
            style = ENDINGS.get(event.status, "")
            return mark("■", style) + Text(f"{event.status}{ending(event.status, event.reason)}", style=style)
        case ev.Chunk():
            return mark("…", "dim") + step_name(event.step) + Text(f"  {brief(event.value)}", style="dim")
        case _:
            return _line_of_others(event) or mark("·", "dim") + Text(shown(event.type))


def _line_of_others(event: Event) -> Text | None:
    """Return what to say of what came from outside, and of children."""
    match event:
        case ev.SignalReceived():
            said = f"  {shown(event.name)} {brief(event.value)}{by(event.by)}"
            return mark("✓", "green") + step_name(event.step) + Text(said)
        case ev.QuestionAsked():
            return mark("?", "yellow") + step_name(event.step) + Text(f"  asks: {shown(event.text)}", style="yellow")
        case ev.QuestionAnswered():
            style = "green" if event.yes else "yellow"
            return mark("✓" if event.yes else "✗", style) + step_name(event.step) + Text(f"  {decision(event)}")
        case ev.ChildSpawned():
            # A step that its author gave a key does not have the function's name.
            keyed = event.step.rpartition("/")[2].startswith("=")
            said = f"  child {shown(event.name)} {event.child}" if keyed else f"  child {event.child}"
            return mark("▸", "cyan") + step_name(event.step) + Text(said, style="dim")
        case ev.ChildSettled():
            style, sign = ENDINGS.get(event.status, ""), "✓" if event.status is Status.COMPLETED else "✗"
            why = f": {shown(event.error.message)}" if event.error is not None else ""
            return mark(sign, style) + step_name(event.step) + Text(f"  child {event.status}{why}", style=style)
        case ev.CancelReceived():
            why = event.reason.removeprefix("cancelled").removeprefix(": ")
            said = f"its end was asked for{by(event.by)}{f': {shown(why)}' if why else ''}"
            return mark("■", "yellow") + Text(said, style="yellow")
        case ev.RunForked():
            said = f"forked behind entry {event.base_seq} of run {event.base}{by(event.by)}"
            return mark("⑂", "cyan") + Text(said, style="cyan")
        case ev.SpecAdopted():
            before = f", which had version {shown(event.before)}" if event.before else ""
            said = f"version {shown(event.code)} took it over{before}: {shown(event.difference)}"
            return mark("↑", "cyan") + Text(said, style="cyan")
        case ev.BudgetChanged():
            return mark("+", "cyan") + Text(change_of_budget(event), style="cyan")
        case ev.HistoryCompacted():
            return mark("·", "cyan") + Text(f"what was said up to entry {event.up_to} was summed up", style="cyan")
        case ev.CheckpointOpened():
            said = f"opened in process {event.pid} on {shown(event.host)} (attempt {event.attempt})"
            return mark("↻", "cyan") + Text(said, style="cyan")
        case ev.CheckpointSaved():
            return mark("✓", "green") + Text(saved(event))
        case ev.RunContinued():
            said = f"goes on from the top: generation {event.generation}  {brief(event.value)}"
            return mark("↻", "cyan") + Text(said, style="cyan")
        case _:
            return None


def _attempt(attempt: int) -> str:
    return f"  (attempt {attempt})" if attempt > 1 else ""


def failure(event: ev.StepFailed) -> str:
    """Return what an attempt failed with, and whether another follows."""
    if event.cancelled:
        return "cancelled by the run's own code"
    again = ""
    if event.retry_at is not None:
        again = f" (attempt {event.attempt}, again in {duration(event.retry_at - event.at)})"
    return f"{shown(event.error.type)}: {shown(event.error.message)}{place(event.error.traceback)}{again}"


def place(trace: str | None) -> str:
    """Return where an error was raised, in brackets: the innermost file and line that a journal has of it."""
    frames = _FRAME.findall(trace or "")
    return f"  ({shown(Path(frames[-1][0]).name)}:{frames[-1][1]})" if frames else ""


def doubt(event: ev.StepDoubted) -> str:
    """Return why nobody knows whether a step happened."""
    return shown(event.sentence)


def resolution(event: ev.StepResolved) -> str:
    """Return how a doubt was ended."""
    words = {
        "done": "it did happen",
        "not_done": "it did not happen, so it may be tried again",
        "unknown": "still unknown, so the step failed",
    }
    who = {"verify": "verify looked", "policy": "by policy"}.get(event.how) or f"says {shown(event.by or 'a person')}"
    note = f" ({shown(event.note)})" if event.note else ""
    return f"{who}: {words.get(event.outcome, shown(event.outcome))}{note}"
