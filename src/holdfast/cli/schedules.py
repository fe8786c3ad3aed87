"""`holdfast ls --schedules`: what starts by the clock, and when."""

from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from rich.text import Text

from holdfast.cli.exits import Exit
from holdfast.cli.listing import listing
from holdfast.cli.liveness import is_alive
from holdfast.cli.store import open_client
from holdfast.cli.surface import Surface, shown
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
    rows = [[Text(cell) for cell in _row(schedule, dead, now)] for schedule in schedules]
    for line in listing(_HEAD, rows, surface.out.width, quiet=surface.quiet):
        surface.out.print(line, soft_wrap=True)
    return Exit.FINE


def _row(schedule: ScheduleInfo, dead: set[str], now: datetime) -> tuple[str, ...]:
    alive = len(set(schedule.workers) - dead)
    next_at, last_at = (when(tick, schedule.tz, now) for tick in (schedule.next_at, schedule.last_at))
    return (
        shown(schedule.name), shown(schedule.cron), shown(schedule.tz), next_at, last_at, schedule.run or "-",
        str(alive) if alive else "all dead", shown(schedule.function),
    )  # fmt: skip


def when(tick: datetime | None, tz: str, now: datetime) -> str:
    """Return a tick as a clock in the schedule's own zone shows it, with its offset, and the date unless it is today's.

    Where this machine does not know the zone it is in UTC.
    """
    if tick is None:
        return "-"
    try:
        zone: tzinfo = ZoneInfo(tz)
    except (KeyError, ValueError, OSError):
        zone = UTC
    there = tick.astimezone(zone)
    offset = f"{there:%z}"
    date = "" if there.date() == now.astimezone(zone).date() else f"{there:%Y-%m-%d} "
    return f"{date}{there:%H:%M:%S} {offset[:3]}:{offset[3:5]}"
