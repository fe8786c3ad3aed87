"""One HTTP client per process and event loop: connections are kept, and closed when the loop ends."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import httpx2

CONNECT_SECONDS: Final = 10.0
FIRST_SECONDS: Final = 600.0
"""How long a model may think before its first byte."""
STALL_SECONDS: Final = 60.0
"""How long a stream may be silent between two pieces."""
_POOL_SECONDS: Final = 30.0
_LIMITS: Final = httpx2.Limits(max_connections=512, max_keepalive_connections=64, keepalive_expiry=30.0)

_Kept = AsyncGenerator[None, None]
_kept: "WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[int, httpx2.AsyncClient, _Kept]]" = WeakKeyDictionary()


async def client() -> httpx2.AsyncClient:
    """Return the client of this process and event loop."""
    loop = asyncio.get_running_loop()
    pid, known, _ = _kept.get(loop, (0, None, None))
    if known is not None and pid == os.getpid() and not known.is_closed:
        return known
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS, pool=_POOL_SECONDS)
    made = httpx2.AsyncClient(timeout=timeout, limits=_LIMITS)
    keeping = kept(made)
    # Known before anything is waited for, so that two who ask at once get the same.
    _kept[loop] = (os.getpid(), made, keeping)
    await anext(keeping)
    return made


async def kept(opened: AbstractAsyncContextManager[Any]) -> _Kept:
    """Keep something open until the loop ends.

    A generator, because a loop that ends closes the generators begun on it: the only moment when connections that
    belong to the loop can still be closed, and that nobody has to remember.
    """
    async with opened:
        yield


def shown(address: str) -> str:
    """Return an address as it may be told: without a password."""
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
