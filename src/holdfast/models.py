"""Models to give to an agent, what they are asked and answer, and how to write one of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.agent.model import (
    CallPiece,
    Model,
    ModelBusy,
    ModelCut,
    ModelError,
    ModelRefused,
    Piece,
    ReasoningPiece,
    Reply,
    Request,
    Say,
    TextPiece,
    ToolSpec,
)
from holdfast.agent.providers.find import find
from holdfast.core.errors import InvalidInput
from holdfast.core.message import Media, Message, Reasoning, Text, ToolCall, ToolResult, Usage

if TYPE_CHECKING:
    from holdfast.agent.providers.anthropic import Anthropic
    from holdfast.agent.providers.openai import OpenAI
    from holdfast.agent.providers.player import Player
    from holdfast.agent.providers.pydantic_ai import PydanticAI
    from holdfast.agent.providers.recorder import Recorder

__all__ = [
    "Anthropic",
    "CallPiece",
    "Media",
    "Message",
    "Model",
    "ModelBusy",
    "ModelCut",
    "ModelError",
    "ModelRefused",
    "OpenAI",
    "Piece",
    "Player",
    "PydanticAI",
    "Reasoning",
    "ReasoningPiece",
    "Recorder",
    "Reply",
    "Request",
    "Say",
    "Text",
    "TextPiece",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Usage",
    "find",
]
_LAZY: Final = {
    "Anthropic": ("anthropic", "anthropic"),
    "OpenAI": ("openai", ""),
    "Player": ("player", ""),
    "PydanticAI": ("pydantic_ai", "pydantic-ai"),
    "Recorder": ("recorder", ""),
}
"""Where each class is, and the extra that it needs; what a program does not use, it does not load."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast.models' has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f"holdfast.agent.providers.{module}"), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("holdfast"):
            raise
        raise InvalidInput(
            f"models.{name} needs the package {error.name}; install it with: pip install 'holdfast[{extra}]'"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
