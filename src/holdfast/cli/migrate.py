"""`holdfast migrate`: bring a store to the form that this Holdfast writes, and note that it came from a backup."""

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import common
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface


@click.command("migrate")
@click.option("--restored", is_flag=True, help="The store was restored from a backup: begin another epoch.")
@common()
async def migrate(surface: Surface, *, restored: bool) -> int:
    """Bring a store to the form that this Holdfast writes; opening it does the same.

    Run it before a deploy, so that no worker has to. After a restore, `--restored` makes readers that hold event ids
    from before the restore start again, instead of missing what differs.
    """
    async with open_client(surface.store) as client:
        epoch = await client.raise_epoch() if restored else None
        known = await client.describe()
    if surface.json:
        surface.value({**known, "epoch": epoch} if epoch is not None else known)
        return Exit.FINE
    text = f"{surface.store} is up to date"
    if epoch is not None:
        text += f", and in epoch {epoch}: event ids now end in @{epoch}"
    surface.say(mark("✓", "green") + Text(text))
    return Exit.FINE
