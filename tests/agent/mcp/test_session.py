"""What is known of a call whose connection broke: not sent only where no other request can be why."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client._memory import InMemoryTransport
from mcp.server.mcpserver import MCPServer

from holdfast import mcp
from holdfast.agent.mcp.session import Session, Spoken
from tests.agent.mcp.conftest import SECONDS


class Line:
    """A line to a server in this process, and a request on it that is refused its connection when told."""

    def __init__(self) -> None:
        self.server = MCPServer("desk", log_level="CRITICAL")
        self.server.tool()(self.hang)
        self.server.tool()(self.add)
        self.hanging = asyncio.Semaphore(0)
        self._refused = asyncio.Event()
        self.session = Session("desk", self.connect, SECONDS)

    async def hang(self) -> str:
        """Never answer."""
        self.hanging.release()
        await anyio.sleep_forever()
        return ""

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @asynccontextmanager
    async def connect(self, _: Spoken) -> AsyncIterator[Any]:
        """Open it."""
        async with InMemoryTransport(self.server) as streams, anyio.create_task_group() as requests:
            requests.start_soon(self._fail)
            yield streams
            requests.cancel_scope.cancel()

    async def _fail(self) -> None:
        await self._refused.wait()
        raise httpx2.ConnectError("refused")

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call a tool."""
        return await self.session.call(name, arguments, meta={}, progress=_unheard)

    async def begin(self) -> "asyncio.Task[Any]":
        """Begin a call that the server has, and will not answer."""
        calling = asyncio.create_task(self.call("hang"))
        await self.hanging.acquire()
        return calling

    def refuse(self) -> None:
        """Break the line."""
        self._refused.set()


async def _unheard(progress: float, total: float | None, message: str | None) -> None:
    pass


async def give_up(line: Line) -> None:
    """Give a call up."""
    calling = await line.begin()
    calling.cancel()
    await asyncio.wait([calling])


async def list_tools(line: Line) -> None:
    """Have the tools listed."""
    await line.session.tools()


async def add(line: Line) -> None:
    """Have another call answered."""
    await line.call("add", a=1, b=2)


Meanwhile = Callable[[Line], Awaitable[None]]


@pytest.mark.parametrize("meanwhile", [give_up, list_tools, add])
async def test_a_call_that_met_another_request_is_never_said_to_be_unsent(meanwhile: Meanwhile) -> None:
    """The other may be the one that got no connection, though it has ended since; this one may have been performed."""
    with anyio.fail_after(SECONDS):
        line = Line()
        calling = await line.begin()
        await meanwhile(line)
        line.refuse()
        with pytest.raises(mcp.ServerGone):
            await calling


async def test_of_two_calls_neither_is_said_to_be_unsent() -> None:
    """Whichever is told first that the line broke: only one of them can have been refused."""
    with anyio.fail_after(SECONDS):
        line = Line()
        both = [await line.begin(), await line.begin()]
        line.refuse()
        ends = await asyncio.gather(*both, return_exceptions=True)
        assert [type(end) for end in ends] == [mcp.ServerGone, mcp.ServerGone]


async def test_a_call_after_one_that_was_given_up_is_never_said_to_be_unsent() -> None:
    """What was given up may still be on its way, and fail in the other's stead."""
    with anyio.fail_after(SECONDS):
        line = Line()
        await give_up(line)
        calling = await line.begin()
        line.refuse()
        with pytest.raises(mcp.ServerGone):
            await calling


async def test_a_call_that_was_alone_and_got_no_connection_is_known_to_be_unsent() -> None:
    """Others that ended before it began do not count."""
    with anyio.fail_after(SECONDS):
        line = Line()
        await list_tools(line)
        await add(line)
        calling = await line.begin()
        line.refuse()
        with pytest.raises(mcp.ToolsetUnavailable):
            await calling
