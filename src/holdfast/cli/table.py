"""A table of runs: a line for each where the screen is wide enough, else its key and reason on a line below it."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from rich.text import Text

from holdfast.core.status import Status

COLOURS: Final = {
    Status.QUEUED: "",
    Status.RUNNING: "cyan",
    Status.WAITING: "yellow",
    Status.PAUSED: "yellow",
    Status.EXHAUSTED: "red",
    Status.QUARANTINED: "red",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}
_HEAD: Final = ("RUN", "NAME", "STATUS", "AGE", "KEY")
_LEAST_REASON: Final = 30
"""How much of a reason must stand beside its run; with less room, it gets a line of its own."""
_LEAST_NAME: Final = 8


class Row(NamedTuple):
    """What stands of a run in the table."""

    run: str
    name: str
    status: Status
    age: str
    key: str
    reason: str


def table(rows: Sequence[Row], width: int, *, head: bool) -> Iterator[Text]:
    """Yield the lines of a table for a screen of so many columns; without a head, always a line for each run.

    An id is never cut, a key only where each run has one line.
    """
    cells = [*([_HEAD] if head else []), *(row[:5] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    longest = max(len(row.reason) for row in rows)
    # Two columns stand between each and the next.
    beside = not head or width - sum(widths) - (10 if longest else 8) >= min(longest, _LEAST_REASON)
    if not beside:
        # The name gives way: it can be had whole by `--json`, and stands in the program.
        widths[1] = min(widths[1], max(width - widths[0] - widths[2] - widths[3] - 6, _LEAST_NAME))
    if head:
        yield Text(_head(widths, beside=beside), style="dim")
    for row in rows:
        line = _line(row, widths)
        if beside:
            line.append(f"  {row.key.ljust(widths[4])}")
            # Where each run has one line, the few letters of a reason that fit would tell nothing.
            if width - len(line) - 2 >= min(len(row.reason), _LEAST_REASON):
                line.append(f"  {row.reason}", style="dim")
            line.rstrip()
            line.truncate(max(width, widths[0]), overflow="ellipsis")
        yield line
        if not beside and (row.key or row.reason):
            yield _below(row, width)


def _head(widths: Sequence[int], *, beside: bool) -> str:
    run, name, status, age, key = (cell.ljust(width) for cell, width in zip(_HEAD, widths, strict=True))
    return "  ".join((run, name, status, age.strip().rjust(widths[3]), key if beside else "")).rstrip()


def _line(row: Row, widths: Sequence[int]) -> Text:
    name = Text(row.name)
    name.truncate(widths[1], overflow="ellipsis", pad=True)
    line = Text.assemble(row.run.ljust(widths[0]), "  ", name, "  ")
    line.append(row.status.ljust(widths[2]), style=COLOURS[row.status])
    line.append(f"  {row.age.rjust(widths[3])}")
    return line


def _below(row: Row, width: int) -> Text:
    """Return the line below a run: its whole key, and of the reason what there is room for."""
    key = f"  key {row.key}" if row.key else ""
    line = Text.assemble(key, (f"  {row.reason}" if row.reason else "", "dim"))
    line.truncate(max(width, len(key)), overflow="ellipsis")
    return line
