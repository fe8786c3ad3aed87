"""Opening a store to look at it, and finding a run in it by what people type."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from re import IGNORECASE, compile
from typing import Final

import click

from holdfast.client.protocol import Client
from holdfast.core.errors import InvalidInput, NotFound
from holdfast.core.ids import RunId, is_id
from holdfast.core.stepkey import join_key
from holdfast.runtime import open as open_runtime
from holdfast.runtime import open_archive, open_store
from holdfast.store.value import RunRow

_ID: Final = compile(r"(?:-*[0-9a-f]){8,32}-*", IGNORECASE)
"""What can be an id, or the beginning of one."""

_MOST_LISTED: Final = 20


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
async def open_source(
    address: str, archive: str | None, run: str | None, key: str | None
) -> AsyncIterator[tuple[Client, RunId]]:  # fmt: skip
    """Give the client of a store, or of one run of an archive, and the run that was meant; an archive's only run need
    not be named.

    Raises:
        InvalidInput: the archive is none, or holds several and none was named.
        Damaged: the run cannot be read from it.
    """
    if archive is None:
        async with open_client(address) as client:
            yield client, await find_run(client, run, key)
        return
    meant, named = run or "", run is not None or key is not None
    digits = meant.replace("-", "").lower() if _ID.fullmatch(meant) else None
    seen: dict[RunId, RunRow] = {}

    def wanted(row: RunRow) -> bool:
        seen[row.run] = row
        if not named:
            return len(seen) == 1
        if key is not None:
            return row.key == key
        return row.key == meant or (digits is not None and row.run.replace("-", "").startswith(digits))

    async with open_runtime(await open_archive(archive, wanted), work=False) as runtime:
        found = await find_run(runtime.client, run, key) if named else _only(archive, seen)
        yield runtime.client, found


def _only(archive: str, seen: Mapping[RunId, RunRow]) -> RunId:
    """Return the one run of an archive.

    Raises:
        NotFound: it is empty.
        InvalidInput: it holds several.
    """
    if not seen:
        raise NotFound(f"a run in {archive}")
    if len(seen) == 1:
        return next(iter(seen))
    error = InvalidInput(f"{archive} holds {len(seen):,} runs")
    lines = [f"  {row.run}  {row.name}  {row.key or ''}".rstrip() for row in seen.values()]
    more = [f"  and {len(lines) - _MOST_LISTED:,} more"] if len(lines) > _MOST_LISTED else []
    error.hint = "\n".join(["Name one:", *lines[:_MOST_LISTED], *more])
    raise error


async def find_run(client: Client, text: str | None, key: str | None = None) -> RunId:
    """Return the run that was meant: by id, by the beginning of its id, or by key.

    A whole id is always an id. Anything else may be a key too, and must mean one run.

    Raises:
        NotFound: there is none.
        InvalidInput: several are meant, or it can be neither.
    """
    if (text is None) == (key is None):
        raise click.UsageError("give a run's id, or its key by --key")
    if key is not None:
        return await _find_key(client, key)
    assert text is not None
    begun = await client.match(text) if _ID.fullmatch(text) else ()
    keyed = await _keyed(client, text) if not is_id(text.lower()) else None
    found = list(dict.fromkeys([*begun, *([keyed] if keyed is not None else [])]))
    if len(found) == 1:
        return found[0]
    if not found:
        if not is_id(text.lower()):
            await _tell_deleted(client, text)
        missing = NotFound(f"run {text}")
        missing.hint = "No run has this key or an id that begins so. `holdfast ls` lists what is here; check --store."
        raise missing
    error = InvalidInput(f"{len(found)} runs begin with {text}")
    error.hint = "Give more of the id:\n" + "\n".join(f"  {run}" for run in found)
    if keyed is not None:
        error = InvalidInput(f"{text} is the key of one run and the beginning of another's id")
        error.hint = "Give the id:\n" + "\n".join(
            f"  {run}" + ("  by its key" if run == keyed else "") for run in found
        )
    raise error


async def _find_key(client: Client, key: str) -> RunId:
    """Return the run of a key: as given, or, if it was made of parts, as they are kept (`a/b:c` as `a/b%3Ac`)."""
    try:
        return await client.find(key)
    except NotFound:
        parts = key.split("/")
        written = join_key(parts) if len(parts) > 1 and all(parts) else key
        if written == key or "%" in key:
            raise
        with suppress(NotFound):
            return await client.find(written)
        raise


async def _tell_deleted(client: Client, key: str) -> None:
    """Say that a key's run was deleted, if that is why it is not found.

    Raises:
        NotFound: it is.
    """
    try:
        await _find_key(client, key)
    except NotFound as error:
        if error.hint != NotFound.hint:
            raise


async def _keyed(client: Client, key: str) -> RunId | None:
    try:
        return await _find_key(client, key)
    except NotFound:
        return None
