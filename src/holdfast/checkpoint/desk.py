"""What the checkpoints of one event loop share: one store and one keeper for each address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

from holdfast.engine.keeper import Keeper
from holdfast.engine.log import Log
from holdfast.runtime import open_store
from holdfast.store.protocol import Store


class _Loan:
    """A keeper, and how many have borrowed it."""

    def __init__(self, store: str | Store) -> None:
        self.joining = asyncio.ensure_future(_join(store))
        self.users = 0
        self.owned = isinstance(store, str)


_LOANS: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str | int, _Loan]]()


async def _join(store: str | Store) -> Keeper:
    opened = await open_store(store) if isinstance(store, str) else store
    keeper = Keeper(opened, Log())
    try:
        await keeper.join()
    except BaseException:
        if isinstance(store, str):
            await opened.close()
        raise
    return keeper


@asynccontextmanager
async def borrowed(store: str | Store) -> AsyncIterator[Keeper]:
    """Give the keeper of a store for a while: the first who asks opens it, and the last who is done closes it."""
    loans = _LOANS.setdefault(asyncio.get_running_loop(), {})
    key = store if isinstance(store, str) else id(store)
    loan = loans.get(key)
    if loan is None:
        loan = loans[key] = _Loan(store)
    loan.users += 1
    try:
        # Whoever else waits for it must not be cancelled with this one.
        yield await asyncio.shield(loan.joining)
    finally:
        loan.users -= 1
        if not loan.users:
            del loans[key]
            await _leave(loan)


async def _leave(loan: _Loan) -> None:
    if not loan.joining.done():
        loan.joining.cancel()
    await asyncio.wait([loan.joining])
    if loan.joining.cancelled() or loan.joining.exception() is not None:
        return
    keeper = loan.joining.result()
    try:
        await keeper.leave()
    finally:
        if loan.owned:
            await keeper.store.close()
