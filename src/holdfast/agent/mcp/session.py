"""A connection to an MCP server, held by a task of its own: opened when first used, and opened anew after it broke."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import Context
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.agent import header
from holdfast.agent.tool import ToolsetUnavailable
from holdfast.core.errors import HoldfastError, ToolError

if TYPE_CHECKING:
    from mcp import Client, MCPError
    from mcp.client._transport import TransportStreams
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult, RequestParamsMeta, Tool

_CLOSED_SECONDS: Final = 10.0
"""How long a connection that broke may take to come to its end before nobody waits for its reason."""
_TOLD_LINES: Final = 5
_MISSING: Final = "the official client is not installed; install holdfast[mcp]"
_SESSION_UNKNOWN: Final = "Session terminated"
"""What the client makes of the 404 by which a server refuses a session before it looks at the request."""
_PAGES: Final = 100
"""How many pages of tools a server may have."""


class ServerGone(HoldfastError):
    """An MCP server died, or its connection broke, while a call was under way: nobody knows what it did."""

    code = "mcp_server_gone"
    hint = "See what the server says on its standard error; the next call opens it anew."


class Spoken:
    """The last lines that a server wrote on its standard error."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_TOLD_LINES)

    def add(self, line: str) -> None:
        """Take one more."""
        if line:
            self._lines.append(line[:500])

    def __str__(self) -> str:
        return f"; it said: {' / '.join(self._lines)}" if self._lines else ""


class _Sent:
    """A request that is under way; `alone` as long as a connection that is not made can only be its own."""

    def __init__(self, *, alone: bool) -> None:
        self.alone = alone


Connect = Callable[[Spoken], "AbstractAsyncContextManager[TransportStreams]"]


