"""Harnesses to give to an agent, what they are asked and report, and how to write one of your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from holdfast.agent.harness import (
    Ask,
    CursorInvalid,
    Ended,
    Event,
    Harness,
    HarnessFailed,
    HarnessIncomplete,
    HarnessLimit,
    HarnessMismatch,
    Known,
    Rests,
    Session,
    Start,
    Told,
)
from holdfast.core.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast.agent.harnesses.gemini import GeminiInteractions
    from holdfast.agent.harnesses.openai import OpenAIResponses
    from holdfast.agent.harnesses.remote import Remote

__all__ = [
    "Ask",
    "CursorInvalid",
    "Ended",
    "Event",
    "GeminiInteractions",
    "Harness",
    "HarnessFailed",
    "HarnessIncomplete",
    "HarnessLimit",
    "HarnessMismatch",
    "Known",
    "OpenAIResponses",
    "Remote",
    "Rests",
    "Session",
    "Start",
    "Told",
]
_LAZY: Final = {
    "GeminiInteractions": ("gemini", ""),
    "OpenAIResponses": ("openai", ""),
    "Remote": ("remote", ""),
}
"""Where each harness is, and the extra that it needs; what a program does not use, it does not load."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast.harness' has no attribute {name!r}")
    module, extra = _LAZY[name]
    try:
        return getattr(import_module(f"holdfast.agent.harnesses.{module}"), name)
    except ModuleNotFoundError as error:
        if not extra or (error.name or "").startswith("holdfast"):
            raise
        raise InvalidInput(
            f"harness.{name} needs the package {error.name}; install it with: pip install 'holdfast[{extra}]'"
        ) from error


def __dir__() -> list[str]:
    return sorted(__all__)
