"""Durations, times and step keys as people read them."""

import re
from datetime import datetime
from typing import Final
from urllib.parse import unquote

from rich.text import Text

from holdfast.cli.surface import shown
from holdfast.core.plural import counted as counted

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def duration(micros: int) -> str:
    """Return a length of time with two figures that matter."""
    seconds = max(micros, 0) / 1e6
    if seconds < 0.0995:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 0.995 else f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, size, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def seconds_of(text: str) -> float | None:
    """Return the seconds of a length of time as people write it: 30d, 12h, 90m; None if it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    return float(match[1]) * _UNITS[match[2]] if match is not None else None


def between(earlier: datetime, later: datetime) -> int:
    """Return the µs from one time to another."""
    apart = later - earlier
    return (apart.days * 86400 + apart.seconds) * 1_000_000 + apart.microseconds


def clock(at: datetime, now: datetime) -> str:
    """Return a time as the reader's clock shows it, with the date unless it is today's."""
    here, today = at.astimezone(), now.astimezone().date()
    return f"{here:%H:%M:%S}" if here.date() == today else f"{here:%Y-%m-%d %H:%M:%S}"


def step_name(key: str) -> Text:
    """Return a step key's name: without the first generation's number, its count dimmed."""
    place = key.removeprefix("0/")
    name, hash, count = place.rpartition("#")
    if not hash:
        return Text(shown(unquote(place)))
    return Text.assemble(shown(unquote(name)), (f"#{count}", "dim"))
