"""`holdfast tail`: a run's events, from any cursor."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import click
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.exits import Exit
from holdfast.cli.lines import Stopwatch, line_of
from holdfast.cli.options import archive_option, common, key_option, run_argument
from holdfast.cli.store import open_source
from holdfast.cli.surface import Surface, brief, shown
from holdfast.cli.wording import clock
from holdfast.client.standing import as_time
from holdfast.client.wire import event_form
from holdfast.stream.event import Event


@click.command("tail")
@run_argument(required=False)
@key_option
@archive_option
@click.option("--after", metavar="CURSOR", help="Only what follows this event id.")
@click.option("--follow/--no-follow", default=True, help="Wait for more until the run has ended (the default), or not.")
@common()
def tail(
    surface: Surface, *, run: str | None, key: str | None, archive: str | None, after: str | None, follow: bool
) -> int:
    """Print a run's events: history, then live until it ends."""
    tailing = Tailing(surface, after, archive)
    try:
        asyncio.run(tailing.tell(run, key, follow=follow and archive is None))
    except KeyboardInterrupt:
        return tailing.interrupted()
    return Exit.FINE


@dataclass
class Tailing:
    """A reader of one run, and where it is."""

    surface: Surface
    seen: str | None
    archive: str | None = None
    run: str | None = None

    async def tell(self, run: str | None, key: str | None, *, follow: bool) -> None:
        """Print events after the cursor until there are no more."""
        watch = Stopwatch()
        async with open_source(self.surface.store, self.archive, run, key) as (client, found):
            self.run = found
            async for event in client.events(found, after=self.seen, follow=follow):
                if self.surface.json:
                    self.surface.value(event_form(event))
                else:
                    self.surface.out.print(_line(event, watch), soft_wrap=True)
                self.seen = event.id or self.seen

    def interrupted(self) -> int:
        """Say how to go on after Ctrl-C."""
        data = {}
        if self.run is not None:
            data["resume"] = self.surface.command("tail", self.run, *(("--after", self.seen) if self.seen else ()))
        hint = f"Go on from here:\n  {data['resume']}" if data else ""
        self.surface.fail("interrupted", "the run itself is not touched", hint=hint, word="interrupted", **data)
        return Exit.INTERRUPTED


def _line(event: Event, watch: Stopwatch) -> Text:
    """Return an event's id, time and words; also those that a run's own display leaves out."""
    took = watch.took(event)
    if isinstance(event, ev.PreviewReset):
        return Text("            ‹preview reset: forget the chunks since the last entry›", style="dim")
    said = line_of(event, took)
    if said is None:
        said = Text.assemble(("· ", "dim"), (event.type, "dim"), ("  " + _detail(event), "dim"))
    at = clock(as_time(event.at), datetime.now(UTC))
    return Text.assemble((f"{event.id:>8}", "cyan"), (f"  {at}  ", "dim"), said)


def _detail(event: Event) -> str:
    match event:
        case ev.RunStarted():
            return f"{shown(event.name)} {brief(event.value)}"
        case ev.ValueTaken():
            return f"{shown(event.name)} {brief(event.value)}"
        case _:
            return ""
