"""The two ways to a server: a program that is started and spoken to over its pipes, and an address."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, BinaryIO, Final

import httpx2

from holdfast.agent.mcp.session import Spoken

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_READ_SECONDS: Final = 300.0
"""How long a response over HTTP may be silent."""
_LAST_WORDS_SECONDS: Final = 1.0
_log: Final = logging.getLogger("holdfast.mcp")
"""Not structlog's: left to itself that would print every word of a server's."""


@asynccontextmanager
async def program(
    server: str, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None, spoken: Spoken
) -> "AsyncIterator[TransportStreams]":
    """Start a server and yield its streams; what it writes on standard error is logged at level debug."""
    from mcp import StdioServerParameters  # lazy: an extra, loaded by the session
    from mcp.client.stdio import stdio_client  # lazy: the same

    parameters = StdioServerParameters(
        command=command[0], args=list(command[1:]), env=dict(env) if env is not None else None, cwd=cwd
    )
    ours, theirs = os.pipe()
    listening = asyncio.create_task(_listen(server, os.fdopen(ours, "rb", buffering=0), spoken))
    try:
        with os.fdopen(theirs, "w") as errlog:
            async with stdio_client(parameters, errlog=errlog) as streams:
                yield streams
    finally:
        # The server is gone, and its last words are on their way, unless a child of its has the pipe.
        await asyncio.wait([listening], timeout=_LAST_WORDS_SECONDS)
        listening.cancel()


async def _listen(server: str, pipe: BinaryIO, spoken: Spoken) -> None:
    with pipe:
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        rest = b""
        while more := await reader.read(4096):
            *lines, rest = (rest + more).split(b"\n")
            rest = rest[-4096:]
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                spoken.add(text)
                _log.debug("%s says: %s", server, text)
        spoken.add(rest.decode(errors="replace").rstrip())


@asynccontextmanager
async def address(url: str, headers: Mapping[str, str]) -> "AsyncIterator[TransportStreams]":
    """Yield the streams of a server that speaks streamable HTTP."""
    from mcp.client.streamable_http import streamable_http_client  # lazy: an extra, loaded by the session

    limits = httpx2.Timeout(30.0, read=_READ_SECONDS)
    async with (
        httpx2.AsyncClient(headers=dict(headers), timeout=limits) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams
