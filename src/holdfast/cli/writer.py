"""Words onto a terminal as they come: lines break between words, and nothing in them can move the cursor."""

import re
from typing import Any, Final

import click
from rich.cells import cell_len
from rich.console import Console

from holdfast.cli.surface import as_json, shown

_FENCE: Final = "```"
_TAB: Final = 4
_LONG: Final = 24
"""What is longer is not waited for: many languages have no blanks."""
_PIECES: Final = re.compile(r"\n|[^\S\n]+|\S+")


class Writer:
    """Text that is still being written. A word stands on the screen once what follows it is known."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._column = 0
        self._word = ""
        self._blank = ""
        """Between the last word and the next; left out where the line breaks."""
        self._line = ""
        """The first letters of the line as it was written, which tell a block of code."""
        self._code = False

    @property
    def mid_line(self) -> bool:
        """True while something stands on the line under way."""
        return self._column > 0 or bool(self._word)

    def write(self, text: str) -> None:
        """Write some more; the last word waits for its end."""
        pieces = _PIECES.findall(self._word + text)
        self._word = ""
        for place, piece in enumerate(pieces, 1):
            if piece == "\n":
                self._break()
            elif piece.isspace():
                # Other blanks than these move the cursor.
                self._blank += "".join(each if each == " " else shown(each) for each in piece.expandtabs(_TAB))
            else:
                self._word = piece
                if place < len(pieces) or len(piece) > _LONG:
                    self._flush()
        self._console.file.flush()

    def end(self) -> None:
        """End the text, and the line if one is under way."""
        self._flush()
        if self._column:
            self._break()
        self._blank = self._line = ""
        self._code = False
        self._console.file.flush()

    def _flush(self) -> None:
        word, self._word = shown(self._word), ""
        if not word:
            return
        room = self._console.width - self._column - len(self._blank)
        if not self._code and self._column and cell_len(word) > room:
            self._put("\n")
            self._column, self._blank = 0, ""
        if len(self._line) < len(_FENCE):
            self._line += word
        self._put(self._blank + word)
        self._column = (self._column + len(self._blank) + cell_len(word)) % (self._console.width + 1)
        self._blank = ""

    def _break(self) -> None:
        self._flush()
        self._put("\n")
        if self._line.startswith(_FENCE):
            self._code = not self._code
        self._column, self._blank, self._line = 0, "", ""

    def _put(self, text: str) -> None:
        self._console.file.write(text)


def write_answer(console: Console, answer: Any) -> None:
    """Write an agent's answer: text as it is, anything else as JSON."""
    text = answer if isinstance(answer, str) else as_json(answer).decode()
    if not console.is_terminal:
        click.echo(text)
        return
    writer = Writer(console)
    writer.write(text)
    writer.end()
