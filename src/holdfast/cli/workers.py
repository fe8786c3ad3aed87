"""`holdfast ls --workers`: who serves a store, and who is dead."""

from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from holdfast.cli.exits import Exit
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
    rows: list[tuple[str, ...]] = [_HEAD] if not surface.quiet else []
    rows += [_row(worker, now) for worker, alive in workers]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    colours = [""] * (not surface.quiet) + [_COLOURS[alive] for _, alive in workers]
    for row, colour in zip(rows, colours, strict=True):
        line = Text("  ".join(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=False)) + "  ")
        line.append(row[6].ljust(widths[6]) + "  ", style=colour)
        line.append(row[7])
        line.rstrip()
        line.truncate(max(surface.out.width, widths[0]), overflow="ellipsis")
        surface.out.print(line if colour else Text(line.plain, style="dim"), soft_wrap=True)


def _row(worker: WorkerInfo, now: datetime) -> tuple[str, ...]:
    sign = f"{duration(between(worker.beat_at, now))} ago" if worker.beat_at is not None else "unknown"
    serves = "its own runs" if worker.only else ", ".join(shown(name) for name in worker.serves)
    known = (worker.pid, len(worker.runs), worker.concurrency)
    pid, runs, at_once = (str(number) if number is not None else "-" for number in known)
    return (worker.id, shown(worker.host or "-"), pid, runs, at_once, sign, worker.lock, serves)
