"""Tools of MCP servers, by the official client."""
