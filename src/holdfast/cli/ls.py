"""`holdfast ls`: runs, newest first."""

from datetime import UTC, datetime
from typing import Final

import click
from rich.text import Text

from holdfast.cli.completion import complete_name
from holdfast.cli.exits import Exit
from holdfast.cli.liveness import dead_runs
from holdfast.cli.options import common, labels_of
from holdfast.cli.questions import list_questions
from holdfast.cli.saying import ending, waiting
from holdfast.cli.schedules import list_schedules
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.table import Row, table
from holdfast.cli.wording import between, clock, duration
from holdfast.cli.workers import list_workers
from holdfast.client.protocol import Client, RunSummary
from holdfast.client.standing import is_ours
from holdfast.core.status import Status

_PAGE: Final = 500
_OTHERS: Final = (("workers", list_workers), ("schedules", list_schedules), ("questions", list_questions))


@click.command("ls")
@click.option("--status", type=click.Choice([str(status) for status in Status]), help="Only runs that stand so.")
@click.option("--name", metavar="NAME", help="Only runs of this function.", shell_complete=complete_name)
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only runs so labelled; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--before", metavar="RUN", help="Only runs older than this one: the next page.")
@click.option("--workers", is_flag=True, help="List workers instead of runs.")
@click.option("--schedules", is_flag=True, help="List the schedules that workers look after instead of runs.")
@click.option("--questions", is_flag=True, help="List what waits for a person instead of runs.")
@common()
async def ls(
    surface: Surface, *, status: str | None, name: str | None, labels: tuple[str, ...], limit: int,
    before: str | None, workers: bool, schedules: bool, questions: bool,
) -> int:  # fmt: skip
    """List runs, newest first, or workers, or schedules, or open questions."""
    others = [listing for asked, listing in zip((workers, schedules, questions), _OTHERS, strict=True) if asked]
    if others:
        one, listed = others[0]
        if status or name or labels or before or len(others) > 1:
            raise click.UsageError(f"--{one} lists {one}: leave out what chooses anything else")
        return await listed(surface)
    wanted = Status(status) if status is not None else None
    async with open_client(surface.store) as client:
        last = await find_run(client, before) if before is not None else None
        runs: list[RunSummary] = []
        # One more than asked tells whether there is another page.
        while len(runs) <= limit:
            page = await client.runs(
                status=wanted, name=name, labels=labels_of(labels), before=last, limit=min(limit + 1 - len(runs), _PAGE)
            )
            if not page:
                break
            # What schedules remember themselves by is ours, and shown to whoever names it.
            runs += [run for run in page if name is not None or not is_ours(run.name)]
            last = page[-1].id  # type: ignore[assignment]
        more, runs = len(runs) > limit, runs[:limit]
        if surface.json:
            for run in runs:
                surface.value(run)
            return Exit.FINE
        if runs:
            await _draw(surface, client, runs)
    if not runs:
        surface.say(Text("no runs" + (" like that" if status or name or labels or before else " yet"), style="dim"))
    if more:
        filters = [*_words("--status", status), *_words("--name", name)]
        filters += [word for label in labels for word in ("--label", label)]
        older = surface.command("ls", *filters, "--limit", str(limit), "--before", runs[-1].id)
        surface.say(Text(f"older: {older}", style="dim"))
    return Exit.FINE


def _words(option: str, value: str | None) -> list[str]:
    return [option, value] if value is not None else []


async def _draw(surface: Surface, client: Client, runs: list[RunSummary]) -> None:
    """Print the runs as a table, whose ids can always be copied."""
    dead = await dead_runs(client) if any(run.status is Status.RUNNING for run in runs) else set()
    now = datetime.now(UTC)
    rows = []
    for run in runs:
        reason = "its process is dead" if run.id in dead else waiting(run.reason)
        if run.status is Status.CANCELLED:
            reason = ending(run.status, run.reason).removeprefix(": ")
        if run.due_at is not None and run.reason == "sleep":
            reason += f" until {clock(run.due_at, now)}"
        age = duration(between(run.created_at, now))
        if run.base is not None:
            reason = f"forked from {run.base}" + (f"; {reason}" if reason else "")
        rows.append(Row(run.id, shown(run.name), run.status, age, shown(run.key or ""), reason))
    for line in table(rows, surface.out.width, head=not surface.quiet):
        surface.out.print(line, soft_wrap=True)
