"""Blocks that are left by an error, which goes no further."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from holdfast import checkpoint
from holdfast.store.protocol import Store

Place = str | Store


@contextlib.asynccontextmanager
async def shut_down(
    name: str, *, store: Place, by: BaseException | None = None, **options: Any
) -> AsyncIterator[checkpoint.AsyncCheckpoint[Any]]:
    """Give a checkpoint that is kept at the end of the block, because its process is told to end, or left by `by`."""
    leaving = by or SystemExit()
    with contextlib.suppress(type(leaving)):
        async with checkpoint.open(name, store=store, **options) as saved:
            yield saved
            raise leaving
