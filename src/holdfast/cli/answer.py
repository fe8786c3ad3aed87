"""`holdfast answer`: a person's decision, for exactly what they were shown."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import click
from rich.text import Text

from holdfast.cli.completion import complete_question
from holdfast.cli.control import follow_up, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import by_option, common
from holdfast.cli.questions import changes_of, decide, list_questions
from holdfast.cli.saying import by as by_whom
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, brief
from holdfast.cli.surface import shown as shown_text
from holdfast.cli.token import answer_token
from holdfast.client.protocol import Client, Question
from holdfast.core.errors import Conflict, InvalidInput, NotFound
from holdfast.core.ids import RunId


@click.command("answer")
@click.argument("question", metavar="[QUESTION]", required=False, shell_complete=complete_question)
@click.option("--yes", "agreed", is_flag=True, help="The decision; without it, you are asked.")
@click.option("--no", "declined", is_flag=True, help="The other decision.")
@click.option("--token", metavar="TOKEN", help="Answer by a callback token instead; - reads it from stdin.")
@click.option("--value", metavar="JSON", help="What the token brings, where it is for no question.")
@click.option("--args", metavar="JSON", help="Changes to what the question lets you change, as one object.")
@click.option("--shown", metavar="DIGEST", help="Answer only if this is what is shown.")
@by_option("Who decides")
@click.option("--note", metavar="TEXT", help="Why; kept in the journal.")
@common()
async def answer(
    surface: Surface, *, question: str | None, agreed: bool, declined: bool, token: str | None, value: str | None,
    args: str | None, shown: str | None, by: str | None, note: str | None,
) -> int:  # fmt: skip
    """Answer a question that a run asks, or list those that are open.

    QUESTION is its id as the list prints it, or a run that asks only one. What you decide about is shown first, and the
    answer counts for exactly that. With --token it is the one wait that a callback token is for.
    """
    yes = _decision(agreed, declined)
    if token is not None:
        if question is not None or shown is not None:
            raise click.UsageError("a token names what it answers: leave out QUESTION and --shown")
        text = sys.stdin.readline().strip() if token == "-" else token
        return await answer_token(surface, text, yes=yes, value=value, args=args, by=by, note=note)
    if value is not None:
        raise click.UsageError("--value goes with --token; a question is answered by --yes or --no")
    if question is None:
        if yes is not None or args is not None:
            raise click.UsageError("name the question to answer; `holdfast answer` alone lists them")
        return await list_questions(surface)
    async with open_client(surface.store) as client:
        asked = await _find(client, question)
        changed = changes_of(surface, args, asked)
        if shown is not None and shown != asked.shown:
            raise Conflict(f"question {asked.id} shows something else", run=asked.run, hint="Look at it again.")
        decided = decide(surface, asked, yes)
        try:
            await client.answer(asked.id, decided, shown=asked.shown, args=changed, by=by, note=note)
        except Conflict as error:
            error.hint = f"The first answer stands: `{surface.command('show', asked.run)}` tells what it was."
            raise
        then = await outlook(client, asked.run)
    if surface.json:
        told = {"question": asked.id, "run": asked.run, "yes": decided, "args": changed, "shown": asked.shown}
        surface.value({**told, "by": by, "note": note, "worker": then.working})
        return Exit.FINE
    before = asked.args or {}
    changes = [f", {shown_text(name)} {brief(before.get(name))} → {brief(new)}" for name, new in _new(changed)]
    said = f"{'yes' if decided else 'no'}{by_whom(by)}{''.join(changes)}; {follow_up(then)}"
    surface.say(mark("✓", "green") + Text(said))
    return Exit.FINE


def _decision(agreed: bool, declined: bool) -> bool | None:
    """Return what was decided on the command line, if anything was."""
    if agreed and declined:
        raise click.UsageError("say --yes or --no, not both: an answer cannot be taken back")
    return agreed if agreed or declined else None


def _new(changed: Mapping[str, Any] | None) -> Iterable[tuple[str, Any]]:
    return changed.items() if changed is not None else ()


async def _find(client: Client, text: str) -> Question:
    """Return the open question that was meant: by its id, the beginning of it, or the one that a run asks."""
    run, seq = await _named(client, text)
    questions = await client.questions(run)
    meant = [one for one in questions if seq is None or one.id == f"{run}.{seq}"]
    if len(meant) == 1:
        return meant[0]
    if meant:
        error = InvalidInput(f"run {run} asks {len(meant)} questions")
        error.hint = "Name one:\n" + "\n".join(f"  {one.id}  {one.text}" for one in meant)
        raise error
    if seq is not None:
        # Told by the client, who knows how it was decided.
        await client.answer(f"{run}.{seq}", True, shown="")
    missing = NotFound(f"an open question {text!r}" if seq is not None else f"an open question of run {run}")
    missing.hint = "`holdfast answer` lists those that are open; `holdfast show RUN` tells how one was decided."
    raise missing


async def _named(client: Client, text: str) -> tuple[RunId, str | None]:
    """Return the run that was named, and the number of its question, if that was."""
    start, _, seq = text.rpartition(".")
    if start and seq.isdecimal():
        with suppress(NotFound):  # a key may end as a question's id does
            return await client.find(text), None
        return await find_run(client, start), seq
    return await find_run(client, text), None
