"""`holdfast verify`: read everything again and name what does not add up."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common, run_argument
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import counted
from holdfast.client.protocol import Finding

_SAY_EVERY_SECONDS: Final = 5.0


@click.command("verify")
@run_argument(required=False)
@common()
async def verify(surface: Surface, *, run: str | None) -> int:
    """Check every entry of one run, or of all, and name run and entry where something is damaged.

    Exits with 1 if anything is.
    """
    checked = wrong = 0
    async with open_client(surface.store) as client:
        one = await find_run(client, run) if run is not None else None
        with _progress(surface) as tell:

            def seen(run: str) -> None:
                nonlocal checked
                checked += 1
                tell(checked)

            async for finding in client.verify(one, seen=seen):
                wrong += 1
                _say(surface, finding)
    if wrong:
        advice = "Restore a damaged run from a backup, or start it anew under another key; the others go on."
        surface.say(Text(advice, style="dim"))
        return Exit.FAILED
    what = f"run {one}" if one is not None else counted(checked, "run")
    surface.say(mark("✓", "green") + Text(f"{what}: nothing is wrong"))
    return Exit.FINE


def _say(surface: Surface, finding: Finding) -> None:
    if surface.json:
        surface.value(finding)
        return
    where = "the store" if finding.run is None else f"run {finding.run}"
    entry = f", entry {finding.seq}" if finding.seq is not None else ""
    surface.out.print(Text.assemble(mark("✗", "red"), f"{where}{entry}: {shown(finding.what)}"), soft_wrap=True)


@contextmanager
def _progress(surface: Surface) -> Iterator[Callable[[int], None]]:
    """Give a function that tells how far it is: a spinner on a terminal, else a line every few seconds."""
    if surface.talks and surface.err.is_terminal:
        with surface.err.status(Text("reading", style="dim")) as status:
            yield lambda checked: status.update(Text(f"{counted(checked, 'run')} read", style="dim"))
        return
    said = time.monotonic()

    def tell(checked: int) -> None:
        nonlocal said
        if time.monotonic() - said >= _SAY_EVERY_SECONDS:
            said = time.monotonic()
            surface.say(Text(f"{counted(checked, 'run')} read", style="dim"))

    yield tell
