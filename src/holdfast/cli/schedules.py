"""`holdfast ls --schedules`: what starts by the clock, and when."""

from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.liveness import is_alive
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
from holdfast.cli.wording import clock
from holdfast.client.protocol import ScheduleInfo

_HEAD: Final = ("SCHEDULE", "CRON", "ZONE", "NEXT", "LAST", "RUN", "WORKERS", "FUNCTION")


async def list_schedules(surface: Surface) -> int:
    """Print every schedule that a worker looks after."""
    async with open_client(surface.store) as client:
        schedules = await client.schedules()
        dead = {worker.id for worker in await client.workers() if is_alive(worker) is False}
    if surface.json:
        for schedule in schedules:
            surface.value(schedule)
        return Exit.FINE
    if not schedules:
        surface.say(Text("no schedules: no worker looks after one", style="dim"))
        return Exit.FINE
    now = datetime.now(UTC)
    rows: list[tuple[str, ...]] = [_HEAD] if not surface.quiet else []
    rows += [_row(schedule, dead, now) for schedule in schedules]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for number, row in enumerate(rows):
        line = Text("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        line.rstrip()
        line.truncate(max(surface.out.width, widths[0]), overflow="ellipsis")
        head = number == 0 and not surface.quiet
        surface.out.print(Text(line.plain, style="dim") if head else line, soft_wrap=True)
    return Exit.FINE


def _row(schedule: ScheduleInfo, dead: set[str], now: datetime) -> tuple[str, ...]:
    alive = len(set(schedule.workers) - dead)
    return (
        shown(schedule.name), shown(schedule.cron), shown(schedule.tz), when(schedule.next_at, now),
        when(schedule.last_at, now), schedule.run or "-", str(alive) if alive else "all dead", shown(schedule.function),
    )  # fmt: skip


def when(tick: datetime | None, now: datetime) -> str:
    """Return a tick as the reader's clock shows it."""
    return clock(tick, now) if tick is not None else "-"
