"""The command line: parse, ask the client, render."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from holdfast import __version__
from holdfast.cli.answer import answer
from holdfast.cli.budget import raise_
from holdfast.cli.control import cancel, pause, resume, retry
from holdfast.cli.delete import delete
from holdfast.cli.demo import demo
from holdfast.cli.doctor import doctor
from holdfast.cli.exits import Exit, status_of
from holdfast.cli.export import export
from holdfast.cli.fork import fork
from holdfast.cli.gc import gc
from holdfast.cli.ls import ls
from holdfast.cli.migrate import migrate
from holdfast.cli.preflight import preflight
from holdfast.cli.resolve import resolve
from holdfast.cli.run import run
from holdfast.cli.show import show
from holdfast.cli.signal import signal
from holdfast.cli.surface import Surface
from holdfast.cli.tail import tail
from holdfast.cli.verify import verify
from holdfast.cli.worker import worker
from holdfast.core.errors import HoldfastError


class _InOrder(click.Group):
    """Lists its commands in the order in which a newcomer meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder, context_settings={"help_option_names": ["--help", "-h"]})
@click.version_option(__version__, prog_name="holdfast", message="%(prog)s %(version)s")
def commands() -> None:
    """Durable runs of agents and functions: start them, watch them, mend them.

    A killed run goes on when it is run again. Begin with `holdfast demo`.

    \b
    Exit status: 0 fine, 1 the run failed, 2 usage, 3 not found, 4 conflict,
    5 store unavailable, 6 waiting for a person, 130 interrupted.
    """


for _command in (
    demo, run, worker, ls, show, tail, signal, answer, cancel, pause, resume, retry, fork, raise_, resolve, preflight,
    verify, export,
    delete, gc, migrate, doctor,
):  # fmt: skip
    commands.add_command(_command)


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
