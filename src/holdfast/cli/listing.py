"""A list in columns, whatever it is of: what has no room beside the rest stands below it, by its name."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.text import Text

_LEAST_LAST: Final = 30
"""How much of a last column, which may be cut, must stand beside the others; with less room, it goes below."""


def listing(head: Sequence[str], rows: Sequence[Sequence[Text]], width: int, *, quiet: bool) -> Iterator[Text]:
    """Yield the lines of a list for a screen of so many columns; quietly, without a head and a line for each row.

    What stands first is never cut, and the others only where they are alone on their line.
    """
    cells = [*([] if quiet else [[Text(name) for name in head]]), *rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    beside = len(head) if quiet else _beside(widths, width)
    if not quiet:
        yield Text(_line(cells[0][:beside], widths).plain, style="dim")
    for row in rows:
        line = _line(row[:beside], widths)
        line.truncate(max(width, widths[0]), overflow="ellipsis")
        yield line
        yield from _below(head[beside:], row[beside:], width)


def _beside(widths: Sequence[int], width: int) -> int:
    """Return how many columns have room on one line."""
    least = [*widths[:-1], min(widths[-1], _LEAST_LAST)]
    fitting = [count for count in range(1, len(least) + 1) if sum(least[:count]) + 2 * (count - 1) <= width]
    return max(fitting, default=1)


def _line(row: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text("  ").join(_padded(cell, width) for cell, width in zip(row, widths, strict=False))
    line.rstrip()
    return line


def _padded(cell: Text, width: int) -> Text:
    padded = cell.copy()
    padded.pad_right(width - len(cell))
    return padded


def _below(head: Sequence[str], row: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield what stands below a row, on as many lines as it needs."""
    line = Text()
    for name, cell in zip(head, row, strict=True):
        if cell.plain in ("", "-"):
            continue
        part = Text.assemble((f"  {name.lower()} ", "dim"), cell)
        if line and len(line) + len(part) > width:
            yield line
            line = Text()
        line.append_text(part)
    line.truncate(width, overflow="ellipsis")
    if line:
        yield line