class Session:
    """One connection, from its opening to its end; what comes after it is another."""

    def __init__(self, server: str, connect: Connect, open_seconds: float) -> None:
        self._server, self._connect, self._open_seconds = server, connect, open_seconds
        self._settled = asyncio.Event()
        self._leave = asyncio.Event()
        self._client: Client | None = None
        self._error: BaseException | None = None
        self._flying: set[_Sent] = set()
        self._forsaken = False
        """A request was given up: it, and the word that it is, may still be on their way."""
        self._spoken = Spoken()
        # A task and a context of its own: it outlives the run that asked first, and ends with the event loop at last.
        self._task = asyncio.get_running_loop().create_task(self._hold(), name=f"mcp {server}", context=Context())

    @property
    def is_over(self) -> bool:
        """True once nothing can be sent any more."""
        return self._leave.is_set() or self._task.done()

    async def close(self) -> None:
        """End the connection, and a server that was started for it."""
        self._leave.set()
        await asyncio.wait([self._task])

    async def tools(self) -> "list[Tool]":
        """Return what the server lists now.

        Raises:
            ToolsetUnavailable: it does not answer.
        """
        client = await self._ready()
        found: list[Tool] = []
        cursor: str | None = None
        try:
            with self._sending():
                for _ in range(_PAGES):
                    page = await client.list_tools(cursor=cursor, cache_mode="bypass")
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None:
                        break
        except Exception as error:
            raise ToolsetUnavailable(f"MCP server {self._server} did not list its tools: {_told(error)}") from error
        return found

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any], progress: "ProgressFnT"
    ) -> "CallToolResult":
        """Return what the server answers.

        Raises:
            ToolsetUnavailable: nothing was done.
            ServerGone: it was sent, and nobody knows what came of it.
            ToolError: the server refused it, or answered what cannot be taken.
        """
        client = await self._ready()
        import mcp  # lazy: loaded by whoever opened the session
        from pydantic import ValidationError  # lazy: the client brings it

        with self._sending() as sent:
            try:
                return await client.call_tool(
                    name, dict(arguments), meta=cast("RequestParamsMeta", meta), progress_callback=progress
                )
            except mcp.MCPError as error:
                raise await self._failed(error, sent) from (self._error or error)
            except (RuntimeError, ValidationError) as error:
                # The server answered, so the call was made; the client only refuses the form of what came.
                raise ToolError(f"{name} was performed, but its answer cannot be taken: {error}") from error

    @contextmanager
    def _sending(self) -> Iterator[_Sent]:
        """Count a request for as long as it is under way: none of those that ever met was alone."""
        sent = _Sent(alone=not self._flying and not self._forsaken)
        self._not_alone()
        self._flying.add(sent)
        try:
            yield sent
        except asyncio.CancelledError:
            self._forsaken = True
            self._not_alone()
            raise
        finally:
            self._flying.discard(sent)

    def _not_alone(self) -> None:
        for sent in self._flying:
            sent.alone = False

    async def _failed(self, error: "MCPError", sent: _Sent) -> HoldfastError:
        """Return what is known of a call that ended in an error of the protocol."""
        from mcp import types  # lazy: as above

        if error.code in (types.INVALID_PARAMS, types.METHOD_NOT_FOUND):
            return ToolError(f"MCP server {self._server} refused the call: {error.message}")
        if error.code == types.INVALID_REQUEST and error.message == _SESSION_UNKNOWN:
            self._leave.set()
            return ToolsetUnavailable(f"MCP server {self._server} was started anew and does not know the session")
        if error.code != types.CONNECTION_CLOSED:
            return ServerGone(f"MCP server {self._server} failed in the middle of a call: {error.message}")
        self._leave.set()
        await asyncio.wait([self._task], timeout=_CLOSED_SECONDS)
        return self._broken(error, alone=sent.alone)

    def _broken(self, error: Exception, *, alone: bool) -> HoldfastError:
        """Return what is known of a call whose connection broke: not sent only where no connection was made for it."""
        why = _told(self._error) if self._error is not None else str(error)
        if alone and self._error is not None and _is_unsent(self._error):
            return ToolsetUnavailable(f"MCP server {self._server} cannot be reached: {why}")
        return ServerGone(f"MCP server {self._server} went away in the middle of a call ({why}){self._spoken}")

    async def _ready(self) -> "Client":
        await self._settled.wait()
        if self._client is None:
            why = _told(self._error) if self._error is not None else "it is closed"
            raise ToolsetUnavailable(
                f"MCP server {self._server} cannot be opened: {why}{self._spoken}"
            ) from self._error
        return self._client

    async def _hold(self) -> None:
        try:
            # On a thread: it takes seconds on a busy machine, and every run of this process would stand still.
            client_of = (await asyncio.to_thread(import_module, "mcp")).Client
            _quieten()
            async with asyncio.timeout(self._open_seconds) as limit:
                transport = _watched(self._connect(self._spoken), self._not_alone, self._leave.set)
                async with client_of(transport) as client:
                    limit.reschedule(None)
                    self._client = client
                    self._settled.set()
                    await self._leave.wait()
        except ModuleNotFoundError as error:
            self._error = error if error.name != "mcp" else ModuleNotFoundError(_MISSING)
        except TimeoutError as error:
            self._error = TimeoutError(f"no answer within {self._open_seconds:g} s")
            self._error.__cause__ = error
        except Exception as error:
            self._error = error
        finally:
            self._client = None
            self._leave.set()
            self._settled.set()


@asynccontextmanager
async def _watched(
    transport: "AbstractAsyncContextManager[TransportStreams]", heard: Callable[[], None], ended: Callable[[], None]
) -> "AsyncIterator[TransportStreams]":
    """Yield a transport's streams, and tell what the server's side does.

    When it says something, since the client may ask more of its own after an answer; and when it ends: one that died
    idle is then known to have.
    """
    async with transport as (read, write):
        yield _Watched(read, heard, ended), write


class _Watched:
    def __init__(self, stream: Any, heard: Callable[[], None], ended: Callable[[], None]) -> None:
        self._stream, self._heard, self._ended = stream, heard, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> "_Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._stream.__aexit__(*raised)

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Any:
        return await self._next(self._stream.__anext__())

    async def receive(self) -> Any:
        return await self._next(self._stream.receive())

    async def _next(self, message: Awaitable[Any]) -> Any:
        try:
            came = await message
        except BaseException:
            self._ended()
            raise
        self._heard()
        return came

    async def aclose(self) -> None:
        await self._stream.aclose()


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _told(error: BaseException) -> str:
    return header.told(_leaves(error)[0])


def _is_unsent(error: BaseException) -> bool:
    """Say whether a transport failed before it had a connection to send by."""
    import httpx2  # lazy: the client has loaded it

    return all(isinstance(leaf, httpx2.ConnectError | httpx2.ConnectTimeout) for leaf in _leaves(error))


def _quieten() -> None:
    """Keep the client's own log off standard error where nobody set up logging; whoever did still gets it."""
    log = logging.getLogger("mcp")
    if not log.handlers:
        log.addHandler(logging.NullHandler())
