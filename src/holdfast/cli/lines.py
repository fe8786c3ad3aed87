"""One line for each event, for whoever watches a run."""

from rich.text import Text

from holdfast import events as ev
from holdfast.cli.surface import brief, shown
from holdfast.cli.wording import duration, step_name
from holdfast.core.status import Status
from holdfast.stream.event import Event

ENDINGS = {Status.COMPLETED: "green", Status.FAILED: "red", Status.CANCELLED: "yellow"}


class Stopwatch:
    """How long each step took: since its intent, or else since the entry before it."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._begun: dict[str, int] = {}

    def took(self, event: Event) -> int | None:
        """Return the µs of the step that `event` closes."""
        if isinstance(event, ev.Chunk | ev.PreviewReset):
            return None
        began, self._last = self._last, event.at
        if isinstance(event, ev.StepStarted):
            self._begun[event.step] = event.at
        if isinstance(event, ev.RunResumed):
            self._begun.clear()
        if isinstance(event, ev.StepDoubted):
            began = self._begun.pop(event.step, None)
        elif isinstance(event, ev.StepCompleted | ev.StepFailed):
            began = self._begun.pop(event.step, began)
        else:
            return None
        return event.at - began if began is not None else None


def mark(sign: str, style: str) -> Text:
    """Return the sign that a line begins with; its colour is its own and not the line's."""
    return Text.assemble((f"{sign} ", style))


def line_of(event: Event, took: int | None = None) -> Text | None:
    """Return what to say of an event, or None for one that only machines need; `took` is its step's µs."""
    time = f"  {duration(took)}" if took is not None else ""
    match event:
        case ev.RunStarted() | ev.PreviewReset() | ev.ValueTaken() | ev.BudgetChanged() | ev.CursorMoved():
            return None
        case ev.RunResumed():
            return mark("↻", "cyan") + Text(f"taken up again (attempt {event.attempt})", style="cyan")
        case ev.StepStarted():
            return mark("·", "dim") + step_name(event.step) + Text(f"  intent recorded ({event.effect})", style="dim")
        case ev.StepCompleted():
            return mark("✓", "green") + step_name(event.step) + Text(time + _attempt(event.attempt), style="dim")
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
            return mark("‖", "yellow") + Text(f"rests: {shown(event.detail or event.reason)}", style="yellow")
        case ev.RunFinished():
            style = ENDINGS.get(event.status, "")
            return mark("■", style) + Text(f"{event.status}{reason(event)}", style=style)
        case ev.Chunk():
            return mark("…", "dim") + step_name(event.step) + Text(f"  {brief(event.value)}", style="dim")
        case _:
            return mark("·", "dim") + Text(shown(event.type))


def _attempt(attempt: int) -> str:
    return f"  (attempt {attempt})" if attempt > 1 else ""


def reason(event: ev.RunFinished) -> str:
    """Return why a run ended so, behind a colon; nothing for one that simply did."""
    return f": {shown(event.reason)}" if event.reason else ""


def failure(event: ev.StepFailed) -> str:
    """Return what an attempt failed with, and whether another follows."""
    if event.cancelled:
        return "cancelled by the run's own code"
    again = ""
    if event.retry_at is not None:
        again = f" (attempt {event.attempt}, again in {duration(event.retry_at - event.at)})"
    return f"{shown(event.error.type)}: {shown(event.error.message)}{again}"


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
