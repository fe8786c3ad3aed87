"""The tools of a real MCP server: what is found, what a call comes to, and what the server's death means."""

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import holdfast as hf
from holdfast import mcp
from holdfast.agent.tool import FoundTool, Tool, Toolset
from holdfast.core.errors import InvalidInput
from holdfast.engine.step import Step
from tests.agent.mcp.conftest import PROGRAM, SECONDS, comes_true, noted, tools_of


def step() -> Step[None]:
    """A step as a tool sees it."""
    return Step(deps=None, idempotency_key="key-1", run_id=None, attempt=1, log=None, emit=lambda _: None)  # type: ignore[arg-type]


async def call(tool: Tool[..., Any], **arguments: Any) -> Any:
    """Call a tool as a step would."""
    with anyio.fail_after(SECONDS):
        return await tool.code.function(step(), **arguments)


async def test_a_server_is_found_called_lost_and_found_again(
    desk: mcp.Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The life of a session: what it lists, what its answers become, and its death between two calls; in silence."""
    assert isinstance(desk, Toolset)
    found = await desk.find()
    assert {each.source: (each.name, each.effect.value) for each in found} == {
        "add": ("add", "repeat"),
        "store": ("store", "keyed"),
        "desk.pay": ("desk_pay", "once"),
        "die": ("die", "once"),
        "hang": ("hang", "once"),
        "look": ("look", "once"),
    }
    assert found[0].description == "Add two numbers."
    assert set(found[0].schema["properties"]) == {"a", "b"}
    # What is recorded makes the same tools, in a process that has not asked the server.
    back = msgspec.json.decode(msgspec.json.encode(found), type=list[FoundTool])
    tools = {each.source: desk.make(each) for each in back}
    assert [each.spec.name for each in tools.values()] == [each.name for each in found]

    assert await call(tools["add"], **tools["add"].read('{"a": 1, "b": 2}')) == "3"
    assert await call(tools["store"], name="it", step="one") == "it one key-1"
    assert await call(tools["look"]) == "a picture:\n[image/png, 8 bytes]"
    with pytest.raises(hf.ToolError, match="too much"):
        await call(tools["desk.pay"], cents=500)
    with pytest.raises(hf.ToolError, match="cents"):
        await call(tools["desk.pay"], cents="many")

    # A call that is given up is given up by the server too, and the session goes on.
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: call(tools["hang"]))
        await noted(tmp_path, "hanging")
        group.cancel_scope.cancel()
    await noted(tmp_path, "left")

    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    session = desk._sessions[asyncio.get_running_loop()]
    await comes_true(lambda: session.is_over)
    assert await call(tools["add"], a=2, b=2) == "4"
    assert capfd.readouterr() == ("", "")


async def test_a_death_in_a_call_is_doubt_for_once_and_another_attempt_for_repeat(tmp_path: Path) -> None:
    """By the effect of the tool, nobody else's judgement: a `once` call is made once, whatever is not known of it."""
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    once = mcp.Server("once", command, open_seconds=SECONDS)
    again = mcp.Server("again", command, effects={"die": "repeat"}, open_seconds=SECONDS)

    @hf.durable
    async def work(ctx: hf.Context, kind: str) -> str:
        server = once if kind == "once" else again
        tools = await tools_of(server)
        try:
            return await ctx.step(partial(tools["die"], times=1))
        except hf.InDoubt as doubt:
            return doubt.message

    async with hf.testing.open(app=hf.App(work)) as runtime:
        with anyio.fail_after(SECONDS):
            told = await runtime.run(work, "once")
            assert "went away in the middle of a call" in told
            assert "the roof is on fire" in told
            (tmp_path / "notes").unlink()
            assert await runtime.run(work, "again") == "alive"
    assert (tmp_path / "notes").read_text().split() == ["dying", "dying"]
    await once.close()
    await again.close()


async def test_a_server_over_http_is_the_same(port: int, tmp_path: Path) -> None:
    """Its address is all that differs; what could not be sent is known not to have happened."""
    server = mcp.Server("desk", url=f"http://127.0.0.1:{port}/mcp", only=["add", "desk.pay"], prefix="my-")
    found = await server.find()
    assert [each.name for each in found] == ["my-add", "my-desk_pay"]
    tools = await tools_of(server)
    assert await call(tools["add"], a=1, b=2) == "3"
    assert tools["desk.pay"].policy.not_performed == (mcp.ToolsetUnavailable, hf.ToolError)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises((mcp.ServerGone, mcp.ToolsetUnavailable)):
        await call(tools["desk.pay"], cents=1)  # by a connection that was kept: nobody knows what it came to
    with pytest.raises(mcp.ToolsetUnavailable):
        await call(tools["desk.pay"], cents=1)
    await server.close()


async def test_a_server_that_cannot_be_opened_says_why() -> None:
    """With its last words, since they are not on the screen."""
    for command, says in (
        ([sys.executable, "-c", "raise SystemExit('no such module')"], "no such module"),
        (["/nonexistent/program"], "No such file"),
        ([sys.executable, "-c", "import sys; sys.stdin.read()"], "no answer within 0.5 s"),
    ):
        server = mcp.Server("broken", command, open_seconds=0.5 if "answer" in says else SECONDS)
        with pytest.raises(mcp.ToolsetUnavailable, match=says), anyio.fail_after(SECONDS):
            await server.find()


async def test_a_header_that_is_refused_on_its_way_is_not_told(port: int) -> None:
    """What the network's own check repeats of it is left out: here a value that begins with a space."""
    server = mcp.Server("desk", url=f"http://127.0.0.1:{port}/mcp", headers={"x-key": " hush"})
    with pytest.raises(mcp.ToolsetUnavailable) as refused, anyio.fail_after(SECONDS):
        await server.find()
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "its command or its url="),
        ({"command": ["a"], "url": "http://127.0.0.1"}, "its command or its url="),
        ({"command": "npx server"}, "list of words"),
        ({"command": ["a"], "only": "add"}, "only= is a list"),
        ({"command": ["a"], "effects": {"add": "never"}}, "effect="),
        ({"url": "http://127.0.0.1", "headers": {"x-key": "hush\nhush"}}, "HTTP cannot carry: x-key$"),
    ],
)
def test_a_server_that_is_declared_wrong_is_refused(options: dict[str, Any], says: str) -> None:
    """Before anything is started."""
    with pytest.raises(InvalidInput, match=says):
        mcp.Server("desk", **options)


def test_a_persons_word_and_the_effect_are_declared_over_the_servers_hints() -> None:
    """Hints are a server's own claims; whoever does not trust them says so."""
    hinted = FoundTool(name="wipe", source="wipe", description="", schema={}, effect=hf.Effect.ONCE)
    assert mcp.Server("a", ["a"], needs_approval=["wipe"]).make(hinted).needs_approval({})
    assert not mcp.Server("a", ["a"], needs_approval=["add"]).make(hinted).needs_approval({})
    assert mcp.Server("a", ["a"], needs_approval=True).make(hinted).needs_approval({})
