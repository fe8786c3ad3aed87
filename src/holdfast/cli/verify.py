"""`holdfast verify`: read everything again and name what does not add up."""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common, run_argument
from holdfast.cli.progress import progress
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import counted
from holdfast.client.archive import check_archive
from holdfast.client.protocol import Client, Finding
from holdfast.core.errors import NotFound
from holdfast.engine.scheduler import first_seen

Seen = Callable[[str], None]
_PAGE: Final = 1000
_RUN: Final = re.compile("[0-9a-fA-F-]{8,36}")
_ADVICE: Final = "Restore a damaged run from a backup, or start it anew under another key; the others go on."
_ARCHIVE_ADVICE: Final = "The other runs of the archive can be read. A run that is not whole was never deleted by `gc`."


@click.command("verify")
@run_argument(required=False)
@common()
async def verify(surface: Surface, *, run: str | None) -> int:
    """Check every entry of one run, or of all, and name run and entry where something is damaged.

    RUN may also be an archive that `gc` or `export` wrote. Exits with 1 if anything is damaged.
    """
    if run is not None and _RUN.fullmatch(run) is None and os.path.exists(run):
        return await _report(surface, f"{run}: ", partial(_look_at_archive, run), _ARCHIVE_ADVICE)
    async with open_client(surface.store) as client:
        if run is None:
            return await _report(surface, "", partial(client.verify, None), _ADVICE, own=partial(_count_own, client))
        try:
            one = await find_run(client, run)
        except NotFound as error:
            error.hint = f"There is no such file either. {error.hint}"
            raise
        return await _report(surface, f"run {one}", partial(client.verify, one), _ADVICE)


async def _look_at_archive(path: str, *, seen: Seen) -> AsyncIterator[Finding]:
    for finding in check_archive(path, seen=seen):
        yield finding


async def _count_own(client: Client) -> int:
    """Return how many of a store's runs are Holdfast's own, which `ls` does not list."""
    number, before = 0, None
    while page := await client.runs(name=first_seen.name, before=before, limit=_PAGE):
        number, before = number + len(page), page[-1].id
    return number


async def _report(
    surface: Surface, what: str, look: Callable[..., AsyncIterator[Finding]], advice: str, *,
    own: Callable[[], Awaitable[int]] | None = None,
) -> int:  # fmt: skip
    """Print what a look finds while it goes on, and at the end what was looked at or what to do."""
    checked = wrong = 0
    with progress(surface, "reading") as tell:

        def seen(run: str) -> None:
            nonlocal checked
            checked += 1
            tell(f"{counted(checked, 'run')} read")

        async for finding in look(seen=seen):
            wrong += 1
            _say(surface, finding)
    if wrong:
        surface.say(Text(advice, style="dim"))
        return Exit.FAILED
    # One run of a store is named and not counted.
    what = shown(what) + (counted(checked, "run") if checked or not what else "")
    ours = await own() if own is not None and surface.talks else 0
    also = f" ({ours:,} of them Holdfast's own, which `ls` does not list)" if ours else ""
    surface.say(mark("✓", "green") + Text(f"{what}{also}: nothing is wrong"))
    return Exit.FINE


def _say(surface: Surface, finding: Finding) -> None:
    if surface.json:
        surface.value(finding)
        return
    where = "the store" if finding.run is None else f"run {finding.run}"
    entry = f", entry {finding.seq}" if finding.seq is not None else ""
    surface.out.print(Text.assemble(mark("✗", "red"), f"{where}{entry}: {shown(finding.what)}"), soft_wrap=True)
