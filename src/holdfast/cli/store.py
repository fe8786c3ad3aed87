"""Opening a store to look at it, and finding a run in it by what people type."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click

from holdfast.client.protocol import Client
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import RunId
from holdfast.runtime import open as open_runtime
from holdfast.runtime import open_archive, open_store
from holdfast.store.value import RunRow


@asynccontextmanager
async def open_client(address: str) -> AsyncIterator[Client]:
    """Give the client of a store that is there already; looking never makes one.

    Raises:
        StoreUnavailable: it is not there or does not answer.
        StoreRefused: it is something else.
    """
    async with open_runtime(await open_store(address, create=False), work=False) as runtime:
        yield runtime.client


@asynccontextmanager
async def open_source(address: str, archive: str | None, run: str | None, key: str | None) -> AsyncIterator[Client]:
    """Give the client of a store, or of one run of an archive.

    Raises:
        InvalidInput: the archive is none.
        Damaged: the run cannot be read from it.
    """
    if archive is None:
        async with open_client(address) as client:
            yield client
        return
    digits = (run or "").replace("-", "").lower()

    def wanted(row: RunRow) -> bool:
        return row.key == key if key is not None else row.run.replace("-", "").startswith(digits)

    async with open_runtime(await open_archive(archive, wanted), work=False) as runtime:
        yield runtime.client


async def find_run(client: Client, text: str | None, key: str | None = None) -> RunId:
    """Return the run that was meant: by id, by the beginning of its id, or by key.

    Raises:
        NotFound: there is none.
        InvalidInput: several begin so.
    """
    if (text is None) == (key is None):
        raise click.UsageError("give a run's id, or its key by --key")
    if key is not None:
        return await client.find(key)
    assert text is not None
    found = await client.match(text)
    if not found:
        raise NotFound(f"run {text}")
    if len(found) > 1:
        error = InvalidInput(f"{len(found)} runs begin with {text}")
        error.hint = "Give more of the id:\n" + "\n".join(f"  {run}" for run in found)
        raise error
    return found[0]
