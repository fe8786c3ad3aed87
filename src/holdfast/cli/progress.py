"""Telling how far a long command is."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.text import Text

from holdfast.cli.surface import Surface

_SAY_EVERY_SECONDS: Final = 5.0


@contextmanager
def progress(surface: Surface, first: str) -> Iterator[Callable[[str], None]]:
    """Give a function that tells how far it is: a spinner on a terminal, else a line every few seconds."""
    if surface.talks and surface.err.is_terminal:
        with surface.err.status(Text(first, style="dim")) as status:
            yield lambda words: status.update(Text(words, style="dim"))
        return
    said = time.monotonic()

    def tell(words: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _SAY_EVERY_SECONDS:
            said = time.monotonic()
            surface.say(Text(words, style="dim"))

    yield tell
