"""The command line: parse, ask the client, render."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, NoReturn

import click

from holdfast import __version__
from holdfast.cli.exits import Exit, status_of
from holdfast.cli.surface import Surface
from holdfast.core.errors import HoldfastError

_PLACES: Final = {
    "demo": "demo:demo",
    "run": "run:run",
    "chat": "chat:chat",
    "worker": "worker:worker",
    "serve": "serve:serve",
    "ls": "ls:ls",
    "show": "show:show",
    "tail": "tail:tail",
    "signal": "signal:signal",
    "steer": "steer:steer",
    "answer": "answer:answer",
    "cancel": "control:cancel",
    "pause": "control:pause",
    "resume": "control:resume",
    "retry": "control:retry",
    "fork": "fork:fork",
    "raise": "budget:raise_",
    "resolve": "resolve:resolve",
    "preflight": "preflight:preflight",
    "verify": "verify:verify",
    "export": "export:export",
    "delete": "delete:delete",
    "gc": "gc:gc",
    "migrate": "migrate:migrate",
    "doctor": "doctor:doctor",
}
"""Where each command is, in the order in which a newcomer meets them; only the one that is called is imported."""


class _InOrder(click.Group):
    """Knows its commands by name, and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_PLACES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _PLACES:
            return None
        module, _, name = _PLACES[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"holdfast.cli.{module}"), name)
        return command


@click.group(cls=_InOrder, context_settings={"help_option_names": ["--help", "-h"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def commands() -> None:
    """Durable runs of agents and functions: start them, watch them, mend them.

    A killed run goes on when it is run again. Begin with `holdfast demo`.

    \b
    Exit status: 0 fine, 1 the run failed, 2 usage, 3 not found, 4 conflict,
    5 store unavailable, 6 waiting for a person, 130 interrupted.
    """


if "_HOLDFAST_COMPLETE" in os.environ:
    # A shell asks what could be typed: the answers are registered there.
    import_module("holdfast.cli.completion")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit status."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character gets a question mark instead of a traceback.
        reconfigure: Any = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(int(_call(given)))


def _call(given: list[str]) -> int:
    surface = Surface("", json="--json" in given)
    try:
        return commands.main(given, prog_name="holdfast", standalone_mode=False) or Exit.FINE
    except HoldfastError as error:
        surface.fail_with(error)
        return status_of(error)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return Exit.USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "holdfast"
        surface.fail("usage", error.format_message(), hint=f"`{path} --help` tells what it takes.{_dashed(error)}")
        return Exit.USAGE
    except click.ClickException as error:
        surface.fail("usage", error.format_message())
        return Exit.USAGE
    except click.Abort:
        surface.fail("interrupted", "nothing was changed", word="interrupted")
        return Exit.INTERRUPTED


def _dashed(error: click.UsageError) -> str:
    """Return how to write a number below zero, where one was taken for an option."""
    if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
        return f"\nA value that begins with a dash stands behind two: write `-- {error.option_name}`."
    return ""
