"""What every command takes: which store, how to speak, and which run."""

import asyncio
import getpass
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import wraps
from typing import Any, Final, TypeVar

import click
import msgspec

from holdfast.cli.completion import address_of, complete_file, complete_key, complete_run
from holdfast.cli.exits import Exit
from holdfast.cli.surface import Surface, shown
from holdfast.core.errors import InvalidInput
from holdfast.runtime import DEFAULT_STORE

Command = TypeVar("Command", bound=Callable[..., Any])


def common(*, store: bool = True) -> Callable[[Command], Command]:
    """Give a command the options that all have, and call it with a `Surface` first."""

    def decorate(function: Command) -> Command:
        @wraps(function)
        def call(*, json: bool, quiet: bool, **rest: Any) -> Any:
            named = rest.pop("store", None)
            surface = Surface(address_of(named), json, quiet, named)
            try:
                done = function(surface, **rest)
                return asyncio.run(done) if isinstance(done, Coroutine) else done
            except BrokenPipeError:
                # Whoever read our output has enough of it; the interpreter must not fail on its last flush.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return Exit.FINE
            except KeyboardInterrupt:
                surface.fail("interrupted", "nothing was changed", word="interrupted")
                return Exit.INTERRUPTED

        decorated: Any = call
        options = [
            click.option("--json", is_flag=True, help="Speak JSON: one value, or a line for each of many."),
            click.option("--quiet", "-q", is_flag=True, help="Print the result and errors only."),
        ]
        if store:
            options.insert(0, click.option("--store", metavar="URL", help=_STORE_HELP))
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


_STORE_HELP: Final = f"Where the runs are. Else HOLDFAST_STORE, else {DEFAULT_STORE}."


def run_argument(*, required: bool = True) -> Callable[[Command], Command]:
    """Take a run, by its id, the beginning of it, or its key; `find_run` finds it."""
    return click.argument("run", metavar="RUN", required=required, shell_complete=complete_run)


archive_option: Final = click.option(
    "--archive", metavar="FILE", help="The run as an archive holds it.", shell_complete=complete_file
)
key_option: Final = click.option("--key", metavar="KEY", help="The run by its key.", shell_complete=complete_key)


def _somebody() -> str | None:
    """Return who is at the keyboard, as the system knows them; None where it knows nobody."""
    with suppress(OSError, KeyError, ImportError):
        return os.environ.get("USER") or getpass.getuser()
    return None


def by_option(meaning: str) -> Callable[[Command], Command]:
    """Take who it is that speaks, which the journal keeps."""
    said = f"{meaning}; kept in the journal. Else USER, else who you are logged in as."
    return click.option("--by", metavar="WHO", default=_somebody, help=said)


def labels_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Return labels that were written as NAME=VALUE."""
    for text in texts:
        if "=" not in text:
            raise click.UsageError(f"a label is written NAME=VALUE, not {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def json_of(what: str, text: str) -> Any:
    """Return the value that was written as JSON.

    Raises:
        InvalidInput: it is none; the hint writes it as text.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        refused = InvalidInput(f"{what} is not JSON: {error}")
        option = f"{what} " if what.startswith("--") else ""
        refused.hint = f"Text is written in quotes: {option}'\"{shown(text)}\"'"
        raise refused from None
