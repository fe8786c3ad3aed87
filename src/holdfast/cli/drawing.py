"""The lines of a run's picture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rich.text import Text

from holdfast import events as ev
from holdfast.cli.gist import gist_of
from holdfast.cli.lines import ENDINGS, doubt, failure, line_of, mark, resolution
from holdfast.cli.picture import Act, Picture, Process
from holdfast.cli.questions import changing
from holdfast.cli.saying import ending, raising, resting
from holdfast.cli.surface import Surface, brief, shown
from holdfast.cli.table import COLOURS
from holdfast.cli.wording import between, clock, counted, duration, step_name
from holdfast.client.protocol import Question, RunInfo, SignalInfo
from holdfast.client.serving import LACKING
from holdfast.client.standing import as_time
from holdfast.core.budget import DEADLINE, NANO, STEPS, USD, amount
from holdfast.core.divergence import advice
from holdfast.core.status import Status

_MOST_ACTS: Final = 40
_MOST_FRAMES: Final = 9
_HEAD: Final = 25
_NAME_COLUMNS: Final = 40


class Columns(NamedTuple):
    """How wide the names of a run's steps are, and whether any of them has an effect and a time."""

    name: int
    effect: bool
    took: bool


def draw_run(
    surface: Surface, info: RunInfo, picture: Picture, *, asked: Sequence[Question] = (),
    signals: Sequence[SignalInfo] = (), dead: bool = False, everything: bool = False,
) -> Iterator[Text]:  # fmt: skip
    """Yield the lines; `asked` and `signals` are its open questions and what waits in its inbox, `dead` says that
    whoever holds it is known to be gone.
    """
    yield from _head(info, picture)
    acts = [act for process in picture.processes for act in process.acts]
    columns = Columns(
        name=min(max([len(step_name(act.step)) for act in acts if act.step] or [0]), _NAME_COLUMNS),
        effect=any(act.effect is not None for act in acts),
        took=any(act.took is not None for act in acts),
    )
    before: Process | None = None
    for process in picture.processes:
        yield Text("")
        yield from _process(process, before, columns, everything=everything, dead=dead)
        before = process
    yield from _inbox(signals, ended=info.status.terminal)
    yield from _advice(surface, info, picture, asked, dead=dead)


def _head(info: RunInfo, picture: Picture) -> Iterator[Text]:
    yield Text.assemble((shown(info.name), "bold"), "  ", info.id)
    ended = between(info.created_at, info.updated_at)
    age = between(info.created_at, datetime.now(UTC))
    since = f" in {duration(ended)}" if info.status.terminal else f" · started {duration(age)} ago"
    processes = f"{len(picture.processes)} processes" if len(picture.processes) > 1 else "1 process"
    entries = f"{info.last_seq:,} entries" if info.last_seq > 1 else "1 entry"
    yield Text.assemble(
        (info.status, f"bold {COLOURS[info.status]}".strip()), (f"{since} · {processes} · {entries}", "dim")
    )
    pairs = [("key", shown(info.key) if info.key else ""), ("labels", _labels(info)), ("input", brief(info.input))]
    if info.base is not None:
        pairs.append(("base", f"{info.base}, up to its entry {info.base_seq}"))
    for fork in info.forks:
        pairs.append(("retry" if fork.retry else "fork", f"{fork.id}, behind entry {fork.at}"))
    if info.budget is not None:
        pairs.append(("budget", _budget(info.budget)))
    if info.status is Status.COMPLETED:
        pairs.append(("result", brief(info.result)))
    for name, value in pairs:
        if value:
            yield Text.assemble((f"  {name:<7} ", "dim"), value)


def _budget(budget: dict[str, Any]) -> str:
    said = []
    for channel, known in budget.items():
        if channel == DEADLINE:
            said.append(f"until {clock(known, datetime.now(UTC))}")
        else:
            said.append(_account(channel, known))
    return "; ".join(said)


def _account(channel: str, known: dict[str, Any]) -> str:
    """Return what is left of one channel; money is told in dollars."""
    sums = {
        name: round(known[name] * NANO) if channel == USD else known[name] for name in ("free", "total", "reserved")
    }
    free, total, reserved = (amount(channel, sums[name]) for name in ("free", "total", "reserved"))
    held = "given to children" if channel == STEPS else "set aside"
    said = f"{free} of {total}{'' if channel == USD else f' {channel}'} left"
    if known["reserved"]:
        said += f", {reserved} {held}"
    return f"{said}, some spent uncounted" if known.get("unknown") else said


def _labels(info: RunInfo) -> str:
    return "  ".join(f"{shown(name)}={shown(value)}" for name, value in info.labels.items())


