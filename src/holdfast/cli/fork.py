"""`holdfast fork`: another run from any entry of one."""

import click
from rich.text import Text

from holdfast.cli.control import follow_up, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import by_option, common, key_option, run_argument
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface
from holdfast.core.ids import RunId


@click.command("fork")
@run_argument(required=False)
@key_option
@click.option("--at", type=int, metavar="SEQ", help="The last entry that it shares; as far as possible unless said.")
@by_option("Who asks for it")
@common()
async def fork(surface: Surface, *, run: str | None, key: str | None, at: int | None, by: str | None) -> int:
    """Start another run that has a run's history up to an entry, and goes on by itself from there.

    What was recorded up to there is not done again. The run itself, whether it goes on or has ended, is not touched.
    """
    async with open_client(surface.store) as client:
        base = await find_run(client, run, key)
        info = await client.info(RunId(await client.fork(base, at, by=by)))
        then = await outlook(client, info.id)
    if surface.json:
        surface.value({"run": info.id, "base": info.base, "base_seq": info.base_seq, "by": by, "worker": then.working})
        return Exit.FINE
    surface.say(mark("✓", "green") + Text(f"run {info.id} begins behind entry {info.base_seq} of run {info.base}"))
    surface.say(Text(follow_up(then), style="dim"))
    return Exit.FINE
