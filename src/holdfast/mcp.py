"""Tools of MCP servers for an agent: `mcp.Server` stands in `tools=`."""

from holdfast.agent.mcp.server import Server
from holdfast.agent.mcp.session import ServerGone
from holdfast.agent.tool import ToolsetUnavailable

__all__ = ["Server", "ServerGone", "ToolsetUnavailable"]
