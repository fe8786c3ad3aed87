"""`holdfast resolve`: a person's word on a step that nobody knows the outcome of."""

from typing import Any

import click
from rich.text import Text

from holdfast import events as ev
from holdfast.cli.control import follow_up, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import by_option, common, json_of, run_argument
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.client.protocol import Client
from holdfast.core.errors import Conflict, NotFound
from holdfast.core.ids import RunId
from holdfast.core.status import NOT_DONE


@click.command("resolve")
@run_argument()
@click.argument("step", metavar="STEP")
@click.option("--value", metavar="JSON", help="It happened, and this is what it returned.")
@click.option("--not-done", is_flag=True, help="It did not happen: it may be tried again.")
@by_option("Whose word this is")
@click.option("--note", metavar="TEXT", help="Why; kept in the journal.")
@common()
async def resolve(
    surface: Surface, *, run: str, step: str, value: str | None, not_done: bool, by: str | None, note: str | None
) -> int:
    """End a step's doubt: say what it returned, or that it did not happen.

    STEP is the step's key as `show` prints it, or its name if only one step of that name is in doubt.
    """
    word = _word(value, not_done)
    async with open_client(surface.store) as client:
        found = await find_run(client, run)
        key = await _step(client, found, step)
        try:
            await client.resolve(found, key, word, by=by, note=note)
        except Conflict as error:
            error.hint = f"The first word stands: `{surface.command('show', found)}` tells what became of it."
            raise
        then = await outlook(client, found)
    if surface.json:
        done = word is not NOT_DONE
        surface.value({"run": found, "step": key, "done": done, "by": by, "note": note, "worker": then.working})
        return Exit.FINE
    said = "did not happen" if word is NOT_DONE else "did happen"
    surface.say(mark("✓", "green") + Text(f"step {shown(key)} {said}; {follow_up(then)}"))
    return Exit.FINE


def _word(value: str | None, not_done: bool) -> Any:
    if (value is None) == (not not_done):
        raise click.UsageError("give --value JSON if it happened, or --not-done if it did not")
    return NOT_DONE if value is None else json_of("--value", value)


async def _step(client: Client, run: RunId, text: str) -> str:
    """Return the key of the step that was meant: as given, or by its name if that is the only one in doubt."""
    doubted: dict[str, None] = {}
    async for event in client.events(run, follow=False):
        match event:
            case ev.StepDoubted():
                doubted[event.step] = None
            case ev.StepResolved() | ev.StepCompleted():
                doubted.pop(event.step, None)
            case _:
                pass
    if text in doubted:
        return text
    last = [(key, key.rpartition("/")[2]) for key in doubted]
    named = [key for key, name in last if text in (name, name.rpartition("#")[0])]
    if len(named) == 1:
        return named[0]
    error = NotFound(f"a step in doubt called {text!r} in run {run}")
    error.hint = "None of its steps is in doubt: `holdfast show RUN` tells how they ended."
    if doubted:
        error.hint = "In doubt are:\n" + "\n".join(f"  {key}" for key in doubted)
    raise error
