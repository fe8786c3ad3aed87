"""How every command speaks: results to stdout, everything else to stderr, for people or as JSON."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Any, Final, Literal

import click
import msgspec
from rich.console import Console
from rich.text import Text

from holdfast.core.errors import HoldfastError

_PIPE_COLUMNS: Final = 160
"""The width of a table that goes into a file or another program; COLUMNS says otherwise."""
_PLAIN: Final = {"code", "message", "hint"}


@dataclass(frozen=True)
class Surface:
    """What every command was told: which store, and how to speak."""

    store: str
    json: bool = False
    quiet: bool = False
    named: str | None = None
    """The store as it was named on this command line, so that a command to copy names it too."""

    @cached_property
    def out(self) -> Console:
        """Where results go."""
        return _console(sys.stdout)

    @cached_property
    def err(self) -> Console:
        """Where everything else goes."""
        return _console(sys.stderr)

    @property
    def talks(self) -> bool:
        """True if there is somebody to tell what goes on."""
        return not self.json and not self.quiet

    def command(self, *words: str) -> str:
        """Return a command of ours that means the same store, to be copied into a shell."""
        store = ("--store", self.named) if self.named is not None else ()
        return shlex.join(("holdfast", words[0], *store, *words[1:]))

    @property
    def place(self) -> str:
        """The store's address as it may be shown: without a password."""
        return re.sub(r"(://[^/@:]*):[^/@]*@", r"\1:…@", self.store)

    def value(self, value: Any) -> None:
        """Print one JSON value on a line of stdout."""
        click.echo(as_json(value))

    def say(self, text: Text | str) -> None:
        """Tell what goes on, unless asked to be quiet."""
        if self.talks:
            self.err.print(text, soft_wrap=True)

    def fail(self, code: str, message: str, *, hint: str = "", word: str = "error", **data: Any) -> None:
        """Tell why there is no result: one sentence and what to do next, or one JSON object."""
        if self.json:
            own = {name: value for name, value in data.items() if name not in _PLAIN}
            click.echo(as_json({"error": {"code": code, "message": message, "hint": hint, **own}}), err=True)
            return
        style = "bold red" if word == "error" else "bold yellow"
        self.err.print(Text.assemble((f"{word}: ", style), shown(message)), soft_wrap=True)
        for line in hint.splitlines():
            self.err.print(Text(shown(line), style="dim" if not line.startswith("  ") else ""), soft_wrap=True)

    def fail_with(self, error: HoldfastError) -> None:
        """Tell one of Holdfast's errors; never a traceback."""
        self.fail(error.code, str(error), hint=error.hint, **error.data())


def as_json(value: Any) -> bytes:
    """Return a value as one line of JSON."""
    return msgspec.json.encode(value, enc_hook=str)


def shown(text: str) -> str:
    """Return text that cannot move the cursor, ring a bell or turn the line around: such characters are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return {"\n": "⏎", "\t": " "}.get(char) or char.encode("unicode_escape", "surrogatepass").decode()


def brief(value: Any, most: int = 100) -> str:
    """Return a value as JSON for people, cut to a length."""
    text = shown(as_json(value).decode())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _console(file: IO[str]) -> Console:
    wide = None if file.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    # Rich leaves bold and dim where colours are not wanted; whoever asks for none wants plain text.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return Console(file=file, width=wide, color_system=colours, highlight=False, markup=False, emoji=False)
