"""`holdfast raise`, and a budget as people write it: steps=100,deadline=2h."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from holdfast.cli.control import asker_option, open_run, reason_option, tell
from holdfast.cli.options import common, run_argument
from holdfast.cli.saying import by as by_whom
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface
from holdfast.cli.wording import seconds_of
from holdfast.core.budget import DEADLINE, STEPS, Budget
from holdfast.core.ids import RunId
from holdfast.core.status import Status


def budget_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the limits that were written as NAME=AMOUNT.

    Raises:
        UsageError: one is not, or is no limit.
    """
    known: dict[str, Any] = {}
    for word in words:
        name, sign, amount = word.partition("=")
        if not sign or name not in (STEPS, DEADLINE) or name in known:
            raise click.UsageError(f"a budget is written steps=100 or deadline=2h, each once, not {word!r}")
        known[name] = _steps(amount) if name == STEPS else _deadline(amount)
    return known


def _steps(text: str) -> int:
    if not text.isdecimal():
        raise click.UsageError(f"steps= is a whole number, not {text!r}")
    return int(text)


def _deadline(text: str) -> float | datetime:
    seconds = seconds_of(text)
    if seconds is not None:
        return seconds
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"deadline= is 2h, 30m or a time such as 2030-01-31T18:00+01:00, not {text!r}") from None
    # As it stands on the clock of whoever wrote it.
    return at if at.tzinfo is not None else at.astimezone()


def given_budget(text: str | None) -> Budget | None:
    """Return the budget of `--budget`."""
    return Budget(**budget_of(text.split(","))) if text is not None else None


@click.command("raise")
@run_argument()
@click.argument("amounts", metavar="AMOUNT...", nargs=-1, required=True)
@click.option("--key", metavar="KEY", help="The raise's own key: the same key raises once.")
@reason_option
@asker_option
@common()
async def raise_(
    surface: Surface, *, run: str, amounts: tuple[str, ...], key: str | None, reason: str, by: str | None
) -> int:  # fmt: skip
    """Add to a run's budget: steps=50 more of them, deadline=2h from now. An exhausted run goes on with that."""
    asked = budget_of(amounts)
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run)
        accepted = await client.raise_budget(RunId(info.id), **asked, reason=reason, by=by, key=key)
        then = "; it goes on" if info.status is Status.EXHAUSTED else f"; it was {info.status}"
        said = f"run {info.id} has more: {', '.join(amounts)}{by_whom(by)}{then}"
        data = {name: amount if name == STEPS else str(amount) for name, amount in asked.items()}
        return await tell(surface, client, info, accepted, said, asked="raise", **data, reason=reason, by=by, key=key)
