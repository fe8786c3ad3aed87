"""`holdfast signal`: a message to a run that waits for it, now or later."""

import click
from rich.text import Text

from holdfast.cli.control import ended, follow_up, open_run, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import by_option, common, json_of, run_argument
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.client.protocol import RunInfo
from holdfast.core.ids import RunId
from holdfast.core.status import Status


@click.command("signal")
@run_argument()
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="[JSON]", required=False)
@click.option("--key", metavar="KEY", help="The signal's own key: the same key is sent once.")
@by_option("Who sends it")
@common()
async def signal(surface: Surface, *, run: str, name: str, value: str | None, key: str | None, by: str | None) -> int:
    """Send a signal to a run.

    NAME is the signal's, JSON what it carries. A run that does not wait for it yet gets it when it does.
    """
    carried = json_of("what a signal carries", value) if value is not None else None
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run)
        became = await client.send(RunId(info.id), name, carried, key=key, by=by)
        if became == "ended":
            raise ended(surface, info)
        then = await outlook(client, info.id)
    if surface.json:
        told = {"run": info.id, "signal": name, "value": carried, "key": key, "by": by, "worker": then.working}
        surface.value({**told, "before": became == "before"})
        return Exit.FINE
    if became == "before":
        said = f"signal {shown(name)} was sent before under key {shown(key or '')}: the first one counts"
        surface.say(mark("✓", "green") + Text(said))
        return Exit.FINE
    other = _other_than(info, name)
    after = follow_up(then) if not other else f"the run waits for {other} now, and gets it when it asks for it"
    surface.say(mark("✓", "green") + Text(f"signal {shown(name)} is in the run's inbox; {after}"))
    return Exit.FINE


def _other_than(info: RunInfo, name: str) -> str:
    """Return the signals that a run waits for, if this is none of them."""
    kind, _, names = info.reason.partition(": ")
    waits = names.split(", ") if kind == "signal" and info.status is Status.WAITING else []
    return f"signal {shown(', '.join(waits))}" if waits and name not in waits else ""
