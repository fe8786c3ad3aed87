"""The pages that users read, cut into sections, spans and blocks."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"

_FENCE: Final = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN: Final = re.compile(r"`([^`\n]+)`")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is to be saved as, and the line of the page where it begins."""

    language: str
    file: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Page:
    """A page of Markdown."""

    path: Path

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text("utf-8")

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """Its fenced blocks, in order."""
        return [
            Block(
                language=(match["info"].split() or [""])[0],
                file=(match["info"].split()[1:] or [None])[0],
                text=match["text"],
                line=self.text.count("\n", 0, match.start()) + 2,
            )
            for match in _FENCE.finditer(self.text)
        ]

    @cached_property
    def prose(self) -> str:
        """It without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @cached_property
    def spans(self) -> Sequence[str]:
        """What stands between backticks in its prose."""
        return _SPAN.findall(self.prose)

    def section(self, heading: str) -> str:
        """Return the prose under a heading that holds `heading` between backticks, up to the next heading."""
        headings = list(_HEADING.finditer(self.prose))
        for place, match in enumerate(headings):
            if f"`{heading}`" in match[1]:
                end = headings[place + 1].start() if place + 1 < len(headings) else len(self.prose)
                return self.prose[match.end() : end]
        raise AssertionError(f"{self} has no section on `{heading}`")


def rows(text: str) -> Iterator[Sequence[str]]:
    """Yield the cells of each row of the tables in `text`, their heads and rules left out."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if line.startswith("| ") and not (place + 1 < len(lines) and lines[place + 1].startswith("|---")):
            yield [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def first_spans(text: str) -> set[str]:
    """Return what stands between backticks in the first cell of each row of the tables in `text`."""
    return {name for row in rows(text) for name in _SPAN.findall(row[0])}


README: Final = Page(ROOT / "README.md")
PAGES: Final = [README, Page(ROOT / "ARCHITECTURE.md"), *map(Page, sorted(DOCS.glob("*.md")))]


def page(name: str) -> Page:
    """Return the page of that name in docs."""
    return Page(DOCS / f"{name}.md")
