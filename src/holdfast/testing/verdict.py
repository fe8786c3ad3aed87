"""Whether a program has survived a crash: its ending against the unbroken one, and what was performed."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from holdfast.core import entry as e
from holdfast.core.status import Status
from holdfast.testing.life import Ended, Lived, once_steps

_SHOWN = 300


class NotSurvived(AssertionError):
    """A program did not end as it should: `ended` is how it did, `unbroken` how it does when nobody kills it."""

    def __init__(self, what: str, ended: Ended, unbroken: Ended) -> None:
        where = f"killed {ended.crash}" if ended.crash is not None else "unbroken"
        super().__init__("\n".join([f"{where}: {what}", *_told(ended)]))
        self.what, self.ended, self.unbroken = what, ended, unbroken


def judge_unbroken(first: Ended, second: Ended, known: Collection[str]) -> None:
    """Refuse a program of which no crash could tell anything; `known` are the functions of the test's app.

    Raises:
        NotSurvived: it does not end by itself, or ends otherwise each time.
    """
    if not first.status.terminal:
        what = f"it does not end by itself: it is {_ending(first)}{_missing(first, known)}"
        raise NotSurvived(what, first, first)
    if _outcome(first) != _outcome(second):
        what = (
            f"it is {_ending(first)} at first, then {_ending(second)}: what it returns depends on something outside "
            "the run. Let a step fetch it, take ctx.now(), ctx.random or ctx.uuid(), or put it back in setup="
        )
        raise NotSurvived(what, second, first)


def judge_signals(unwanted: Sequence[str], unbroken: Ended) -> None:
    """Refuse a campaign that has signals which nobody wants: it tests something other than it says.

    Raises:
        NotSurvived: there are some.
    """
    if unwanted:
        what = (
            f"no run received signal {', '.join(map(repr, unwanted))}, in any trial: "
            "nothing waits for it under that name, or not before its time is over"
        )
        raise NotSurvived(what, unbroken, unbroken)


def judge(ended: Ended, unbroken: Ended, lives: Sequence[Lived], *, allow_doubt: bool) -> None:
    """Compare a run that was killed with the unbroken one.

    Raises:
        NotSurvived: they differ, or something was performed that must not be.
    """
    for lived in lives:
        again = [step for step in lived.performed if step in lived.recorded]
        if again:
            what = f"step {again[0][1]} was performed again, although its outcome was recorded"
            raise NotSurvived(what, ended, unbroken)
    for step in sorted(once_steps(ended.entries)):
        if ended.performed.get(step, 0) > 1:
            what = f"step {step} may happen once, but happened {ended.performed[step]} times"
            raise NotSurvived(f"{what}{_blame(ended, step)}", ended, unbroken)
    if ended.doubted and allow_doubt:
        return
    if _outcome(ended) != _outcome(unbroken):
        what = f"it is {_ending(ended)}, but unbroken it is {_ending(unbroken)}"
        raise NotSurvived(f"{what}{_advice(ended)}", ended, unbroken)


def _outcome(ended: Ended) -> tuple[Status, Any, Any]:
    error = ended.error or {}
    return ended.status, ended.result, (error.get("type"), error.get("message"))


def _ending(ended: Ended) -> str:
    if ended.status is Status.COMPLETED:
        return f"completed with {_short(repr(ended.result))}"
    return f"{ended.status} ({_short(ended.reason)})"


def _missing(ended: Ended, known: Collection[str]) -> str:
    """Return which functions nobody can drive that the run waits for, if any."""
    names = ", ".join(repr(name) for name in ended.unended if name not in known)
    return (
        f". No app of this test has {names}: give app=hf.App(...) with every function that it starts" if names else ""
    )


def _blame(ended: Ended, step: str) -> str:
    said = [entry for entry in ended.entries if isinstance(entry, e.StepResolved) and entry.step == step]
    if any(entry.how == "verify" and entry.outcome == "not_done" for entry in said):
        return ": its verify= said that it had not happened, when it had"
    return ""


def _advice(ended: Ended) -> str:
    if ended.doubted:
        return (
            f". Nobody knows whether {', '.join(ended.doubted)} happened: give it verify=, or say allow_doubt=True "
            "if that is how it should end"
        )
    if ended.reason.startswith("diverged"):
        return ". Between its steps the function does not do the same each time"
    return ""


def _told(ended: Ended) -> Iterator[str]:
    """Yield the lines that tell a run's story: its journal, and what was performed more than once."""
    yield "its journal:"
    for entry in ended.entries:
        facts = [getattr(entry, name) for name in ("name", "step", "why", "outcome", "reason") if hasattr(entry, name)]
        yield _short(f"{entry.seq:5} {entry.type} {' '.join(str(fact) for fact in facts if fact)}".rstrip())
    often = {step: times for step, times in Counter(ended.performed).items() if times > 1}
    for step, times in often.items():
        yield f"{step} was performed {times} times"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
