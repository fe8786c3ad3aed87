"""`holdfast delete`: remove one run that has ended."""

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common, key_option, run_argument
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface


@click.command("delete")
@run_argument(required=False)
@key_option
@common()
async def delete(surface: Surface, *, run: str | None, key: str | None) -> int:
    """Delete a run that has ended, with its journal.

    Its key stays taken: the same work is never done twice. A run that has not ended, or that an open run around it
    may need, is refused. To keep a copy, `holdfast export` it first.
    """
    async with open_client(surface.store) as client:
        found = await find_run(client, run, key)
        deleted = await client.delete(found)
    if surface.json:
        surface.value({"run": found, "deleted": deleted})
        return Exit.FINE
    surface.say(mark("✓", "green") + Text(f"run {found} is deleted"))
    return Exit.FINE
