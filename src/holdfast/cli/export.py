"""`holdfast export`: one run as the lines of an archive."""

import sys

import click

from holdfast.cli.exits import Exit
from holdfast.cli.options import common, key_option, run_argument
from holdfast.cli.store import find_run, open_client
from holdfast.cli.surface import Surface


@click.command("export")
@run_argument(required=False)
@key_option
@common()
async def export(surface: Surface, *, run: str | None, key: str | None) -> int:
    """Print a run as an archive: JSON lines, with its journal as stored and all that it names.

    `holdfast export RUN > run.jsonl` keeps a copy; `>>` adds it to others. Of a run that goes on it is what stands
    there now. `holdfast verify run.jsonl` checks it.
    """
    async with open_client(surface.store) as client:
        async for line in client.export(await find_run(client, run, key)):
            sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return Exit.FINE
