"""A real MCP server, by the official package: `python program.py FOLDER [PORT]`; what it does, it notes in FOLDER."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
server = MCPServer("desk", log_level="ERROR")
READS, AGAIN = ToolAnnotations(read_only_hint=True), ToolAnnotations(idempotent_hint=True)


def note(what: str) -> None:
    """Note something that a test looks for."""
    with (folder / "notes").open("a") as notes:
        notes.write(f"{what}\n")


@server.tool(annotations=READS)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=AGAIN)
async def store(name: str, step: str, ctx: Context[Any, Any]) -> str:
    """Store a thing; a parameter is called like one of ours."""
    meta = ctx.request_context.meta or {}
    return f"{name} {step} {meta.get('holdfast/idempotency-key', '')}"


@server.tool(name="desk.pay")
def pay(cents: int) -> str:
    """Pay."""
    note(f"paid {cents}")
    if cents > 100:
        raise ToolError("too much")
    return f"paid {cents}"


@server.tool()
def die(times: int) -> str:
    """Die in the middle of a call, so many times."""
    note("dying")
    if (folder / "notes").read_text().count("dying") <= times:
        print("the roof is on fire", file=sys.stderr, flush=True)
        os._exit(1)
    return "alive"


@server.tool()
async def hang() -> str:
    """Never answer."""
    note("hanging")
    try:
        await anyio.sleep_forever()
    finally:
        note("left")
    return ""


@server.tool(structured_output=False)
def look() -> list[Any]:
    """Answer with text and an image."""
    return ["a picture:", Image(data=b"\x89PNG....", format="png")]


if __name__ == "__main__":
    (folder / "pid").write_text(str(os.getpid()))
    print("hello on stderr", file=sys.stderr, flush=True)
    if len(sys.argv) > 2:
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
