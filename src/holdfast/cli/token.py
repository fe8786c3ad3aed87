"""`holdfast answer --token`: what a callback token brings, to the one wait that it is for."""

from typing import Any

import click
from rich.text import Text

from holdfast.cli.control import follow_up, outlook
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.options import json_of
from holdfast.cli.questions import changes_of, decide
from holdfast.cli.saying import by as by_whom
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.client.protocol import CallbackInfo


async def answer_token(
    surface: Surface, token: str, *, yes: bool | None, value: str | None, args: str | None,
    by: str | None, note: str | None,
) -> int:  # fmt: skip
    """Answer the one wait that a callback token is for; the token itself is not printed."""
    async with open_client(surface.store) as client:
        info = await client.callback(token)
        changed = changes_of(surface, args, info.question)
        answer = _answer(surface, info, yes, value)
        await client.answer_token(token, answer, args=changed, by=by, note=note)
        then = await outlook(client, info.run)
    before = info.state == "answered"
    if surface.json:
        told = {"run": info.run, "step": info.step, "answer": answer, "by": info.by if before else by, "note": note}
        surface.value({**told, "worker": then.working, "before": before})
        return Exit.FINE
    said = f"signal {shown(info.signal)}" if info.signal is not None else "yes" if answer else "no"
    if before:
        surface.say(mark("✓", "green") + Text(f"was answered before{by_whom(info.by)}: {said}"))
    else:
        surface.say(mark("✓", "green") + Text(f"{said}{by_whom(by)}; {follow_up(then)}"))
    return Exit.FINE


def _answer(surface: Surface, info: CallbackInfo, yes: bool | None, value: str | None) -> Any:
    if info.question is not None:
        if value is not None:
            raise click.UsageError("this token answers a question: say --yes or --no")
        return decide(surface, info.question, yes)
    if yes is not None:
        raise click.UsageError("this token brings a value, not a decision: give it by --value")
    return json_of("--value", value) if value is not None else None
