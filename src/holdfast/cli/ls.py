"""`holdfast ls`: runs, newest first."""

from datetime import UTC, datetime
from typing import Final

import click
from rich.table import Table
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.liveness import dead_runs
from holdfast.cli.options import common, labels_of
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import between, duration
from holdfast.client.protocol import Client, RunSummary
from holdfast.core.status import Status

COLOURS: Final = {
    Status.QUEUED: "",
    Status.RUNNING: "cyan",
    Status.WAITING: "yellow",
    Status.PAUSED: "yellow",
    Status.EXHAUSTED: "red",
    Status.QUARANTINED: "red",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}
_PAGE: Final = 500


@click.command("ls")
@click.option("--status", type=click.Choice([str(status) for status in Status]), help="Only runs that stand so.")
@click.option("--name", metavar="NAME", help="Only runs of this function.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only runs so labelled; may be repeated.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="How many.")
@click.option("--before", metavar="RUN", help="Only runs older than this one: the next page.")
@common()
async def ls(
    surface: Surface, *, status: str | None, name: str | None, labels: tuple[str, ...], limit: int, before: str | None
) -> int:
    """List runs, newest first."""
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
            runs += page
            last = page[-1].id  # type: ignore[assignment]
        more, runs = len(runs) > limit, runs[:limit]
        if surface.json:
            for run in runs:
                surface.value(run)
            return Exit.FINE
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
    if not runs:
        return
    dead = await dead_runs(client) if any(run.status is Status.RUNNING for run in runs) else set()
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=not surface.quiet)
    for title in ("RUN", "NAME", "STATUS", "AGE"):
        table.add_column(title, no_wrap=True, justify="right" if title == "AGE" else "left")
    table.add_column("KEY", overflow="ellipsis", no_wrap=True)
    table.add_column("", overflow="ellipsis", no_wrap=True, style="dim")
    now = datetime.now(UTC)
    for run in runs:
        reason = "its process is dead" if run.id in dead else _reason(run)
        table.add_row(
            run.id,
            shown(run.name),
            Text(run.status, style=COLOURS[run.status]),
            duration(between(run.created_at, now)),
            shown(run.key or ""),
            reason,
        )
    surface.out.print(table)


def _reason(run: RunSummary) -> str:
    return shown(run.reason).removesuffix(":")