def _process(
    process: Process, before: Process | None, columns: Columns, *, everything: bool, dead: bool
) -> Iterator[Text]:  # fmt: skip
    yield _title(process, before)
    if before is not None or process.forked:
        kept = f"{counted(process.replayed, 'step')} replayed from the journal, not performed again"
        anew = "nothing was recorded: it begins again" if process.begins else "no step had an outcome: it goes on"
        said = kept if process.replayed else anew
        yield _bar() + mark("↻", "cyan") + Text(said, style="cyan")
    for act in _shortened(list(_told(process)), everything=everything):
        yield _bar() + (_line(act, columns, process) if isinstance(act, Act) else act)
    yield _end(process, dead=dead)
    last = process.ending.entry if process.ending is not None else None
    if isinstance(last, ev.RunFinished) and last.error is not None and last.error.traceback is not None:
        for line in last.error.traceback.splitlines()[-_MOST_FRAMES:]:
            yield Text(f"    {shown(line)}", style="dim")


def _told(process: Process) -> Iterator[Act]:
    """Yield what has a line of its own: a rest between others only if nothing there has told what it waits for."""
    known: set[str] = set()
    for act in process.acts:
        if act is process.ending or (act.effect is None and line_of(act.entry) is None):
            continue
        if isinstance(act.entry, ev.RunParked):
            waits = {wait.step for wait in act.entry.waits} if act.entry.status is Status.WAITING else set()
            if waits and waits <= known:
                continue
            known |= waits
        elif act.step is not None:
            known.add(act.step)
        yield act


def _inbox(signals: Sequence[SignalInfo], *, ended: bool) -> Iterator[Text]:
    """Yield what was sent and waits, each name once."""
    names = Counter(signal.name for signal in signals)
    if names:
        yield Text("")
    for name, number in names.items():
        nobody = "nobody received" if ended else "nobody has received yet"
        said = f"{counted(number, 'signal')} {shown(repr(name))} in the inbox, which {nobody}"
        yield mark("!", "yellow") + Text(said, style="yellow")


def _bar() -> Text:
    return mark("│", "dim")


def _title(process: Process, before: Process | None) -> Text:
    at = clock(as_time(process.began_at), datetime.now(UTC))
    title = Text.assemble(("╭ ", "dim"), (f"process {process.number}", "bold"), (f"  {at}", "dim"))
    if before is not None:
        title.append(f"  {duration(process.began_at - before.ended_at)} later", style="dim")
    return title


def _shortened(acts: Sequence[Act], *, everything: bool) -> Iterator[Act | Text]:
    if everything or len(acts) <= _MOST_ACTS:
        yield from acts
        return
    yield from acts[:_HEAD]
    left_out = len(acts) - _MOST_ACTS + 1
    yield Text(f"⋮ {left_out:,} more (--all shows them)", style="dim")
    yield from acts[_HEAD + left_out :]


def _line(act: Act, columns: Columns, process: Process) -> Text:
    """Return an act's line in columns: sign, step, effect, time, and what there is to say."""
    if act.step is None or isinstance(act.entry, ev.RunParked):
        return line_of(act.entry) or Text(act.entry.type)
    if act.effect is None:
        sign, said = _said_of_wait(act)
    else:
        word, style, words = _said(act, process)
        attempt = f"  attempt {act.attempt}" if act.attempt > 1 else ""
        told = "" if isinstance(act.entry, ev.MessageAdded) else style
        sign, said = mark(word, style), Text.assemble((attempt, "yellow"), (words, told))
    name = step_name(act.step)
    name.truncate(_NAME_COLUMNS, overflow="ellipsis")
    name.pad_right(columns.name - len(name))
    effect = Text(f"  {act.effect or '':<6}", style="magenta" if act.effect != "repeat" else "dim")
    took = f"  {duration(act.took) if act.took is not None else '':>7}"
    line = Text.assemble(sign, name, effect if columns.effect else "", (took if columns.took else "", "dim"), said)
    line.rstrip()
    return line


def _said_of_wait(act: Act) -> tuple[Text, Text]:
    """Return the sign and the words of what is no step: a wait, a question, a child."""
    if isinstance(act.entry, ev.StepFailed) and act.note:
        return mark("✗", "yellow"), Text(f"  {act.note}", style="yellow")
    assert act.step is not None
    line = line_of(act.entry) or Text("")
    sign, said = line[:2], line[2 + len(step_name(act.step)) :]
    return sign, said.append(f"  {act.note}", style="yellow") if act.note else said


