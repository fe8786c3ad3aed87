"""`holdfast cancel`, `pause`, `resume` and `retry`: what anybody may ask of a run as such."""

from typing import Any, Final, NamedTuple

import click
from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.liveness import is_alive
from holdfast.cli.options import by_option, common, key_option, run_argument
from holdfast.cli.saying import by as by_whom
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface, shown
from holdfast.client.protocol import Client, RunInfo
from holdfast.client.serving import LACKING
from holdfast.core.errors import Conflict
from holdfast.core.ids import RunId
from holdfast.core.status import Status

_WORKER: Final = "the run goes on as soon as a worker that knows its program takes it up"
asker_option: Final = by_option("Who asks for it")
reason_option: Final = click.option("--reason", metavar="TEXT", default="", help="Why; kept in the journal.")


class Outlook(NamedTuple):
    """Whether somebody is there who may drive a run, and if not, why."""

    working: bool
    why: str = ""


async def outlook(client: Client, run: str) -> Outlook:
    """Say who is there for a run; a worker that is not known to be dead counts."""
    info = await client.info(RunId(run))
    alive = [worker for worker in await client.workers() if is_alive(worker) is not False]
    if not alive:
        return Outlook(False, "no worker is running")
    # Which runs are its own, a process that drives no others does not tell: of this name, it may be this one.
    if any(run in worker.runs or (worker.only and info.name in worker.serves) for worker in alive):
        return Outlook(True)
    kind, _, lacking = (info.waiting_for or "").partition(": ")
    if kind == LACKING:
        return Outlook(False, shown(lacking))
    served = any(info.name in worker.serves for worker in alive)
    return Outlook(served, "" if served else f"no worker serves {shown(repr(info.name))}")


def follow_up(outlook: Outlook) -> str:
    """Return when a run that got something goes on."""
    return _WORKER if outlook.working else f"{outlook.why}: the run goes on when its program next runs"


async def open_run(surface: Surface, client: Client, run: str | None, key: str | None = None) -> RunInfo:
    """Return a run that has not ended.

    Raises:
        Conflict: it has.
    """
    info = await client.info(await find_run(client, run, key))
    if info.status.terminal:
        raise ended(surface, info)
    return info


def ended(surface: Surface, info: RunInfo) -> Conflict:
    """Return the refusal of what was asked of a run that has ended."""
    how = f"run {info.id} had ended before" + (f": {info.status}" if info.status.terminal else "")
    hint = f"Nothing was changed; `{surface.command('show', info.id)}` tells how it ended."
    return Conflict(how, run=info.id, hint=hint)


async def tell(surface: Surface, client: Client, info: RunInfo, accepted: bool, said: str, **data: Any) -> int:
    """Say what was asked of a run, and when it is heeded.

    Raises:
        Conflict: it had ended before.
    """
    if not accepted:
        raise ended(surface, await client.info(RunId(info.id)))
    then = await outlook(client, info.id)
    if surface.json:
        surface.value({"run": info.id, **data, "worker": then.working})
        return Exit.FINE
    surface.say(mark("✓", "green") + Text(said if then.working else f"{said}; {then.why}: {_LATER}"))
    return Exit.FINE


_LATER: Final = "it is heeded when its program next runs"


@click.command("cancel")
@run_argument(required=False)
@key_option
@reason_option
@asker_option
@common()
async def cancel(surface: Surface, *, run: str | None, key: str | None, reason: str, by: str | None) -> int:
    """Ask for a run's end: its code is told, may clean up in one step, and the run ends as cancelled."""
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run, key)
        accepted = await client.cancel(RunId(info.id), reason=reason, by=by)
        said = f"run {info.id} shall end{by_whom(by)}"
        return await tell(surface, client, info, accepted, said, asked="cancel", reason=reason, by=by)


@click.command("pause")
@run_argument(required=False)
@key_option
@reason_option
@asker_option
@common()
async def pause(surface: Surface, *, run: str | None, key: str | None, reason: str, by: str | None) -> int:
    """Let a run rest at its next entry, until it is resumed."""
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run, key)
        accepted = await client.pause(RunId(info.id), reason=reason, by=by)
        said = f"run {info.id} rests at its next entry, until `{surface.command('resume', info.id)}`"
        return await tell(surface, client, info, accepted, said, asked="pause", reason=reason, by=by)


@click.command("resume")
@run_argument(required=False)
@key_option
@asker_option
@common()
async def resume(surface: Surface, *, run: str | None, key: str | None, by: str | None) -> int:
    """Let a paused run go on.

    A run whose process died needs no resume: it goes on when its program runs again.
    """
    async with open_client(surface.store) as client:
        info = await open_run(surface, client, run, key)
        accepted = await client.resume(RunId(info.id), by=by)
        said = f"run {info.id} may go on" + ("" if info.status is Status.PAUSED else f"; it was {info.status}")
        return await tell(surface, client, info, accepted, said, asked="resume", by=by)


@click.command("retry")
@run_argument(required=False)
@key_option
@asker_option
@common()
async def retry(surface: Surface, *, run: str | None, key: str | None, by: str | None) -> int:
    """Have a run tried again that failed, was set aside, or that changed code refused, once the cause is gone.

    One that failed is tried again as another run, under its key: what it did is not done again, what failed last is.
    """
    async with open_client(surface.store) as client:
        info = await client.info(await find_run(client, run, key))
        again = await client.retry(RunId(info.id), by=by)
        said = f"run {info.id} is tried again" + (f" as run {again}" if again != info.id else "")
        return await tell(surface, client, info, True, said, asked="retry", by=by, fork=_other(again, info))


def _other(run: RunId, info: RunInfo) -> str | None:
    return run if run != info.id else None
