"""`holdfast gc`: delete what is old, some at a time, and keep it in an archive if asked to."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

import click
from rich.text import Text

from holdfast.cli.completion import complete_file, complete_name
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common
from holdfast.cli.progress import progress
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import counted, seconds_of
from holdfast.client.protocol import Collected, Retention
from holdfast.core.retry import checked_seconds
from holdfast.core.status import TERMINAL, Status

_REASONS: Final = {
    "parent": "an open run that spawned it may ask for its result",
    "children": "a run that it spawned is open",
    "damaged": "damaged: see `holdfast verify`",
    "unknown_entry": "written by a newer Holdfast",
    "open": "not ended",
}


def _duration(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Return the seconds of a length of time as people write it."""
    seconds = seconds_of(text)
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a length of time: write 30d, 12h or 90m")
    return checked_seconds("--older-than", seconds)


def _statuses(context: click.Context, parameter: click.Parameter, text: str | None) -> frozenset[Status]:
    """Return endings that were written with commas between them."""
    words = [word.strip() for word in text.split(",")] if text is not None else list(TERMINAL)
    if not set(words) <= TERMINAL:
        raise click.BadParameter(f"{text!r} is not some of {', '.join(sorted(TERMINAL))}")
    return frozenset(Status(word) for word in words)


@click.command("gc")
@click.option(
    "--older-than", metavar="TIME", required=True, callback=_duration, help="Ended longer ago: 30d, 12h, 90m."
)
@click.option("--status", "statuses", metavar="STATUS,…", callback=_statuses, help="Only runs that ended so.")
@click.option("--name", metavar="NAME", help="Only runs of this function.", shell_complete=complete_name)
@click.option("--keep", type=click.IntRange(0), default=0, metavar="N", help="Keep the newest N of each name.")
@click.option(
    "--archive", metavar="FILE", help="Add each run to this file before it goes.", shell_complete=complete_file
)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@common()
def gc(
    surface: Surface, *, older_than: float, statuses: frozenset[Status], name: str | None, keep: int,
    archive: str | None, dry_run: bool,
) -> int:  # fmt: skip
    """Delete runs that ended long ago, and what only they needed.

    Some at a time, so that nobody who works on the store is held up; Ctrl-C ends it between two lots. Keys stay taken.
    With --archive a run is on disk in that file before it is gone from the store.
    """
    policy = Retention(older_than_seconds=older_than, statuses=statuses, name=name, keep=keep)
    collecting = Collecting(surface, policy, archive, dry_run)
    try:
        asyncio.run(collecting.run())
    except KeyboardInterrupt:
        return collecting.interrupted()
    return Exit.FINE


@dataclass
class Collecting:
    """One clean-up, and how far it is."""

    surface: Surface
    policy: Retention
    archive: str | None
    dry_run: bool
    so_far: Collected = field(default_factory=Collected)

    async def run(self) -> None:
        """Clean up and tell what was done."""
        with progress(self.surface, "looking") as tell:

            def heard(so_far: Collected) -> None:
                self.so_far = so_far
                tell(f"{counted(so_far.deleted, 'run')} {'found' if self.dry_run else 'deleted'}")

            async with open_client(self.surface.store) as client:
                done = await client.gc(self.policy, archive=self.archive, dry_run=self.dry_run, tell=heard)
                name = self.policy.name
                unknown = name is not None and not done.deleted and not await client.runs(name=name, limit=1)
        if unknown and not self.surface.json:
            self.surface.say(mark("!", "yellow") + Text(f"no run is called {shown(repr(name))}: nothing was deleted"))
            return
        self._tell(done)

    def _tell(self, done: Collected) -> None:
        if self.surface.json:
            self.surface.value(done)
            return
        would = "would be deleted" if self.dry_run else "deleted"
        said = f"{counted(done.deleted, 'run')} {would}"
        if done.archive is not None:
            said += f", archived in {shown(done.archive)}"
        if done.blobs:
            said += f"; {counted(done.blobs, 'blob')} that nothing names removed"
        self.surface.say(mark("✓", "green") + Text(said))
        for reason, number in done.kept.items():
            self.surface.say(Text(f"  {counted(number, 'run')} kept: {_REASONS.get(reason, reason)}", style="dim"))

    def interrupted(self) -> int:
        """Say how far it came before Ctrl-C."""
        number = 0 if self.dry_run else self.so_far.deleted
        message = f"{counted(number, 'run')} deleted, each of them whole; the others are as they were"
        self.surface.fail("interrupted", message, hint="The same command goes on.", word="interrupted", deleted=number)
        return Exit.INTERRUPTED
