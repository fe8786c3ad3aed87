"""`holdfast ls --questions`: what waits for a person, and how one question is shown."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.listing import listing
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, as_json, brief, shown
from holdfast.cli.wording import between, clock, duration
from holdfast.client.protocol import Question
from holdfast.core.errors import InvalidInput

_MOST_ARGS: Final = 300
_HEAD: Final = ("QUESTION", "OF", "AGE", "EXPIRES", "ASKS")


async def list_questions(surface: Surface) -> int:
    """Print every open question, the oldest first."""
    async with open_client(surface.store) as client:
        questions = await client.questions()
    if surface.json:
        for question in questions:
            surface.value(question)
        return Exit.FINE
    if not questions:
        surface.say(Text("no open questions", style="dim"))
        return Exit.FINE
    _draw(surface, questions)
    first = questions[0]
    for way in (
        f"answer one: {surface.command('answer', first.id)}",
        *(f"  {way}" for way in changing(surface, first)),
    ):
        surface.say(Text(shown(way), style="dim"))
    return Exit.FINE


def _draw(surface: Surface, questions: Sequence[Question]) -> None:
    now = datetime.now(UTC)
    rows = []
    for question in questions:
        ends = clock(question.expires_at, now) if question.expires_at is not None else "-"
        age = duration(between(question.asked_at, now))
        rows.append([Text(cell) for cell in (question.id, shown(question.name), age, ends, shown(question.text))])
    for line in listing(_HEAD, rows, surface.out.width, quiet=surface.quiet):
        surface.out.print(line, soft_wrap=True)


def lines_of(question: Question) -> Iterator[Text]:
    """Yield all that a person decides about; nothing of it is cut."""
    now = datetime.now(UTC)
    yield Text(shown(question.text), style="bold")
    ends = f" · expires {clock(question.expires_at, now)}" if question.expires_at is not None else ""
    asked = f"asked {duration(between(question.asked_at, now))} ago by {shown(question.name)}, run {question.run}{ends}"
    yield Text(f"  {asked}", style="dim")
    if question.show is not None:
        yield from whole("show", question.show)
    if question.args is not None:
        yield from whole("args", question.args)
        if question.args:
            yield Text("        (what you agree to may be changed: --yes --args JSON)", style="dim")


def ways_of(surface: Surface, question: Question) -> Sequence[str]:
    """Return the commands that decide a question."""
    command = surface.command("answer", question.id)
    return [f"{command} --yes", f"{command} --no", *changing(surface, question)]


def changing(surface: Surface, question: Question) -> Sequence[str]:
    """Return the command that agrees to what a question lets be changed, as it stands now, to be edited."""
    if not question.args:
        return []
    args = as_json(question.args).decode()
    words = shlex.quote(args) if len(args) <= _MOST_ARGS else "JSON"
    return [f"{surface.command('answer', question.id)} --yes --args {words}"]


def changes_of(surface: Surface, text: str | None, question: Question | None) -> Mapping[str, Any] | None:
    """Return the changes that were written by `--args`; a token may be for no question.

    Raises:
        InvalidInput: they are no object; the hint has one that the question takes.
    """
    if text is None:
        return None
    try:
        changed = msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        refused = InvalidInput(f"--args is not JSON: {error}")
    else:
        if isinstance(changed, dict):
            return changed
        refused = InvalidInput("--args is an object of what to change")
    ways = changing(surface, question) if question is not None else []
    refused.hint = "This question lets nothing be changed: leave out --args."
    if ways:
        refused.hint = f"Give what you change as one object. As it stands:\n  {ways[0]}"
    elif question is None:
        refused.hint = "This token is for no question, so there is nothing to change: leave out --args."
    raise refused


def decide(surface: Surface, asked: Question, yes: bool | None) -> bool:
    """Show what is decided about, and return the decision."""
    asks = yes is None and not surface.json and sys.stdin.isatty()
    if asks or surface.talks:
        for line in lines_of(asked):
            surface.err.print(line, soft_wrap=True)
    if asks:
        return click.confirm("Yes?", default=None, err=True)
    if yes is None:
        raise click.UsageError("say --yes or --no: there is no terminal to ask you")
    return yes


def whole(name: str, value: Any) -> Iterator[Text]:
    """Yield a value of which nothing is cut."""
    text = brief(value)
    if not text.endswith("…"):
        yield Text.assemble((f"  {name:<5} ", "dim"), text)
        return
    yield Text(f"  {name}", style="dim")
    for line in msgspec.json.format(as_json(value), indent=2).decode().splitlines():
        yield Text(f"    {shown(line)}")
