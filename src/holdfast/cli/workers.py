"""`holdfast ls --workers`: who serves a store, and who is dead."""

from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.listing import listing
from holdfast.cli.liveness import is_alive
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import between, duration
from holdfast.client.protocol import WorkerInfo

_HEAD: Final = ("WORKER", "HOST", "PID", "RUNS", "AT ONCE", "LAST SIGN", "LOCK", "SERVES")
_COLOURS: Final = {True: "green", False: "red", None: "yellow"}


async def list_workers(surface: Surface) -> int:
    """Print every worker that has not said goodbye."""
    async with open_client(surface.store) as client:
        workers = [(worker, is_alive(worker)) for worker in await client.workers()]
    if surface.json:
        for worker, _ in workers:
            surface.value(_plain(worker))
        return Exit.FINE
    if workers:
        _draw(surface, workers)
    else:
        surface.say(Text("no workers", style="dim"))
    return Exit.FINE


def _plain(worker: WorkerInfo) -> dict[str, Any]:
    return {
        "id": worker.id, "host": worker.host, "pid": worker.pid, "serves": worker.serves,
        "concurrency": worker.concurrency, "version": worker.version, "only": worker.only, "runs": worker.runs,
        "started_at": worker.started_at, "beat_at": worker.beat_at, "lock": worker.lock,
    }  # fmt: skip


def _draw(surface: Surface, workers: list[tuple[WorkerInfo, bool | None]]) -> None:
    now = datetime.now(UTC)
    rows = [_row(worker, alive, now) for worker, alive in workers]
    for line in listing(_HEAD, rows, surface.out.width, quiet=surface.quiet):
        surface.out.print(line, soft_wrap=True)


def _row(worker: WorkerInfo, alive: bool | None, now: datetime) -> list[Text]:
    sign = f"{duration(between(worker.beat_at, now))} ago" if worker.beat_at is not None else "unknown"
    serves = "its own runs" if worker.only else ", ".join(shown(name) for name in worker.serves)
    known = (worker.pid, len(worker.runs), worker.concurrency)
    pid, runs, at_once = (str(number) if number is not None else "-" for number in known)
    before = [Text(cell) for cell in (worker.id, shown(worker.host or "-"), pid, runs, at_once, sign)]
    return [*before, Text(worker.lock, style=_COLOURS[alive]), Text(serves)]
