"""`holdfast show`: one run, drawn with its process boundaries."""

import click
import msgspec
from rich.text import Text

from holdfast.cli.drawing import draw_run
from holdfast.cli.exits import Exit
from holdfast.cli.family import lines_of, needs_of
from holdfast.cli.liveness import dead_runs
from holdfast.cli.options import archive_option, common, key_option, run_argument
from holdfast.cli.picture import paint
from holdfast.cli.store import open_source
from holdfast.cli.surface import Surface, shown
from holdfast.client.family import Family
from holdfast.client.protocol import Client
from holdfast.core.ids import RunId
from holdfast.core.status import Status


@click.command("show")
@run_argument(required=False)
@key_option
@archive_option
@click.option("--all", "everything", is_flag=True, help="Leave no step out, however many there are.")
@common()
async def show(surface: Surface, *, run: str | None, key: str | None, archive: str | None, everything: bool) -> int:
    """Draw one run: what each process performed, what was replayed, where one was lost and another went on."""
    async with open_source(surface.store, archive, run, key) as (client, found):
        await show_run(surface, client, found, everything=everything)
    return Exit.FINE


async def show_run(surface: Surface, client: Client, run: RunId, *, everything: bool = False) -> None:
    """Print a run, for people or as one JSON object."""
    info = await client.info(run)
    events = [event async for event in client.events(run, follow=False)]
    picture = paint(events, status=info.status)
    family = Family(client)
    children = await family.children(events)
    asked = await client.questions(run)
    signals = await client.signals(run)
    if surface.json:
        drawn = {"processes": [process.form() for process in picture.processes], "doubted": picture.doubted}
        waits = picture.resting.waits if picture.resting is not None else []
        kin = {"waits": waits, "questions": asked, "signals": signals, "children": children}
        surface.value(msgspec.structs.asdict(info) | drawn | kin)
        return
    dead = info.status is Status.RUNNING and run in await dead_runs(client)
    for line in draw_run(surface, info, picture, asked=asked, signals=signals, dead=dead, everything=everything):
        surface.out.print(line, soft_wrap=True)
    if children:
        surface.out.print(Text("\nchildren", style="bold"))
        for line in lines_of(children, family.more):
            surface.out.print(line, soft_wrap=True)
    needs = await needs_of(surface, client, children) if info.status is Status.WAITING else []
    if needs:
        surface.out.print(Text("\nThose below it need:", style="dim"))
        for way in needs:
            surface.out.print(Text(f"  {shown(way)}"), soft_wrap=True)
