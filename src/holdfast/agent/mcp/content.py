"""What an MCP server answers, as text for the model."""

import base64
from typing import TYPE_CHECKING, Any

from holdfast.core.codec import encode

if TYPE_CHECKING:
    from mcp.types import CallToolResult


def told(result: "CallToolResult") -> str:
    """Return the text of an answer: what is no text in it is named with its size."""
    parts = [_told(block) for block in result.content]
    if not parts and result.structured_content is not None:
        return encode(result.structured_content).decode()
    return "\n".join(parts)


def _told(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.mime_type}, {_size(block.data)} bytes]"
        case "resource_link":
            about = f": {block.description}" if block.description else ""
            return f"[{block.name} at {block.uri}{about}]"
        case "resource":
            text = getattr(block.resource, "text", None)
            if text is not None:
                return str(text)
            size = _size(block.resource.blob)
            return f"[{block.resource.uri}, {block.resource.mime_type or 'binary'}, {size} bytes]"
        case kind:
            return f"[{kind}]"


def _size(data: str) -> int:
    try:
        return len(base64.b64decode(data))
    except ValueError:
        return len(data)
