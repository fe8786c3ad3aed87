"""`holdfast run --detach`: start a run for a worker to take up, and leave."""

from typing import Any

import click
from rich.text import Text

from holdfast.cli.control import follow_up, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.surface import Surface, shown
from holdfast.cli.target import Target
from holdfast.cli.wording import duration, seconds_of
from holdfast.core.errors import NotFound
from holdfast.runtime import Opening


def delay_of(text: str | None) -> float | None:
    """Return the seconds of a delay as it was written.

    Raises:
        UsageError: it is no length of time.
    """
    seconds = seconds_of(text) if text is not None else None
    if text is not None and seconds is None:
        raise click.UsageError(f"--delay is a length of time such as 30s, 15m or 2h, not {text!r}")
    return seconds


async def start_detached(
    surface: Surface, target: Target, named: dict[str, Any], *, delay: float | None, **rest: Any
) -> int:
    """Create the run, or find the one that its key belongs to, and tell its id; nothing of it is performed here."""
    function = target.function
    target.app.add(function)
    async with Opening(surface.store, target.app, work=False, concurrency=1) as runtime:
        client, key = runtime.client, rest.get("key")
        try:
            known = await client.find(key) if key is not None else None
        except NotFound:
            known = None
        run = await runtime.start_named(function, named, delay=delay, **rest)
        info, then = await client.info(run.id), await outlook(client, run.id)
    if surface.json:
        surface.value(info)
        return Exit.FINE
    click.echo(info.id)
    if known is not None:
        said = f"the key belongs to this run, which is {info.status}"
    else:
        due = f"due in {duration(int(delay * 1e6))}" if delay else "queued"
        serve = f"{then.why}: `{surface.command('worker', target.served_as)}` takes it up"
        said = f"{shown(function.name)} is {due}; {follow_up(then) if then.working else serve}"
    surface.say(mark("✓", "green") + Text(said))
    return Exit.FINE
