"""`holdfast doctor`: look at everything that a run's life depends on, and say what to do."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Final

import click
from rich.text import Text

from holdfast.cli.checkup import BAD, NOTE, OK, Check, check_disk, check_python, check_settings, listed
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.liveness import is_alive
from holdfast.cli.options import common
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import between, counted, duration
from holdfast.client.protocol import Client, RunSummary, WorkerInfo
from holdfast.core.checkpoint import INTERRUPTED
from holdfast.core.divergence import UNSTEADY, is_unsteady
from holdfast.core.errors import Diverged, HoldfastError, NoStore
from holdfast.core.ids import RunId
from holdfast.core.status import Status

_PAGE: Final = 200
_RESTING: Final = (Status.QUEUED, Status.WAITING)
_OVERDUE: Final = timedelta(seconds=5)
_UNSTEADY: Final = "unsteady"
_SIGNS: Final = {OK: ("✓", "green"), NOTE: ("!", "yellow"), BAD: ("✗", "red")}


@click.command("doctor")
@common()
async def doctor(surface: Surface) -> int:
    """Check Python, store, disk, workers and runs, and say what to do about each.

    Exits with 1 if something is wrong, with 5 if the store cannot be used; notes alone are no failure.
    """
    worst = Exit.FINE
    async for check in _checks(surface):
        _say(surface, check)
        if check.status == BAD and worst != Exit.STORE:
            worst = Exit.STORE if check.check == "store" else Exit.FAILED
    return worst


def _say(surface: Surface, check: Check) -> None:
    if surface.json:
        surface.value(check)
        return
    if surface.quiet and check.status == OK:
        return
    sign, style = _SIGNS[check.status]
    line = Text.assemble(mark(sign, style), (f"{check.check:<11}", "bold"), shown(check.found))
    surface.out.print(line, soft_wrap=True)
    for advice in check.advice.splitlines():
        surface.out.print(Text(f"{'':13}{shown(advice)}", style="dim"), soft_wrap=True)


async def _checks(surface: Surface) -> AsyncIterator[Check]:
    yield check_python()
    try:
        async with open_client(surface.store) as client:
            about = await client.describe()
            yield Check("store", OK, f"{surface.place} answers and can be written", "")
            yield check_settings(about)
            if "path" in about:
                for check in check_disk(about["path"]):
                    yield check
            async for check in _look_inside(client, surface):
                yield check
    except NoStore as error:
        yield Check("store", NOTE, str(error), error.hint)
    except HoldfastError as error:
        yield Check("store", BAD, str(error), error.hint)


async def _look_inside(client: Client, surface: Surface) -> AsyncIterator[Check]:
    workers = [(worker, is_alive(worker)) for worker in await client.workers()]
    yield _workers(workers)
    dead = [run for worker, alive in workers if alive is False for run in worker.runs]
    if dead:
        found = f"{counted(len(dead), 'run')} held by a dead worker"
        advice = "Run its program: it goes on." if len(dead) == 1 else "Run their program: they go on."
        yield Check("runs", NOTE, found, advice + listed(dead), dead)
    for check in await _stuck(client, surface):
        yield check
    unserved = await _unserved(client)
    if unserved:
        alive = any(alive is not False for _, alive in workers)
        knows = f"no worker that runs knows {'it' if len(unserved) == 1 else 'them'}"
        why = knows if alive else "no worker is running"
        names = ", ".join(sorted({run.name for run in unserved}))
        ids = [run.id for run in unserved]
        found = f"{counted(len(ids), 'run')} due, but {why}: {names}"
        yield Check("runs", NOTE, found, f"Run the program that has {names}.{listed(ids)}", ids)


def _workers(workers: list[tuple[WorkerInfo, bool | None]]) -> Check:
    if not workers:
        return Check("workers", OK, "none is running", "")
    now = datetime.now(UTC)
    words = {True: "alive", False: "dead", None: "not known to be alive"}
    lines = [
        f"{worker.id}  {words[alive]}, started {duration(between(worker.started_at, now))} ago, "
        f"holds {counted(len(worker.runs), 'run')}"
        for worker, alive in workers
    ]
    dead = sum(alive is False for _, alive in workers)
    found = f"{len(workers) - dead} running" + (f", {dead} dead and not yet replaced" if dead else "")
    if dead:
        lines.append("Run its program, or start another worker: what the dead one held goes on, and it is forgotten.")
    return Check("workers", NOTE if dead else OK, found, "\n".join(lines))


async def _stuck(client: Client, surface: Surface) -> list[Check]:
    """Return a check for each kind of rest that does not end by itself."""
    checks = []
    aside = [*await client.runs(status=Status.QUARANTINED, limit=_PAGE)]
    if aside:
        advice = f"`{surface.command('verify')}` names what is damaged; `holdfast show RUN` tells the rest."
        checks.append(_group(BAD, f"{counted(len(aside), 'run')} set aside", advice, aside))
    waiting = await client.runs(status=Status.WAITING, limit=_PAGE)
    kinds = (
        ("doubt", "waiting for a person's word", "`holdfast show RUN` prints the command that gives it."),
        ("diverged", "diverged from {their} code", Diverged.hint),
        (_UNSTEADY, "diverged though {their} code is the same", UNSTEADY),
        ("unknown_entry", "written by a newer Holdfast", "Upgrade the Holdfast that runs them."),
    )
    for reason, found, advice in kinds:
        runs = [run for run in waiting if _kind(run) == reason]
        if runs:
            said = found.format(their="its" if len(runs) == 1 else "their")
            checks.append(_group(NOTE, f"{counted(len(runs), 'run')} {said}", advice, runs))
    return checks or [Check("runs", OK, "none is set aside, diverged or in doubt", "")]


def _kind(run: RunSummary) -> str:
    """Return what a run waits for, in one word."""
    word, _, _ = run.reason.partition(":")
    return _UNSTEADY if word == "diverged" and is_unsteady(run.reason) else word


def _group(status: str, found: str, advice: str, runs: list[RunSummary]) -> Check:
    ids = [run.id for run in runs]
    return Check("runs", status, found, advice + listed(ids), ids)


async def _unserved(client: Client) -> list[RunSummary]:
    """Return runs that could go on and that nobody took up for a while."""
    late = datetime.now(UTC) - _OVERDUE
    resting = [run for status in _RESTING for run in await client.runs(status=status, limit=_PAGE)]
    return [run for run in resting if run.updated_at < late and await _is_due(client, run, late)]


async def _is_due(client: Client, run: RunSummary, late: datetime) -> bool:
    if run.reason.startswith(("doubt", "diverged", "unknown_entry", INTERRUPTED)):
        return False
    due_at: int | None = None
    async for event in client.events(RunId(run.id), after=run.last_seq - 1 or None, follow=False):
        due_at = getattr(event, "due_at", None)
    return (run.status is Status.QUEUED and due_at is None) or (due_at is not None and due_at < late.timestamp() * 1e6)
