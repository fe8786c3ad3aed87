"""A real MCP server as a child process, over pipes or over loopback HTTP."""

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import mcp
from holdfast.agent.tool import Tool
from tests.rigs.waiting import until, wait_until

PROGRAM = Path(__file__).with_name("program.py")
SECONDS = 60


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[mcp.Server]:
    """A server over pipes; its notes are in `tmp_path`."""
    server = mcp.Server("desk", [sys.executable, str(PROGRAM), str(tmp_path)], open_seconds=SECONDS)
    yield server
    await server.close()


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port that a server over HTTP listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
    with subprocess.Popen([sys.executable, PROGRAM, tmp_path, str(number)], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: _listens(number), seconds=SECONDS)
        yield number
        process.kill()


def _listens(number: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", number)) == 0


async def tools_of(server: mcp.Server) -> dict[str, Tool[..., Any]]:
    """Return a server's tools by the server's own names."""
    return {found.source: server.make(found) for found in await server.find()}


async def comes_true(true: Callable[[], bool]) -> None:
    """Wait for something that sends no signal."""

    async def look() -> bool:
        return true()

    await until(look, seconds=SECONDS)


async def noted(folder: Path, what: str) -> None:
    """Wait until the server has noted something."""
    notes = folder / "notes"
    await comes_true(lambda: notes.exists() and what in notes.read_text().splitlines())
