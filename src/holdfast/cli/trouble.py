"""Why a run that came to rest has no result, and what to do: said once, for every command that waits for one."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.questions import ways_of
from holdfast.cli.saying import ending, raising, waiting
from holdfast.cli.surface import Surface, shown
from holdfast.cli.watching import Rest
from holdfast.client.protocol import RunInfo
from holdfast.core.status import Status


def tell_trouble(surface: Surface, rest: Rest, again: str) -> Exit:
    """Say what holds a run up, or how it failed; `again` is the command that goes on with it."""
    info, stuck = rest.info, rest.stuck
    data: dict[str, Any] = {"run": info.id, "status": info.status, "reason": info.reason, "error": info.error}
    if rest.held is not None:
        data["held_by"] = rest.held.id
    who = f"run {info.id}" if rest.held is None else f"child {shown(stuck.name)} {stuck.id} of run {info.id}"
    if rest.doubted is not None and stuck.status is Status.WAITING:
        resolve = surface.command("resolve", stuck.id, rest.doubted)
        ways = [f"{resolve} --value JSON", f"{resolve} --not-done"]
        message = f"{who} needs a person's word: {stuck.reason.removeprefix('doubt: ')}"
        data |= {"step": rest.doubted, "resolve": ways}
        return _needs_person(surface, message, ["Look whether it happened, and say so:", *ways], again, data)
    if rest.questions and stuck.status is Status.WAITING:
        ways = [way for question in rest.questions for way in ways_of(surface, question)]
        data |= {"questions": rest.questions, "answer": ways}
        message = f"{who} waits for an answer: {'; '.join(question.text for question in rest.questions)}"
        return _needs_person(surface, message, ["Answer it:", *ways], again, data)
    if stuck.status is Status.EXHAUSTED:
        hint = f"Raise it, and go on:\n  {raising(surface, stuck.id, stuck.reason)}\n  {again}"
        reason = stuck.reason if surface.json else waiting(stuck.reason)
        message = f"{who} has used up its budget: {reason}"
        surface.fail("budget_exceeded", message, hint=hint, **data, budget=stuck.budget, resume=again)
        return Exit.FAILED
    _say_trace(surface, stuck)
    verb = "failed" if stuck.status is Status.FAILED else f"is {stuck.status}"
    message = f"{who} {verb}{ending(stuck.status, stuck.reason)}"
    surface.fail("run_error", message, hint=f"What happened:\n  {surface.command('show', stuck.id)}", **data)
    return Exit.FAILED


def _needs_person(
    surface: Surface, message: str, told: Sequence[str], again: str, data: Mapping[str, Any]
) -> Exit:  # fmt: skip
    hint = "\n".join([told[0], *(f"  {way}" for way in told[1:]), "Then:", f"  {again}"])
    surface.fail("waiting_for_person", message, hint=hint, word="waiting", **data, resume=again)
    return Exit.PERSON


def _say_trace(surface: Surface, info: RunInfo) -> None:
    """Print where a failure was raised, which is not logged: behind the steps that went before it."""
    for line in ((info.error or {}).get("traceback") or "").splitlines():
        surface.say(Text(f"  {shown(line)}", style="dim"))
