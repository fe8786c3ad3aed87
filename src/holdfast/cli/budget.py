"""`holdfast raise`, and a budget as people write it: steps=100,usd=0.50,deadline=2h."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import click

from holdfast.cli.control import asker_option, open_run, reason_option, tell
from holdfast.cli.options import common, run_argument
from holdfast.cli.saying import by as by_whom
from holdfast.cli.saying import more_of
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface
from holdfast.cli.wording import seconds_of
from holdfast.client.protocol import RunInfo
from holdfast.core.budget import COUNTED, DEADLINE, STEPS, USD, Budget, checked_money
from holdfast.core.errors import InvalidInput
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
        if not sign or name not in (*COUNTED, DEADLINE) or name in known:
            raise click.UsageError(
                "a budget is written steps=100, calls=20, tokens=50000, usd=0.50 or deadline=2h, each once, "
                f"not {word!r}"
            )
        read = {USD: _money, DEADLINE: _deadline}.get(name)
        known[name] = read(amount) if read is not None else _count(name, amount)
    return known


def _count(name: str, text: str) -> int:
    if not text.isdecimal():
        raise click.UsageError(f"{name}= is a whole number, not {text!r}")
    return int(text)


def _money(text: str) -> Decimal:
    try:
        checked_money("usd=", text)
    except InvalidInput as error:
        raise click.UsageError(str(error)) from None
    return Decimal(text)


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
    """Add to a run's budget: steps=50 more of them, usd=0.50, deadline=2h from now. An exhausted run goes on with that.

    It can have limits of steps, calls (of models), tokens, usd and a deadline.
    """
    asked = budget_of(amounts)
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run)
        accepted = await client.raise_budget(RunId(info.id), **asked, reason=reason, by=by, key=key)
        said = f"run {info.id}{_given(info, amounts, asked, by)}{_then(info, asked)}"
        data = {name: amount if isinstance(amount, int) else str(amount) for name, amount in asked.items()}
        return await tell(surface, client, info, accepted, said, asked="raise", **data, reason=reason, by=by, key=key)


def _given(info: RunInfo, amounts: Sequence[str], asked: Mapping[str, Any], by: str | None) -> str:
    """Return what a raise gives a run; a deadline that is later already is not given."""
    known = (info.budget or {}).get(DEADLINE)
    stays = DEADLINE in asked and known is not None and _until(asked) <= known
    given = [_worded(word, asked) for word in amounts if not (stays and word.startswith(DEADLINE))]
    if not given:
        return ": its deadline is later already: nothing changed"
    return f" has more: {', '.join(given)}{by_whom(by)}{'; its deadline is later already' if stays else ''}"


def _worded(word: str, asked: Mapping[str, Any]) -> str:
    """Return an amount as it was written; a time without a zone with the one that it was taken to have."""
    name, _, text = word.partition("=")
    at = asked[name]
    if not isinstance(at, datetime) or datetime.fromisoformat(text).tzinfo is not None:
        return word
    return f"{name}={at.isoformat(timespec='minutes')} ({at:%Z}, your own zone)"


def _then(info: RunInfo, asked: Mapping[str, Any]) -> str:
    """Return whether the run goes on with what it was given, and what else it needs if it does not."""
    if info.status is not Status.EXHAUSTED:
        return f"; it was {info.status}"
    known = info.budget or {}
    lacks = []
    if DEADLINE in known and max(known[DEADLINE], _until(asked)) <= datetime.now(UTC):
        lacks.append(f"its deadline has passed; raise deadline=1h{'' if DEADLINE in asked else ' too'}")
    channel = info.reason.partition(":")[0]
    if channel in COUNTED and channel not in asked and (channel != STEPS or known[STEPS]["free"] < 1):
        little = "no" if channel == STEPS else "too little of its"
        lacks.append(f"it has {little} {channel} left; raise {more_of(channel)} too")
    return f"; it still rests: {'; '.join(lacks)}" if lacks else "; it goes on"


def _until(asked: Mapping[str, Any]) -> datetime:
    """Return until when a raise lets a run go on; one that says nothing of that, since ever."""
    given = asked.get(DEADLINE)
    if given is None:
        return datetime.min.replace(tzinfo=UTC)
    return given if isinstance(given, datetime) else datetime.now(UTC) + timedelta(seconds=given)
