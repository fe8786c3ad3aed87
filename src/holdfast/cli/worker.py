"""`holdfast worker`: drive the runs of a program until told to leave."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import IO, Any, Final

import click
from rich.text import Text

from holdfast.cli.completion import complete_file
from holdfast.cli.exits import Exit
from holdfast.cli.lines import mark
from holdfast.cli.liveness import is_alive
from holdfast.cli.options import common
from holdfast.cli.schedules import when
from holdfast.cli.surface import Surface, as_json, shown
from holdfast.cli.target import load_app
from holdfast.cli.wording import counted, duration
from holdfast.client.protocol import Client
from holdfast.core import limits
from holdfast.core.ids import CHECKPOINT_NAME
from holdfast.core.status import Status
from holdfast.engine.app import App
from holdfast.engine.scheduler import first_seen
from holdfast.runtime import Opening, Runtime

_PAGE: Final = 1000
_MOST: Final = 10_000
"""How many resting runs are looked at for whether somebody serves them."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@click.command("worker")
@click.argument("targets", metavar="TARGET...", nargs=-1, shell_complete=complete_file)
@click.option(
    "--concurrency", metavar="N", type=click.IntRange(1), default=64, show_default=True, help="Runs driven at once."
)
@click.option("--only", metavar="NAME", multiple=True, help="Serve this function only; may be repeated.")
@click.option(
    "--grace", metavar="SECONDS", type=click.FloatRange(0), default=limits.GRACE_SECONDS, show_default=True,
    help="How long runs may take to their next entry when the worker is told to leave.",
)  # fmt: skip
@common()
def worker(surface: Surface, *, targets: tuple[str, ...], concurrency: int, only: tuple[str, ...], grace: float) -> int:
    """Drive the runs of a program, whoever started them, until told to leave.

    TARGET is file.py, file.py:name, module or module:name; several may be given. Any number of workers may serve one
    store, and each takes over from those that die.

    SIGTERM drains: no run is claimed any more, and each is handed over at its next entry. A second signal, or Ctrl-C,
    ends at once; the runs go on elsewhere.
    """
    if not targets:
        raise click.UsageError("name the program to serve, for example: holdfast worker app.py")
    out = sys.stdout
    with redirect_stdout(sys.stderr):
        app = load_app(targets, only)
        return asyncio.run(Serving(surface, app, concurrency, grace, out).serve())


class Signals:
    """The signals that a process has got: the first asks it to leave, the second to do so at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = self._loop.create_future()
        self.second: asyncio.Future[int] = self._loop.create_future()
        self._count = 0

    @contextmanager
    def heard(self) -> Iterator["Signals"]:
        """Hear them until the block is left."""
        before = {number: signal.signal(number, self._hear) for number in _SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        asked = self.first if self._count == 1 else self.second
        self._loop.call_soon_threadsafe(_answer, asked, number)
        if self._count > 1:
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)  # a third ends what does not even take its turn any more


def _answer(asked: "asyncio.Future[int]", number: int) -> None:
    if not asked.done():
        asked.set_result(number)


@dataclass(frozen=True)
class Serving:
    """One worker from its first claim to its last."""

    surface: Surface
    app: App
    concurrency: int
    grace: float
    out: IO[str]

    async def serve(self) -> int:
        """Serve until a signal comes, and return the exit status."""
        opening = Opening(self.surface.store, self.app, work=True, concurrency=self.concurrency, told=self._tell)
        with Signals().heard() as signals:
            async with opening as runtime:
                await self._tell_beginning(runtime)
                number = await signals.first
                if number == signal.SIGINT:
                    return self._left(Exit.INTERRUPTED)
                self._tell("draining", {"grace_seconds": self.grace})
                draining = asyncio.ensure_future(runtime.drain(self.grace))
                either: set[asyncio.Future[Any]] = {draining, signals.second}
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                if draining.done():
                    draining.result()
                    return self._left(Exit.FINE)
                draining.cancel()
                return self._left(Exit.INTERRUPTED)

    async def _tell_beginning(self, runtime: Runtime) -> None:
        # What says since when a schedule is known is ours, and every worker of a schedule serves it.
        serves = set(self.app.serves()) - {first_seen.name}
        about = {"worker": runtime.worker_id, "serves": sorted(serves)}
        self._tell("serving", {**about, "concurrency": self.concurrency, "store": self.surface.place})
        now = datetime.now(UTC)
        for schedule in self.app.schedules.values():
            self._tell("schedule", {**schedule.about(), "next_at": next(schedule.cron.after(now), None)})
        # Nor is a checkpoint anything for a worker: its loop is its user's.
        stranded = await _stranded(runtime.client, serves | {first_seen.name, CHECKPOINT_NAME})
        if stranded:
            self._tell("unserved", {"runs": dict(stranded)})

    def _left(self, status: Exit) -> int:
        self._tell("left", {"drained": status is Exit.FINE})
        return status

    def _tell(self, event: str, data: dict[str, Any]) -> None:
        if event == "took_over" and not data["runs"]:
            return  # a worker that died with nothing in hand is nobody's news
        if self.surface.json:
            click.echo(as_json({"event": event, **data}), file=self.out)
            return
        self.surface.say(_line(event, data))


async def _stranded(client: Client, served: set[str]) -> Counter[str]:
    """Return how many runs of each name rest that no worker here or elsewhere has the code for."""
    for other in await client.workers():
        if is_alive(other) is not False and not other.only:
            served |= set(other.serves)
    names: Counter[str] = Counter()
    for status in (Status.QUEUED, Status.WAITING):
        before: str | None = None
        for _ in range(0, _MOST, _PAGE):
            page = await client.runs(status=status, before=before, limit=_PAGE)
            names.update(run.name for run in page if run.name not in served)
            if len(page) < _PAGE:
                break
            before = page[-1].id
    return names


def _line(event: str, data: dict[str, Any]) -> Text:
    """Return what to say of an event to a person."""
    match event:
        case "serving":
            names = ", ".join(shown(name) for name in data["serves"])
            what = f"  {data['concurrency']} at a time, on {shown(data['store'])}, as worker {data['worker']}"
            return mark("▶", "green") + Text.assemble("serving ", (names, "bold"), (what, "dim"))
        case "schedule":
            what = f"  {data['cron']} {shown(data['tz'])}, next {when(data['next_at'], data['tz'], datetime.now(UTC))}"
            return mark("@", "green") + Text.assemble("starts ", (shown(data["name"]), "bold"), (what, "dim"))
        case "unserved":
            names = ", ".join(
                f"{shown(name)} ({counted(count, 'run')})" for name, count in sorted(data["runs"].items())
            )
            return mark("!", "yellow") + Text(f"no worker serves: {names}")
        case "took_over":
            what = f"took over {counted(data['runs'], 'run')} from worker {data['worker']}: {data['why']}"
            return mark("↻", "cyan") + Text(what)
        case "returned":
            return mark("↻", "yellow") + Text(f"declared dead as worker {data['was']}; goes on as {data['worker']}")
        case "draining":
            grace = duration(int(data["grace_seconds"] * 1e6))
            return mark("‖", "yellow") + Text(f"leaving: each run is handed over at its next entry, within {grace}")
        case _:
            return mark("■", "green") + Text("left: every run was handed over" if data["drained"] else "left at once")
