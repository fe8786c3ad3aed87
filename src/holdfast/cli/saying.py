"""What is said of a run that waits, in words."""

import re
from datetime import UTC, datetime
from typing import Final

from holdfast import events as ev
from holdfast.cli.surface import Surface, brief, shown
from holdfast.cli.wording import clock, counted, duration
from holdfast.client.standing import as_time
from holdfast.core.budget import CALLS, DEADLINE, STEPS, TOKENS, USD, amount
from holdfast.core.entry import BudgetMove, Wait
from holdfast.core.status import Status

_REASONS: Final = {
    "ask": "waits for an answer",
    "signal": "waits for signal",
    "callback": "waits for the callback",
    "child": "waits for child",
    "sleep": "sleeps",
    "retry": "waits for its next attempt",
    "harness": "waits for what it began elsewhere",
    "pace": "waits for its turn with the provider",
    "code": "waits for code",
}
_WITH_COLON: Final = ("ask", "retry", "code")


_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00")
_SPENT: Final = {
    STEPS: "out of steps",
    CALLS: "out of model calls",
    TOKENS: "out of tokens",
    USD: "out of money",
    DEADLINE: "past its deadline",
}
_MORE: Final = {STEPS: "100", CALLS: "100", TOKENS: "100000", USD: "1", DEADLINE: "1h"}
"""What is proposed to raise a budget by."""


def change_of_budget(event: ev.BudgetChanged) -> str:
    """Return what was added to a run's budget, or charged to it."""
    said = []
    for move in event.moves:
        if move.channel == DEADLINE:
            said.append(f"its deadline is {duration(move.total)} later")
        elif move.total:
            said.append(f"{amount(move.channel, move.total)} more{_unit(move)}")
        else:
            said.append(f"{amount(move.channel, move.spent)}{_unit(move)} that its children hold are charged")
    _, _, why = event.why.partition(": ")
    return f"{', '.join(said)}{by(event.by)}{f': {shown(why)}' if why else ''}"


def raising(surface: Surface, run: str, reason: str) -> str:
    """Return the command that gives an exhausted run more of what it has used up."""
    return surface.command("raise", run, more_of(reason.partition(":")[0]))


def more_of(channel: str) -> str:
    """Return an amount of a channel as it is written to raise a budget."""
    return f"{channel}={_MORE[channel]}" if channel in _MORE else f"{DEADLINE}={_MORE[DEADLINE]}"


def _unit(move: BudgetMove) -> str:
    if move.channel == USD:
        return ""
    return f" {move.channel.removesuffix('s') if move.total == 1 else move.channel}"


def waiting(reason: str) -> str:
    """Return a run's reason as people read it."""
    word, colon, detail = reason.partition(": ")
    if word == DEADLINE:
        return shown(f"{word}: {_local(detail)}")
    if word not in _REASONS:
        return shown(reason)
    between = ": " if word in _WITH_COLON else " "
    return shown(f"{_REASONS[word]}{between}{detail}" if colon else _REASONS[word])


def resting(event: ev.RunParked) -> str:
    """Return what a run that came to rest waits for: all of it, and until when."""
    if event.status == "paused":
        return shown(f"paused: {event.detail}" if event.detail else "paused")
    if event.status == "exhausted":
        detail = _local(event.detail) if event.reason == DEADLINE else event.detail
        return shown(f"{_SPENT.get(event.reason, event.reason)}: {detail}")
    if event.reason not in _REASONS or not event.waits:
        return shown(event.detail or event.reason)
    said = [_said(wait, event.detail if wait.step == event.step else "") for wait in event.waits]
    return "; ".join(dict.fromkeys(said))


def saved(event: ev.CheckpointSaved) -> str:
    """Return what a loop has saved, and where in it that was."""
    iteration = f", iteration {event.iteration}" if event.iteration is not None else ""
    phase = f", {shown(event.phase)}" if event.phase is not None else ""
    return f"saved {counted(event.count, 'message')}{iteration}{phase}"


def ending(status: Status, reason: str) -> str:
    """Return why a run ended so, behind a colon; nothing for one that simply did, or was cancelled for no reason."""
    why = reason.removeprefix("cancelled").removeprefix(": ") if status is Status.CANCELLED else reason
    return f": {shown(why)}" if why else ""


def _local(detail: str) -> str:
    """Return the detail of a deadline that has passed, with its time as the reader's clock shows it."""
    return _TIME.sub(lambda found: clock(datetime.fromisoformat(found[0]), datetime.now(UTC)), detail)


def _said(wait: Wait, detail: str) -> str:
    what = waiting(f"{wait.kind}: {wait.name or detail}" if wait.name or detail else wait.kind)
    return f"{what}{until(wait.due_at)}"


def until(due_at: int | None) -> str:
    """Return when something ends by itself, behind a blank; nothing for what does not."""
    return f" until {clock(as_time(due_at), datetime.now(UTC))}" if due_at is not None else ""


def begun(event: ev.StepStarted) -> str:
    """Return what a wait that begins is for."""
    kind, _, _ = event.waits[0].partition(" ")
    names = [name for word, _, name in (wait.partition(" ") for wait in event.waits) if name and word == kind]
    if kind == "callback":
        return f"gave out a token for {shown(names[0])}{until(event.due_at)}"
    return f"{waiting(f'{kind}: ' + ', '.join(names)) if names else 'sleeps'}{until(event.due_at)}"


def decision(event: ev.QuestionAnswered) -> str:
    """Return what was decided, by whom and why."""
    if event.expired:
        return "nobody answered in time"
    note = f" ({shown(event.note)})" if event.note else ""
    agreed = f"  {brief(event.value)}" if event.value is not None else ""
    return f"{'yes' if event.yes else 'no'}, says {shown(event.by or 'a person')}{note}{agreed}"


def by(who: str | None) -> str:
    """Return who it was, behind a comma; nothing where nobody said."""
    return f", by {shown(who)}" if who else ""
