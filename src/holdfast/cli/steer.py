"""`holdfast steer`: a word to an agent at work."""

import click
from rich.text import Text

from holdfast.cli.control import ended, follow_up, open_run, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import by_option, common, run_argument
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.core.ids import RunId


@click.command("steer")
@run_argument()
@click.argument("text", metavar="TEXT")
@click.option("--key", metavar="KEY", help="The word's own key: the same key is told once.")
@by_option("Who says it")
@common()
async def steer(surface: Surface, *, run: str, text: str, key: str | None, by: str | None) -> int:
    """Tell an agent something while it works.

    The agent hears TEXT before it asks its model again, and goes on with it.
    """
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run)
        became = await client.steer(RunId(info.id), text, key=key, by=by)
        if became == "ended":
            raise ended(surface, info)
        then = await outlook(client, info.id)
    if surface.json:
        told = {"run": info.id, "text": text, "key": key, "by": by, "worker": then.working}
        surface.value({**told, "before": became == "before"})
        return Exit.FINE
    if became == "before":
        said = f"it was told before under key {shown(key or '')}: the first word counts"
        surface.say(mark("✓", "green") + Text(said))
        return Exit.FINE
    surface.say(mark("✓", "green") + Text(f"it is in the run's inbox; {follow_up(then)}"))
    return Exit.FINE