def _said(act: Act, process: Process) -> tuple[str, str, str]:
    """Return an act's sign, colour and words."""
    match act.entry:
        case ev.StepCompleted():
            return "✓", "green", ""
        case ev.MessageAdded() as message:
            gist = gist_of(message)
            return gist.sign, gist.style, f"  {gist.words}"
        case ev.StepStarted():
            working = process.end == "working"
            return "…", "cyan" if working else "yellow", "  under way" if working else "  begun, no outcome recorded"
        case ev.StepFailed() as failed:
            return "✗", "red", f"  {act.note or failure(failed)}"
        case ev.StepDoubted() as doubted:
            return "?", "yellow", f"  in doubt: {doubt(doubted)}"
        case ev.StepResolved() as resolved:
            done = resolved.outcome == "done"
            return "✓" if done else "·", "green" if done else "yellow", f"  {resolution(resolved)}"
        case _:
            return "·", "dim", ""


def _end(process: Process, *, dead: bool) -> Text:
    lasted = duration(process.ended_at - process.began_at)
    corner = mark("╰", "dim")
    last = process.ending.entry if process.ending is not None else None
    match process.end, last:
        case "finished", ev.RunFinished() as finished:
            style = ENDINGS.get(finished.status, "")
            return (
                corner
                + mark("■", style)
                + Text(f"{finished.status}{ending(finished.status, finished.reason)}", style=style)
            )
        case "parked", ev.RunParked() as parked:
            return corner + mark("‖", "yellow") + Text(f"rests: {resting(parked)}", style="yellow")
        case "working", _ if not dead:
            return corner + mark("…", "cyan") + Text("at work", style="cyan")
        case "waiting", _:
            return corner + mark("…", "dim") + Text("nobody has taken it up yet", style="dim")
        case _:
            heard = f"here (last entry after {lasted})" if process.acts else "before it recorded anything"
            return mark("╳", "bold red") + Text(f"lost: killed, crashed or stopped {heard}", style="red")


def _advice(
    surface: Surface, info: RunInfo, picture: Picture, asked: Sequence[Question], *, dead: bool
) -> Iterator[Text]:  # fmt: skip
    """Yield what to do next, if anything is."""
    lines = list(_ways_on(surface, info, picture, asked, dead=dead))
    if lines:
        yield Text("")
    for line in lines:
        yield Text(shown(line), style="dim" if not line.startswith("  ") else "")


def _ways_on(
    surface: Surface, info: RunInfo, picture: Picture, asked: Sequence[Question], *, dead: bool
) -> Iterator[str]:  # fmt: skip
    rest = picture.resting
    if info.reason.startswith("diverged"):
        yield advice(info.reason)
        yield from (
            "Then have it tried again, if it does not go on by itself:",
            f"  {surface.command('retry', info.id)}",
        )
    elif info.reason.startswith(f"{LACKING}: ") and "no worker serves" not in info.reason:
        yield f"It goes on when a worker with that code comes. {shown(info.reason.partition(': ')[2])}"
        if "forward only" in info.reason:
            yield from ("Or give it to the code that is there:", f"  {surface.command('retry', info.id)}")
    elif info.status is Status.EXHAUSTED:
        yield from ("Raise its budget, and it goes on:", f"  {raising(surface, info.id, info.reason)}")
    elif asked and info.status is Status.WAITING:
        yield "Answer it:" if len(asked) == 1 else "Answer them:"
        for question in asked:
            yield f"  {surface.command('answer', question.id)}"
            yield from (f"  {way}" for way in changing(surface, question))
    elif picture.doubted and info.status is Status.WAITING and (rest is None or rest.due_at is None):
        resolve = surface.command("resolve", info.id, picture.doubted[0])
        yield from ("Look whether it happened, and say so:", f"  {resolve} --value JSON", f"  {resolve} --not-done")
    elif info.status is Status.PAUSED:
        yield from ("Let it go on:", f"  {surface.command('resume', info.id)}")
    elif info.status is Status.QUARANTINED:
        yield from (f"Set aside: {info.reason}", f"  {surface.command('verify', info.id)}")
        yield from ("Once the cause is gone, have it tried again:", f"  {surface.command('retry', info.id)}")
    elif info.status is Status.FAILED and not any(fork.retry for fork in info.forks):
        yield from ("Once the cause is gone, have it tried again:", f"  {surface.command('retry', info.id)}")
    elif rest is not None and (signals := _signals(rest)):
        yield "Send it:" if len(signals) == 1 else "Send one of them:"
        yield from (f"  {surface.command('signal', info.id, name)} JSON" for name in signals)
    elif rest is not None and rest.due_at is not None:
        due, now = as_time(rest.due_at), datetime.now(UTC)
        if due <= now:
            yield f"It is due since {clock(due, now)} and goes on when its program runs."
        else:
            yield f"It goes on at {clock(due, now)}, if its program runs then."
    elif dead or picture.processes[-1].end == "lost":
        yield "It goes on from here when its program runs again."


def _signals(rest: ev.RunParked) -> Sequence[str]:
    """Return the signals that a run at rest waits for."""
    return [name for wait in rest.waits if wait.kind == "signal" for name in wait.name.split(", ")]
